"""HTTP to the Kubernetes API: bodies are raw JSON, time is bounded, and a lost answer is no failure (ruling 4).

Every request ends within ``REQUEST_SECONDS`` and inside the caller's deadline. A server that asks to come back later
(429, 503, for reads any 5xx, with Retry-After) is asked again; reads are repeated after a broken connection, writes are
not: one that was sent and never answered is OutcomeUnknown. A request that is refused as unauthorized is repeated once
with credentials that were read again, since tokens are renewed in place.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.connection import connect, credentials_source
from calico_ipam.datastore.kube.errors import TOO_LARGE, error_of
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import DeadlineExceeded, OutcomeUnknown, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.connection import Connection

log = logging.getLogger(__name__)

#: longest time for one request, in seconds; a caller's deadline shortens it
REQUEST_SECONDS = 10.0
CONNECT_SECONDS = 5.0
#: how often a request is repeated because the server says "later", as upstream's client does
LATER_TRIES = 10
#: the longest time that a server may ask for, in seconds; who wants to wait longer tries again later
LONGEST_WAIT = 60.0
#: how often a read is sent in all because the connection broke
BROKEN_TRIES = 3
JSON = "application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
#: a list of names and other metadata; a server that cannot leave the rest out sends whole objects
NAMES = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
AGENT = "calico-ipam"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. ``verb``: what a role calls it. ``accept``: the form of the answer."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    verb: str = ""
    accept: str = JSON

    @property
    def reading(self) -> bool:
        return self.method == "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    authorisation: str = field(repr=False)  #: with which the request was sent


class KubeApi:
    """A connection to one API server. Safe to share between threads; a child of ``fork`` connects anew."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._pid = os.getpid()

    @property
    def source(self) -> str:
        """Where the credentials come from, for messages."""
        return credentials_source(self.settings)

    @property
    def server(self) -> str:
        """The address of the API server. Raises NotConfigured."""
        return self.settings.k8s_api_endpoint or self._connected().server

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]:
        """Do a request and return the object in the answer. Raises the errors of :mod:`calico_ipam.errors`."""
        answer = self._patiently(request, deadline)
        if answer.status == 401 and self._renewed(answer.authorisation):
            answer = self._patiently(request, deadline)
        if answer.status >= 300:
            raise error_of(request, answer.status, answer.headers, answer.body, self.source)
        return parsed(request, answer.body)

    def open_stream(self, request: Request, seconds: float) -> Any:
        """Begin a watch of at most ``seconds``; return urllib3's response. Raises as :meth:`call`."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        try:
            timeout = Timeout(connect=min(CONNECT_SECONDS, seconds), total=seconds)
            response, authorisation = self._send(request, timeout, streaming=True)
            if response.status < 300:
                return response
            try:
                body = response.read(65536)
            finally:
                response.close()
        except HTTPError as error:
            raise self._unavailable(error) from error
        if response.status == 401:
            self._renewed(authorisation)  # whoever watches tries again
        raise error_of(request, response.status, response.headers, body, self.source)

    def close(self) -> None:
        """Close the connections that nobody uses; requests under way are the last ones."""
        self._closed.set()
        connection = self._connection
        if connection is not None and self._pid == os.getpid():
            connection.close()

    # --- one request ---------------------------------------------------------------------------------------

    def _patiently(self, request: Request, deadline: Deadline | None) -> Answer:
        """Do a request, again when the server asks to come back later and there is time for it."""
        for _ in range(LATER_TRIES):
            answer = self._once(request, deadline)
            wait = retry_after(request, answer)
            if wait is None or wait > LONGEST_WAIT or (deadline is not None and wait >= deadline.remaining()):
                return answer
            log.info("%s: the API server answers %d and asks to come back in %g s", request, answer.status, wait)
            self._closed.wait(wait)
        return self._once(request, deadline)

    def _once(self, request: Request, deadline: Deadline | None) -> Answer:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        for attempt in range(1, BROKEN_TRIES + 1):
            seconds = REQUEST_SECONDS if deadline is None else min(REQUEST_SECONDS, deadline.remaining())
            if seconds <= 0:
                raise DeadlineExceeded(
                    f"out of time before {request}",
                    subject=request.path,
                    hint="The API server may be slow or unreachable.",
                )
            try:
                timeout = Timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds, total=seconds)
                response, authorisation = self._send(request, timeout, streaming=False)
                return Answer(response.status, response.headers, bytes(response.data), authorisation)
            except HTTPError as error:
                if _never_sent(error):
                    raise self._unavailable(error) from error
                if not request.reading:
                    raise _lost(request, error) from error
                over = deadline is not None and deadline.remaining() <= 0
                if attempt == BROKEN_TRIES or over or _slow(error):
                    raise self._unavailable(error) from error
                log.info("%s failed (%s); trying again", request, _reason(error))
        raise AssertionError("the last try raises")

    def _send(self, request: Request, timeout: Any, *, streaming: bool) -> tuple[Any, str]:
        """Return urllib3's response and the Authorization header that was sent. Raises StoreError once closed."""
        connection = self._connected()
        if self._closed.is_set():
            raise StoreError(f"the datastore {self.server} has been closed", subject=self.server)
        headers = {"Accept": request.accept, "User-Agent": AGENT}
        authorisation = connection.authorisation()
        if authorisation:
            headers["Authorization"] = authorisation
        body = None
        if request.body is not None:
            body = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        url = connection.server + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        pool = connection.stream_pool if streaming else connection.pool
        response = pool.request(
            request.method,
            url,
            body=body,
            headers=headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=not streaming,
        )
        return response, authorisation

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if self._closed.is_set():
            return StoreUnavailable(f"the datastore {self.server} was closed meanwhile", subject=self.server)
        return StoreUnavailable(
            f"the Kubernetes API server {self.server} does not answer: {_reason(error)}",
            subject=self.server,
            hint=f"Check that it runs and that the address is right; it comes from {self.source}.",
        )

    # --- connection ----------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._pid != os.getpid():  # a child has one thread, and perhaps the lock of one that it has not
            self._lock, self._connection, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._connection is None:
                self._connection = connect(self.settings)
            return self._connection

    def _renewed(self, refused: str) -> bool:
        """Read the credentials again; tell whether they are others than those that were refused."""
        before = self._connected()
        if before.authorisation() != refused:
            return True  # another thread was quicker, or the file with the token was read again meanwhile
        now = connect(self.settings)
        if now.authorisation() == refused and now.configuration.cert_file is None:
            return False
        with self._lock:
            self._connection = now
        log.info("the credentials in %s were renewed", self.source)
        return True


