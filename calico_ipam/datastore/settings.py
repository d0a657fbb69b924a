"""Connection settings and where each may be written: environment, file, network configuration (datastore §11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from calico_ipam.errors import InvalidInput, NotConfigured

ETCD = "etcdv3"
KUBERNETES = "kubernetes"
SQLITE = "sqlite"
TYPES = (ETCD, KUBERNETES, SQLITE)

DEFAULT_SQLITE_PATH = "/var/lib/calico/ipam/ipam.db"

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the datastore is and how to reach it. Empty text, 0 and False mean "not set".

    ``source`` says for people where the settings come from. ``fallback``: nothing was configured at all, so it is the
    embedded store of this host; whoever talks to a person must say so.
    """

    datastore_type: str
    source: str = "settings"
    fallback: bool = False

    sqlite_path: str = DEFAULT_SQLITE_PATH

    etcd_endpoints: tuple[str, ...] = ()
    etcd_discovery_srv: str = ""
    etcd_username: str = ""
    etcd_password: str = field(default="", repr=False)
    etcd_key_file: str = ""
    etcd_cert_file: str = ""
    etcd_ca_cert_file: str = ""
    etcd_key: str = field(default="", repr=False)  #: inline PEM, as the next two
    etcd_cert: str = field(default="", repr=False)
    etcd_ca_cert: str = field(default="", repr=False)

    kubeconfig: str = ""  #: a path, or several joined by colons
    kubeconfig_inline: str = field(default="", repr=False)  #: content; beats ``kubeconfig`` and all overrides
    k8s_api_endpoint: str = ""
    k8s_key_file: str = ""
    k8s_cert_file: str = ""
    k8s_ca_file: str = ""
    k8s_api_token: str = field(default="", repr=False)
    k8s_insecure_skip_tls_verify: bool = False
    k8s_disable_node_poll: bool = False
    use_pod_cidr: bool = False
    k8s_client_qps: float = 0.0  #: requests per second; 0 means 5
    k8s_client_burst: int = 0  #: requests at once; 0 means 100
    k8s_current_context: str = ""
    calico_api_group: str = ""

    tls_min_version: str = ""  #: 1.2 or 1.3, for etcd
    tls_cipher_suites: str = ""


@dataclass(frozen=True, slots=True)
class _Setting:
    """Where one field of Settings may be written."""

    name: str  #: of the field of Settings
    variables: tuple[str, ...] = ()  #: environment variables in order, each looked for with CALICO_ in front first
    file_key: str = ""
    kind: Literal["text", "list", "bool", "float", "int"] = "text"


