"""Connection and credentials, as the official client makes them out of settings (datastore §11, ruling 21).

The only module that imports ``kubernetes``, and only when a connection is made: it costs about 0.3 s, most of it
pydantic, requests and oauthlib, which ``kubernetes.config`` needs however little of it is imported. Nothing of it but
``Configuration``, the loaders and the connection pool is used: its model objects lose unknown fields.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import NotConfigured, StoreUnavailable

_USER_CONFIG = Path(".kube") / "config"  # below the home directory


#: the official client is asked for its token at most so often, in seconds: it looks at the whole environment each time
TOKEN_SECONDS = 1.0


class Connection:
    """Where the API server is, a pool of connections to it, and what proves who we are."""

    def __init__(self, configuration: Any, pool: Any, stream_pool: Any, source: str) -> None:
        self.configuration = configuration
        self.pool = pool  #: urllib3.PoolManager
        self.stream_pool = stream_pool  #: the same for answers without an end
        # Taken now: renewing a token, the official client puts back the address that the file has.
        self.server = str(configuration.host).rstrip("/")
        self._source = source
        self._token: tuple[float, str] | None = None

    def authorisation(self) -> str:
        """Return the Authorization header. The official client reads rotated token files again where they expire.

        Raises StoreUnavailable while they cannot be read, NotConfigured for what no header may hold.
        """
        now = time.monotonic()
        if self._token is None or now - self._token[0] > TOKEN_SECONDS:
            token = self._read().strip()
            if not (token.isascii() and token.isprintable()):
                raise NotConfigured(
                    f"the credentials in {self._source} hold characters that no HTTP header may have",
                    subject=self._source,
                    hint="Write the token again, in one line.",
                )
            self._token = now, token
        return self._token[1]

    def _read(self) -> str:
        from kubernetes.config import ConfigException

        configuration = self.configuration
        try:
            token = configuration.get_api_key_with_prefix("authorization", alias="BearerToken")
        except (ConfigException, OSError) as error:
            raise StoreUnavailable(
                f"{self._source} cannot be read again: {_one_line(error)}",
                subject=self._source,
                hint="Whoever renews the token has perhaps not finished; look at the file if it stays so.",
            ) from error
        if not token and configuration.username:
            token = configuration.get_basic_auth_token()
        return str(token or "")

    def close(self) -> None:
        self.pool.clear()
        self.stream_pool.clear()


def connect(settings: Settings) -> Connection:
    """Return a connection for the settings; nothing is sent yet. Raises NotConfigured."""
    try:
        from kubernetes.client import ApiClient, Configuration
    except ModuleNotFoundError as error:
        raise NotConfigured(
            f"the Kubernetes datastore needs the package {str(error.name).partition('.')[0]}, which is not installed",
            hint="Install it: pip install 'calico-ipam[kubernetes]'.",
        ) from None
    from calico_ipam.datastore.kube.whole import bound_answers

    configuration = Configuration()
    _load(settings, configuration)
    _override(settings, configuration)
    _keep_overridden(settings, configuration)
    _check_files(settings, configuration)
    if not configuration.verify_ssl:
        _hush_warnings()
    pool, stream_pool = (ApiClient(configuration).rest_client.pool_manager for _ in range(2))
    for each in pool, stream_pool:
        bound_answers(each)
    return Connection(configuration, pool, stream_pool, credentials_source(settings))


def credentials_source(settings: Settings) -> str:
    """Return where the credentials come from, for people."""
    if settings.kubeconfig_inline:
        return "the inline kubeconfig"
    if settings.kubeconfig:
        return f"the kubeconfig {settings.kubeconfig}"
    if settings.k8s_api_endpoint:
        return f"the settings of {settings.k8s_api_endpoint}"
    home = _home_config()
    return f"the kubeconfig {home}" if home else "the service account of this pod"


def _home_config() -> Path | None:
    try:
        path = Path.home() / _USER_CONFIG
    except RuntimeError:  # an account without a home
        return None
    return path if path.exists() else None


def _load(settings: Settings, configuration: Any) -> None:
    """Fill the configuration from the first source that is set. Raises NotConfigured naming it."""
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    source = credentials_source(settings)
    with _complaints() as told:
        try:
            _load_first(settings, configuration)
        except NotConfigured:
            raise
        except (ConfigException, YAMLError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise NotConfigured(
                f"{source} cannot be used: {_one_line(error)}",
                subject=source,
                hint="Repair it, or name another kubeconfig by KUBECONFIG or in the network configuration.",
            ) from error
    proven = configuration.api_key or configuration.cert_file or configuration.username
    if told and not proven:
        # The official client only logs that a credential plugin failed, and goes on without credentials.
        raise NotConfigured(
            f"{source} gives no credentials: {told[-1]}",
            subject=source,
            hint="Run the command that its user section names by hand and see what it says.",
        )
    for complaint in told:
        logging.getLogger(__name__).warning("%s: %s", source, complaint)


def _load_first(settings: Settings, configuration: Any) -> None:
    from kubernetes import config as official

    config: Any = official  # it ships types for its models only
    context = settings.k8s_current_context or None
    if settings.kubeconfig_inline:
        import yaml

        content = yaml.safe_load(settings.kubeconfig_inline)
        config.load_kube_config_from_dict(content, context=context, client_configuration=configuration)
    elif settings.kubeconfig:
        paths = ":".join(_existing(settings.kubeconfig))
        config.load_kube_config(paths, context=context, client_configuration=configuration)
    elif settings.k8s_api_endpoint:
        configuration.host = settings.k8s_api_endpoint
    elif (home := _home_config()) is not None:
        config.load_kube_config(str(home), context=context, client_configuration=configuration)
    else:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise NotConfigured(
                f"no Kubernetes API server is configured, and this is not a pod with a service account: {error}",
                hint="Name a kubeconfig by KUBECONFIG or in the network configuration, or set K8S_API_ENDPOINT.",
            ) from None


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
        # A path of the API in it is upstream's old form of this setting.
        configuration.host = settings.k8s_api_endpoint.partition("/api/")[0]
    if settings.k8s_cert_file:
        configuration.cert_file = settings.k8s_cert_file
    if settings.k8s_key_file:
        configuration.key_file = settings.k8s_key_file
    if settings.k8s_ca_file:
        configuration.ssl_ca_cert, configuration.ca_cert_data = settings.k8s_ca_file, None
    if settings.k8s_api_token:
        configuration.api_key = {"authorization": f"Bearer {settings.k8s_api_token}"}
        configuration.refresh_api_key_hook = None
    if settings.k8s_insecure_skip_tls_verify:
        configuration.verify_ssl = False


def _keep_overridden(settings: Settings, configuration: Any) -> None:
    """Repeat the overrides whenever the official client reads its file again, which it does before every request."""
    refresh = configuration.refresh_api_key_hook
    if refresh is None:
        return

    def refresh_and_override(current: Any) -> None:
        refresh(current)
        _override(settings, current)
        if current.refresh_api_key_hook is not None:
            current.refresh_api_key_hook = refresh_and_override

    configuration.refresh_api_key_hook = refresh_and_override


def _check_files(settings: Settings, configuration: Any) -> None:
    """Refuse certificate files that cannot be read, by name; the HTTP library would only say 'No such file'."""
    for what, name in (
        ("certificate authority", configuration.ssl_ca_cert),
        ("client certificate", configuration.cert_file),
        ("client key", configuration.key_file),
    ):
        if not name:
            continue
        try:
            Path(name).open("rb").close()
        except OSError as error:
            raise NotConfigured(
                f"the {what} {name} cannot be read: {error.strerror}",
                subject=str(name),
                hint=f"It is named by {credentials_source(settings)}.",
            ) from None
    if bool(configuration.cert_file) != bool(configuration.key_file):
        given, missing = ("certificate", "key") if configuration.cert_file else ("key", "certificate")
        raise NotConfigured(f"a client {given} is given but no client {missing}", hint="Give both or neither.")


def _hush_warnings() -> None:
    """Somebody chose not to verify certificates; a warning per request on standard error helps nobody."""
    import urllib3

    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":
            self.told.append(record.getMessage().splitlines()[0])


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Collect what the official client logs on the root logger, which it does instead of raising."""
    root, collector = logging.getLogger(), _Collector()
    root.addHandler(collector)
    try:
        yield collector.told
    finally:
        root.removeHandler(collector)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
