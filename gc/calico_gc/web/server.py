"""Hands out the page, the metrics and the health over HTTP. Reads only; bound to localhost unless told (ruling 19)."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from calico_gc.view import View
from calico_gc.web.site import NoSuchPage, Page, Site, templates
from calico_ipam.model.addresses import parse_address

log = logging.getLogger(__name__)

#: the text format of Prometheus
TEXT_TYPE = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: seconds for which pages are made of the same view: somebody who follows links does not have everything counted again
FRESH = 2.0
#: seconds a client may take to ask
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from; all of them are called from the server's threads.

    ``live`` is about the process, ``ready`` about its data: why not, empty when all is well. ``table``: what upstream's
    probes show beside. ``view``: the newest view, or None while there is none; without ``view`` and ``metrics`` only
    probes are answered. ``page_for_all``: others than this host may see the page, too, which has no login.
    """

    live: Callable[[], str]
    ready: Callable[[], str]
    table: Callable[[], str] = str
    view: Callable[[], View | None] | None = None
    metrics: Callable[[], str] | None = None
    page_for_all: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: HTTPStatus
    body: str
    kind: str = "text/html; charset=utf-8"
    policy: str = ""


class Router:
    """Turns a path into an answer. Keeps the pages of the newest view, so that its numbers are counted once."""

    def __init__(self, sources: Sources, origin: str = "calico-gc", *, fresh: float = FRESH) -> None:
        """``fresh``: seconds for which pages are made of the same view."""
        self._sources = sources
        self._origin = origin
        self._fresh = fresh
        self._templates = templates()
        self._newest: tuple[float, Site] | None = None

    def answer(self, target: str, client: str = "127.0.0.1") -> Answer:
        """Return the answer to a request for ``target``, the query included. ``client``: who asks, an IP address."""
        parts, sources = urlsplit(target), self._sources
        match parts.path:
            case "/metrics" if sources.metrics is not None:
                return Answer(HTTPStatus.OK, sources.metrics(), METRICS_TYPE)
            case "/healthz":
                return _health(sources.live())
            case "/readyz":
                return _health(sources.ready())
            case "/liveness":
                return _upstreams_health(sources.live(), sources.table())
            case "/readiness":
                return _upstreams_health(sources.ready(), sources.table())
            case _ if sources.view is not None and not (sources.page_for_all or _local(client)):
                text = "The page is shown to this host only: use kubectl port-forward.\n"
                return Answer(HTTPStatus.FORBIDDEN, text, TEXT_TYPE)
            case _ if sources.view is not None:
                return self._page(parts.path, dict(parse_qsl(parts.query)), sources.view)
            case _:
                return Answer(HTTPStatus.NOT_FOUND, "404 page not found\n", TEXT_TYPE)

    def _page(self, path: str, query: dict[str, str], newest: Callable[[], View | None]) -> Answer:
        site = self._site(newest)
        if site is None:
            text = "Nothing has been looked at yet; try again in a moment.\n"
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text, TEXT_TYPE)
        try:
            page, status = site.page(path, query), HTTPStatus.OK
        except NoSuchPage as missing:
            body = site.render("missing.html.j2", what=str(missing))
            page, status = Page(path, "Not here", body), HTTPStatus.NOT_FOUND
        return Answer(status, site.document(page), policy=site.policy())

    def _site(self, view_of: Callable[[], View | None]) -> Site | None:
        """Return the pages of a view that is not old; two requests at once may make it twice, which does no harm."""
        newest = self._newest
        if newest is not None and time.monotonic() - newest[0] < self._fresh:
            return newest[1]
        view = view_of()
        if view is None:
            return None
        site = Site(view, self._templates, origin=self._origin)
        self._newest = time.monotonic(), site
        return site


def _local(client: str) -> bool:
    """Tell whether an address is this host's own; a socket of both families shows IPv4 addresses as IPv6."""
    return parse_address(client.removeprefix("::ffff:").partition("%")[0]).is_loopback


def _health(wrong: str) -> Answer:
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK, f"{wrong or 'ok'}\n", TEXT_TYPE)


def _upstreams_health(wrong: str, table: str) -> Answer:
    """As upstream answers its probes: all components in a table, and no content where there is nothing to show."""
    good = HTTPStatus.OK if table else HTTPStatus.NO_CONTENT
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE if wrong else good, table, TEXT_TYPE)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; anything that could change something is refused."""

    server_version = "calico-gc"
    sys_version = ""
    timeout = PATIENCE

    def __init__(self, router: Router, *arguments: Any) -> None:
        self._router = router
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def _send(self, *, with_body: bool) -> None:
        try:
            answer = self._router.answer(self.path, self.client_address[0])
        except Exception:
            # One request must not end the server, nor may its client see more than that it failed.
            log.exception("the answer to %r could not be made", self.path)
            answer = Answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be made; the log says why\n", "text/plain"
            )
        body = answer.body.encode()
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        headers |= {"Content-Security-Policy": answer.policy} if answer.policy else {}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        log.debug("%s %s", self.address_string(), format % arguments)


class Server:
    """The HTTP server, in threads of its own.

    ``host`` may be an IPv6 address; empty: all addresses of both families. Port 0 takes any free one.
    """

    def __init__(self, host: str, port: int, sources: Sources, *, origin: str = "calico-gc") -> None:
        """Bind. Raises OSError when the address cannot be had."""
        kind: type[_FourServer] = _SixServer if ":" in host else _FourServer
        if not host and socket.has_dualstack_ipv6():
            kind, host = _DualServer, "::"
        self._http = kind((host, port), partial(_Handler, Router(sources, origin)))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, name="page", daemon=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop answering; requests that have begun end with their threads."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()


class _FourServer(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Bind without a look for this machine's own name: a name server that is away would hold everything up."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away while it was answered is no news."""
        del request
        log.debug("the connection of %s broke", client_address, exc_info=True)


class _SixServer(_FourServer):
    address_family = socket.AF_INET6


class _DualServer(_SixServer):
    """Listens to both families, as a Go program that binds to a port does."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