def split_endpoints(text: str) -> tuple[str, ...]:
    """Return the endpoints of a comma list; blanks around them are no part of them (datastore §14.14)."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


_ALL = (
    _Setting("datastore_type", ("DATASTORE_TYPE",), "datastoreType"),
    _Setting("sqlite_path", ("SQLITE_PATH",), "sqlitePath"),
    _Setting("etcd_endpoints", ("ETCD_ENDPOINTS",), "etcdEndpoints", "list"),
    _Setting("etcd_discovery_srv", ("ETCD_DISCOVERY_SRV",), "etcdDiscoverySrv"),
    _Setting("etcd_username", ("ETCD_USERNAME",), "etcdUsername"),
    _Setting("etcd_password", ("ETCD_PASSWORD",), "etcdPassword"),
    _Setting("etcd_key_file", ("ETCD_KEY_FILE",), "etcdKeyFile"),
    _Setting("etcd_cert_file", ("ETCD_CERT_FILE",), "etcdCertFile"),
    _Setting("etcd_ca_cert_file", ("ETCD_CA_CERT_FILE",), "etcdCACertFile"),
    _Setting("etcd_key", (), "etcdKey"),
    _Setting("etcd_cert", (), "etcdCert"),
    _Setting("etcd_ca_cert", (), "etcdCACert"),
    _Setting("kubeconfig", ("KUBECONFIG",), "kubeconfig"),
    _Setting("kubeconfig_inline", (), "kubeconfigInline"),
    _Setting("k8s_api_endpoint", ("K8S_API_ENDPOINT",), "k8sAPIEndpoint"),
    _Setting("k8s_key_file", ("K8S_KEY_FILE",), "k8sKeyFile"),
    _Setting("k8s_cert_file", ("K8S_CERT_FILE",), "k8sCertFile"),
    _Setting("k8s_ca_file", ("K8S_CA_FILE",), "k8sCAFile"),
    # Upstream reads the first only, by a misspelt tag; its documentation promises the second (datastore §14.14).
    _Setting("k8s_api_token", ("K8SAPITOKEN", "K8S_API_TOKEN"), "k8sAPIToken"),
    _Setting("k8s_insecure_skip_tls_verify", ("K8S_INSECURE_SKIP_TLS_VERIFY",), "k8sInsecureSkipTLSVerify", "bool"),
    _Setting("k8s_disable_node_poll", ("K8S_DISABLE_NODE_POLL",), "k8sDisableNodePoll", "bool"),
    _Setting("use_pod_cidr", ("USE_POD_CIDR",), "usePodCIDR", "bool"),
    _Setting("k8s_client_qps", ("K8S_CLIENT_QPS",), "k8sClientQPS", "float"),
    _Setting("k8s_client_burst", ("K8S_CLIENT_BURST",), "k8sClientBurst", "int"),
    _Setting("k8s_current_context", ("K8S_CURRENT_CONTEXT",), "k8sCurrentContext"),
    _Setting("calico_api_group", ("CALICO_API_GROUP",), "calicoAPIGroup"),
    _Setting("tls_min_version", ("TLS_MIN_VERSION",)),
    _Setting("tls_cipher_suites", ("TLS_CIPHER_SUITES",)),
)
_BY_FILE_KEY = {setting.file_key.casefold(): setting for setting in _ALL if setting.file_key}


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that are in an environment. Raises InvalidInput for a value of the wrong type."""
    found: dict[str, Any] = {}
    for setting in _ALL:
        for variable in setting.variables:
            name = _present(variable, environ, typed=setting.kind not in ("text", "list"))
            if name is None:
                continue
            found[setting.name] = _from_text(setting, environ[name], f"the environment variable {name}")
            break
    return found


def _present(variable: str, environ: Mapping[str, str], *, typed: bool) -> str | None:
    """Return the name under which a variable is set: with the prefix, else without.

    An empty value of a typed variable counts as not set; an empty text with the prefix hides the plain one.
    """
    for name in (f"CALICO_{variable}", variable):
        if name in environ and (environ[name] or not typed):
            return name
    return None


def from_file(text: str, name: str) -> dict[str, Any]:
    """Return the settings that a configuration file (YAML or JSON) holds. Raises InvalidInput."""
    try:
        return _file_settings(text)
    except InvalidInput as error:
        raise InvalidInput(f"syntax error in {name}: {error}", subject=name, hint=error.hint) from None


def _file_settings(text: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2020-13-45, very deep nesting
        told = " ".join(str(error).split())
        raise InvalidInput(f"failed to parse config as YAML/JSON: {told}") from None
    if not isinstance(document, Mapping):
        raise InvalidInput("failed to parse config as YAML/JSON: the file holds no settings")
    top = {str(key).casefold(): value for key, value in document.items()}
    for key in document:
        if str(key).casefold() not in ("apiversion", "kind", "metadata", "spec"):
            raise _unknown_key(str(key))
    version, kind = top.get("apiversion") or "", top.get("kind") or ""
    if version != "projectcalico.org/v3":
        raise InvalidInput(
            f"invalid config file: unknown APIVersion '{version}'", hint="Write 'apiVersion: projectcalico.org/v3'."
        )
    if kind != "CalicoAPIConfig":
        raise InvalidInput(
            f"invalid config file: expected kind 'CalicoAPIConfig', got '{kind}'", hint="Write 'kind: CalicoAPIConfig'."
        )
    spec = top.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise InvalidInput("failed to parse config as YAML/JSON: spec must be a mapping")
    return {
        setting.name: value
        for key, given in spec.items()
        if (setting := _file_setting(str(key))) is not None and (value := _file_value(setting, given)) is not None
    }


def _file_setting(key: str) -> _Setting:
    setting = _BY_FILE_KEY.get(key.casefold())
    if setting is None:
        raise _unknown_key(f"spec.{key}")
    return setting


def _unknown_key(key: str) -> InvalidInput:
    return InvalidInput(
        f'failed to parse config as YAML/JSON: unknown field "{key}"', subject=key, hint="Correct or remove this key."
    )


def _file_value(setting: _Setting, given: Any) -> Any:
    where = f"spec.{setting.file_key}"
    match setting.kind, given:
        case _, None:
            return None
        case "bool", bool():
            return given
        case (("int" | "float"), bool()):
            raise _bad_value(setting, where, repr(given), "not a number")
        case "int", int():
            return given
        case "float", int() | float():
            return float(given)
        case (("text" | "list"), str()):
            return _from_text(setting, given, where)
    wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}.get(setting.kind, "a text")
    raise _bad_value(setting, where, repr(given), f"not {wanted}")