def parsed(request: Request, body: bytes) -> dict[str, Any]:
    """Return the object in an answer. Raises StoreError when it holds none."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreError(
            f"the answer to {request} is not a Kubernetes object: {body[:80].decode(errors='replace')!r}",
            subject=request.path,
            hint="Something else than the API server answers at this address, a proxy perhaps.",
        )
    return found


def retry_after(request: Request, answer: Answer) -> float | None:
    """Return how many seconds the server asks to wait before the request is sent again; None when it does not.

    A write is sent again only after answers that say it was not begun: others may have been done.
    """
    again = answer.status in (429, 503) or (request.reading and answer.status >= 500)
    if not again or TOO_LARGE in answer.body:  # the server has waited for that revision already
        return None
    try:
        return max(0.0, float(answer.headers.get("Retry-After", "")))
    except ValueError:
        return None


def _lost(request: Request, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the answer to {request} was lost: {_reason(error)}",
        subject=request.path,
        hint="The write may have happened; reading tells.",
    )


def _never_sent(error: Exception) -> bool:
    """Tell whether a request was certainly never sent: no connection came about (datastore/kube/whole.py)."""
    from urllib3.exceptions import ClosedPoolError, ConnectTimeoutError, NewConnectionError, ProxyError

    return isinstance(error, NewConnectionError | ConnectTimeoutError | ProxyError | ClosedPoolError)


def _slow(error: Exception) -> bool:
    """Tell whether the time of the request was spent: sending it again would spend it once more."""
    from urllib3.exceptions import TimeoutError as Timeout

    return isinstance(error, Timeout)


def _reason(error: Exception) -> str:
    """Return a short cause without the objects of the HTTP library in it."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    # HTTPSConnection(host='h', port=1): Failed to establish a new connection: [Errno 111] Connection refused
    head, colon, tail = text.partition("): ")
    # None: Read timed out.
    return tail if colon and "(host=" in head else text.removeprefix("None: ")
