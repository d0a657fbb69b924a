"""HTTP to the Kubernetes API: the official client for connection and credentials, bodies as raw JSON (ruling 21).

Nothing else imports ``kubernetes``: it costs 0.3 s, and its model objects lose unknown fields. Every request is
bounded, inside the caller's deadline; 429 and 5xx answers that say when to come back are asked again; reads are
repeated after a broken connection, writes are not: a write that was sent and never answered is OutcomeUnknown.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.errors import error_of
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import DeadlineExceeded, NotConfigured, OutcomeUnknown, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

#: longest time for one request, in seconds; a caller's deadline shortens it
REQUEST_SECONDS = 10.0
#: how often a request is repeated because the server says "later", or a read because the connection broke
LATER_TRIES = 10
BROKEN_TRIES = 3
JSON = "application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON

    @property
    def reading(self) -> bool:
        return self.method == "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class KubeApi:
    """A connection to one API server. Safe to share between threads; a child of ``fork`` connects anew."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._pid = 0

    @property
    def source(self) -> str:
        """Where the credentials come from, for messages."""
        return _source(self.settings)

    @property
    def server(self) -> str:
        return str(self._connected().configuration.host)

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]:
        """Do a request and return the object in the answer. Raises the errors of :mod:`calico_ipam.errors`."""
        for attempt in range(LATER_TRIES + 1):
            status, headers, body = self._once(request, deadline)
            if status < 300:
                return _object(request, body)
            wait = _retry_after(status, headers)
            if wait is None or attempt == LATER_TRIES or not _patient(wait, deadline):
                raise error_of(request, status, body, self.source)
            log.info("%s: the API server answers %d and asks to come back in %g s", request, status, wait)
            time.sleep(wait)
        raise AssertionError("the last try raises")

    def stream(self, request: Request, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the JSON lines of a watch that lasts at most ``seconds``; ends quietly when the server closes it."""
        from urllib3.exceptions import HTTPError

        answer = self._send(request, timeout=seconds, streaming=True)
        try:
            if answer.status >= 300:
                raise error_of(request, answer.status, answer.read(), self.source)
            pending = b""
            for chunk in answer.stream(amt=65536):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _object(request, line)
        except HTTPError as error:
            log.debug("%s ended: %s", request, error)
        finally:
            answer.close()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.rest_client.pool_manager.clear()

    # --- one request ---------------------------------------------------------------------------------------

    def _once(self, request: Request, deadline: Deadline | None) -> tuple[int, Mapping[str, str], bytes]:
        from urllib3.exceptions import HTTPError

        for attempt in range(BROKEN_TRIES):
            timeout = REQUEST_SECONDS if deadline is None else min(REQUEST_SECONDS, deadline.remaining())
            if timeout <= 0:
                raise DeadlineExceeded(
                    f"out of time before {request}", hint="The API server may be slow or unreachable."
                )
            try:
                answer = self._send(request, timeout=timeout)
                return answer.status, answer.headers, bytes(answer.data)
            except HTTPError as error:
                if not request.reading:
                    raise self._lost(request, error) from error
                over = deadline is not None and deadline.remaining() <= 0
                if attempt == BROKEN_TRIES - 1 or over or _refused(error):
                    raise self._unavailable(error) from error
                log.info("%s failed (%s); trying again", request, _reason(error))
        raise AssertionError("the last try raises")

    def _send(self, request: Request, *, timeout: float, streaming: bool = False) -> Any:
        from urllib3 import Timeout

        client = self._connected()
        configuration = client.configuration
        headers = {"Accept": JSON, "User-Agent": "calico-ipam"}
        token = configuration.get_api_key_with_prefix("authorization") or configuration.get_api_key_with_prefix(
            "BearerToken"
        )
        if token:
            headers["Authorization"] = token
        elif configuration.username:
            headers["Authorization"] = configuration.get_basic_auth_token()
        body = None
        if request.body is not None:
            body = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        url = configuration.host.rstrip("/") + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        return client.rest_client.pool_manager.request(
            request.method,
            url,
            body=body,
            headers=headers,
            # One byte a second must not keep a request alive: the total bounds the answer as a whole.
            timeout=Timeout(connect=min(5.0, timeout), read=timeout if not streaming else None, total=timeout),
            retries=False,
            preload_content=not streaming,
        )

    def _lost(self, request: Request, error: Exception) -> Exception:
        if _refused(error):
            return self._unavailable(error)
        return OutcomeUnknown(
            f"the answer to {request} was lost: {_reason(error)}",
            subject=request.path,
            hint="The write may have happened; reading tells.",
        )

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the Kubernetes API server {self.server} does not answer: {_reason(error)}",
            subject=self.server,
            hint=f"Check that it runs and that the address is right; it comes from {self.source}.",
        )

    # --- connection ----------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client = connect(self.settings)
                self._pid = os.getpid()
            return self._client


def connect(settings: Settings) -> Any:
    """Return the official client for the settings (datastore §11 'Kubeconfig resolution'). Raises NotConfigured."""
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    configuration = Configuration()
    try:
        _load(settings, configuration)
    except (ConfigException, YAMLError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotConfigured(
            f"the Kubernetes credentials in {_source(settings)} cannot be used: {_first_line(error)}",
            subject=_source(settings),
            hint="Repair the file, or name another by KUBECONFIG.",
        ) from error
    _override(settings, configuration)
    return ApiClient(configuration)


def _load(settings: Settings, configuration: Any) -> None:
    from kubernetes import config as official

    config: Any = official  # it ships types for its models only

    context = settings.k8s_current_context or None
    if settings.kubeconfig_inline:
        import yaml

        config.load_kube_config_from_dict(
            yaml.safe_load(settings.kubeconfig_inline), context=context, client_configuration=configuration
        )
    elif settings.kubeconfig:
        paths = _existing(settings.kubeconfig)
        config.load_kube_config(":".join(paths), context=context, client_configuration=configuration)
    elif settings.k8s_api_endpoint:
        configuration.host = settings.k8s_api_endpoint
    elif (Path.home() / ".kube" / "config").exists():
        config.load_kube_config(
            str(Path.home() / ".kube" / "config"), context=context, client_configuration=configuration
        )
    else:
        config.load_incluster_config(client_configuration=configuration)


def _existing(kubeconfig: str) -> list[str]:
    """Return the files of a path or a colon list; in a list missing ones are tolerated. Raises NotConfigured."""
    paths = list(dict.fromkeys(part for part in kubeconfig.split(":") if part))
    found = [path for path in paths if Path(path).exists()]
    if not found:
        raise NotConfigured(
            f"the kubeconfig {kubeconfig} does not exist",
            subject=kubeconfig,
            hint="Write it, or name another by KUBECONFIG or in the network configuration.",
        )
    return found


def _override(settings: Settings, configuration: Any) -> None:
    """Single settings stand above the file; an inline kubeconfig is taken as it is."""
    if settings.kubeconfig_inline:
        return
    if settings.k8s_api_endpoint:
        configuration.host = settings.k8s_api_endpoint
    if settings.k8s_cert_file:
        configuration.cert_file = settings.k8s_cert_file
    if settings.k8s_key_file:
        configuration.key_file = settings.k8s_key_file
    if settings.k8s_ca_file:
        configuration.ssl_ca_cert = settings.k8s_ca_file
    if settings.k8s_api_token:
        configuration.api_key = {"authorization": f"Bearer {settings.k8s_api_token}"}
        configuration.refresh_api_key_hook = None
    if settings.k8s_insecure_skip_tls_verify:
        configuration.verify_ssl = False


def _source(settings: Settings) -> str:
    if settings.kubeconfig_inline:
        return "the inline kubeconfig"
    if settings.kubeconfig:
        return f"the kubeconfig {settings.kubeconfig}"
    if settings.k8s_api_endpoint:
        return f"the setting of the API endpoint {settings.k8s_api_endpoint}"
    home = Path.home() / ".kube" / "config"
    return f"the kubeconfig {home}" if home.exists() else "the service account of this pod"


# --- answers -------------------------------------------------------------------------------------------------


def _object(request: Request, body: bytes) -> dict[str, Any]:
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


def _retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Return how long the server asks to wait; None when it does not (datastore §5)."""
    if status != 429 and status < 500:
        return None
    text = headers.get("Retry-After", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def _patient(wait: float, deadline: Deadline | None) -> bool:
    return deadline is None or wait < deadline.remaining()


def _refused(error: Exception) -> bool:
    """Tell whether a request was certainly never sent: no connection came about."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, SSLError

    return isinstance(error, NewConnectionError | ConnectTimeoutError | SSLError)


def _reason(error: Exception) -> str:
    """Return a short cause without the objects and addresses of the HTTP library in it."""
    text = _first_line(error)
    return text.rpartition("object at 0x")[2].partition(">: ")[2] or text


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