def _from_text(setting: _Setting, text: str, where: str) -> Any:
    try:
        match setting.kind:
            case "text":
                return text
            case "list":
                return split_endpoints(text)
            case "int":
                return int(text)
            case "float":
                return float(text)
    except ValueError:
        raise _bad_value(setting, where, repr(text), "not a number") from None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _bad_value(setting, where, repr(text), "not true or false")


def _bad_value(setting: _Setting, where: str, shown: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{where} has the value {shown}: {why}", subject=setting.name, hint="Correct the value or remove it."
    )


def completed(found: Mapping[str, Any], source: str) -> Settings:
    """Return settings with the type filled in as upstream detects it. Raises NotConfigured for an unknown type."""
    given = {name: value for name, value in found.items() if name != "datastore_type"}
    kind = str(found.get("datastore_type") or "") or (ETCD if found.get("etcd_endpoints") else KUBERNETES)
    if kind not in TYPES:
        raise NotConfigured(f"unknown datastore type: {kind}", subject=kind, hint=f"Choose one of {', '.join(TYPES)}.")
    settings = Settings(kind, source, **given)
    return settings if settings.sqlite_path else replace(settings, sqlite_path=DEFAULT_SQLITE_PATH)


#: network configuration key (dots go into objects) to the environment variable it stands for
_NETCONF = {
    "datastore_type": "DATASTORE_TYPE",
    "sqlite_path": "SQLITE_PATH",
    "etcd_endpoints": "ETCD_ENDPOINTS",
    "etcd_discovery_srv": "ETCD_DISCOVERY_SRV",
    "etcd_key_file": "ETCD_KEY_FILE",
    "etcd_cert_file": "ETCD_CERT_FILE",
    "etcd_ca_cert_file": "ETCD_CA_CERT_FILE",
    "kubernetes.kubeconfig": "KUBECONFIG",
    "kubernetes.k8s_api_root": "K8S_API_ENDPOINT",
    "policy.k8s_auth_token": "K8S_API_TOKEN",
    "calico_api_group": "CALICO_API_GROUP",
    "qps": "K8S_CLIENT_QPS",
    "burst": "K8S_CLIENT_BURST",
}


#: keys of a network configuration that the plugins' own client of Kubernetes takes, and not the datastore's
_CLUSTER = {
    "k8s_client_certificate": "k8s_cert_file",
    "k8s_client_key": "k8s_key_file",
    "k8s_certificate_authority": "k8s_ca_file",
    "k8s_auth_token": "k8s_api_token",
}


def of_cluster(netconf: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of the API server that knows the pods, for a plugin call (datastore §11, second client).

    They are those of the Kubernetes datastore with the credentials of the ``policy`` section over them.
    ``policy.k8s_api_root`` counts where ``kubernetes.k8s_api_root`` is not set. Raises InvalidInput.
    """
    found = from_environment(overlaid(netconf, environ)) | {"datastore_type": KUBERNETES}
    policy, kubernetes = netconf.get("policy") or {}, netconf.get("kubernetes") or {}
    if policy.get("k8s_api_root") and not kubernetes.get("k8s_api_root"):
        found["k8s_api_endpoint"] = str(policy["k8s_api_root"])
    found |= {name: str(policy[key]) for key, name in _CLUSTER.items() if policy.get(key)}
    return completed(found, "the network configuration")


def overlaid(netconf: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the non-empty values of a network configuration written over it (cni §4)."""
    merged = dict(environ)
    for path, variable in _NETCONF.items():
        value: Any = netconf
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value not in (None, "", 0):
            merged[variable] = str(value)
    return merged
