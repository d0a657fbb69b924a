"""Where connection settings come from: calico_ipam/datastore/{settings,config}.py (datastore §11, rulings 3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore import config
from calico_ipam.datastore.config import load_settings, open_datastore, open_plugin_datastore, plugin_settings
from calico_ipam.datastore.settings import DEFAULT_SQLITE_PATH, Settings
from calico_ipam.errors import InvalidInput, NotConfigured, StoreError
from calico_ipam.model.keys import ConfigKey, Handles

HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"


@pytest.fixture(autouse=True)
def no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the machine that runs the tests is none of their business."""
    monkeypatch.setattr(config, "DEFAULT_CONFIG_FILE", str(tmp_path / "absent" / "calicoctl.cfg"))


def from_environment(**environ: str) -> Settings:
    return load_settings(environ=environ)


def from_file(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    path = tmp_path / "calicoctl.cfg"
    path.write_text(text)
    return load_settings(environ=environ or {}, config_file=path)


# --- the environment -----------------------------------------------------------------------------------------


def test_nothing_configured_is_the_store_of_this_host_and_says_so() -> None:
    settings = from_environment()
    assert (settings.datastore_type, settings.sqlite_path, settings.fallback) == ("sqlite", DEFAULT_SQLITE_PATH, True)
    assert "no datastore is configured" in settings.source
    assert not from_environment(DATASTORE_TYPE="sqlite").fallback


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"DATASTORE_TYPE": "etcdv3"}, "etcdv3"),
        ({"DATASTORE_TYPE": "kubernetes", "ETCD_ENDPOINTS": "http://a:1"}, "kubernetes"),
        ({"ETCD_ENDPOINTS": "http://a:2379"}, "etcdv3"),
        ({"ETCD_ENDPOINTS": " , "}, "sqlite"),
        ({"ETCD_DISCOVERY_SRV": "example.org"}, "kubernetes"),
        ({"KUBECONFIG": "/k"}, "kubernetes"),
        ({"K8S_API_ENDPOINT": "https://a"}, "kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "kubernetes"),
        ({"SQLITE_PATH": "/x.db"}, "sqlite"),
        ({"DATASTORE_TYPE": "sqlite", "ETCD_ENDPOINTS": "http://a:1"}, "sqlite"),
        ({"CALICO_DATASTORE_TYPE": "etcdv3", "DATASTORE_TYPE": "sqlite"}, "etcdv3"),
        ({"K8S_CLIENT_QPS": "7"}, "sqlite"),
    ],
)
def test_detection(environ: dict[str, str], kind: str) -> None:
    assert load_settings(environ=environ).datastore_type == kind


def test_an_unknown_type_is_told_as_upstream_does() -> None:
    with pytest.raises(NotConfigured) as caught:
        from_environment(DATASTORE_TYPE="consul")
    assert str(caught.value) == "unknown datastore type: consul"
    assert "sqlite" in caught.value.hint


def test_every_variable_has_its_place() -> None:
    values = {
        "ETCD_ENDPOINTS": "https://a:1, https://b:2 ,",
        "ETCD_DISCOVERY_SRV": "srv",
        "ETCD_USERNAME": "user",
        "ETCD_PASSWORD": "secret-1",
        "ETCD_KEY_FILE": "key",
        "ETCD_CERT_FILE": "cert",
        "ETCD_CA_CERT_FILE": "ca",
        "KUBECONFIG": "a:b",
        "K8S_API_ENDPOINT": "https://c",
        "K8S_KEY_FILE": "kkey",
        "K8S_CERT_FILE": "kcert",
        "K8S_CA_FILE": "kca",
        "CALICO_K8SAPITOKEN": "secret-2",
        "K8S_INSECURE_SKIP_TLS_VERIFY": "T",
        "K8S_DISABLE_NODE_POLL": "1",
        "USE_POD_CIDR": "true",
        "K8S_CLIENT_QPS": "7.5",
        "K8S_CLIENT_BURST": "9",
        "K8S_CURRENT_CONTEXT": "ctx",
        "CALICO_API_GROUP": "projectcalico.org/v3",
        "SQLITE_PATH": "/x.db",
        "TLS_MIN_VERSION": "1.3",
        "TLS_CIPHER_SUITES": "x,y",
    }
    expected = Settings(
        "etcdv3",
        "the environment",
        sqlite_path="/x.db",
        etcd_endpoints=("https://a:1", "https://b:2"),
        etcd_discovery_srv="srv",
        etcd_username="user",
        etcd_password="secret-1",
        etcd_key_file="key",
        etcd_cert_file="cert",
        etcd_ca_cert_file="ca",
        kubeconfig="a:b",
        k8s_api_endpoint="https://c",
        k8s_key_file="kkey",
        k8s_cert_file="kcert",
        k8s_ca_file="kca",
        k8s_api_token="secret-2",
        k8s_insecure_skip_tls_verify=True,
        k8s_disable_node_poll=True,
        use_pod_cidr=True,
        k8s_client_qps=7.5,
        k8s_client_burst=9,
        k8s_current_context="ctx",
        calico_api_group="projectcalico.org/v3",
        tls_min_version="1.3",
        tls_cipher_suites="x,y",
    )
    assert load_settings(environ=values) == expected
    prefixed = {name if name.startswith("CALICO_K8S") else f"CALICO_{name}": value for name, value in values.items()}
    assert (
        load_settings(
            environ=prefixed
            | dict.fromkeys(values, "wrong")
            | {"CALICO_K8SAPITOKEN": "secret-2"}
            | {"CALICO_API_GROUP": "wrong"}
        )
        == expected
    )
    assert "secret" not in repr(expected)


def test_empty_typed_variables_count_as_unset() -> None:
    settings = from_environment(CALICO_K8S_CLIENT_QPS="", K8S_CLIENT_QPS="3", USE_POD_CIDR="", K8S_CLIENT_BURST="")
    assert (settings.k8s_client_qps, settings.use_pod_cidr, settings.k8s_client_burst) == (
        0.0,
        False,
        0,
    )  # the fallback
    settings = from_environment(CALICO_K8S_CLIENT_QPS="", K8S_CLIENT_QPS="3", USE_POD_CIDR="", KUBECONFIG="/k")
    assert (settings.k8s_client_qps, settings.use_pod_cidr) == (3.0, False)


@pytest.mark.parametrize(
    ("name", "value"), [("USE_POD_CIDR", "yes"), ("K8S_CLIENT_QPS", "fast"), ("K8S_CLIENT_BURST", "1.5")]
)
def test_values_of_the_wrong_type_are_named(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"the environment variable {name} has the value '{value}'") as caught:
        load_settings(environ={name: value})
    assert caught.value.hint


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALICO_DATASTORE_TYPE", "etcdv3")
    assert load_settings().datastore_type == "etcdv3"


# --- files ---------------------------------------------------------------------------------------------------


def test_a_file_is_taken_alone(tmp_path: Path) -> None:
    text = HEAD + "spec: {datastoreType: etcdv3, etcdEndpoints: 'https://a:1,https://b:2', etcdCACertFile: /ca}\n"
    settings = from_file(tmp_path, text, {"ETCD_USERNAME": "ignored", "DATASTORE_TYPE": "kubernetes"})
    assert settings.datastore_type == "etcdv3"
    assert settings.etcd_endpoints == ("https://a:1", "https://b:2")
    assert (settings.etcd_ca_cert_file, settings.etcd_username) == ("/ca", "")
    assert settings.source == f"the file {tmp_path / 'calicoctl.cfg'}"


def test_every_file_key_has_its_place(tmp_path: Path) -> None:
    settings = from_file(
        tmp_path,
        HEAD
        + """spec:
  datastoreType: sqlite
  sqlitePath: /x.db
  etcdDiscoverySrv: srv
  etcdUsername: u
  etcdPassword: p
  etcdKeyFile: kf
  etcdCertFile: cf
  etcdKey: k
  etcdCert: c
  etcdCACert: ca
  kubeconfig: kc
  kubeconfigInline: |
    apiVersion: v1
  k8sAPIEndpoint: https://c
  k8sKeyFile: kkf
  k8sCertFile: kcf
  k8sCAFile: kca
  k8sAPIToken: t
  k8sInsecureSkipTLSVerify: true
  k8sDisableNodePoll: true
  usePodCIDR: true
  k8sClientQPS: 7
  k8sClientBurst: 9
  K8SCURRENTCONTEXT: ctx
  calicoAPIGroup: g
""",
    )
    assert settings == Settings(
        "sqlite",
        settings.source,
        sqlite_path="/x.db",
        etcd_discovery_srv="srv",
        etcd_username="u",
        etcd_password="p",
        etcd_key_file="kf",
        etcd_cert_file="cf",
        etcd_key="k",
        etcd_cert="c",
        etcd_ca_cert="ca",
        kubeconfig="kc",
        kubeconfig_inline="apiVersion: v1\n",
        k8s_api_endpoint="https://c",
        k8s_key_file="kkf",
        k8s_cert_file="kcf",
        k8s_ca_file="kca",
        k8s_api_token="t",
        k8s_insecure_skip_tls_verify=True,
        k8s_disable_node_poll=True,
        use_pod_cidr=True,
        k8s_client_qps=7.0,
        k8s_client_burst=9,
        k8s_current_context="ctx",
        calico_api_group="g",
    )


def test_json_is_a_file_too_and_an_empty_one_means_kubernetes(tmp_path: Path) -> None:
    text = '{"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": {"kubeconfig": null}}'
    assert from_file(tmp_path, text).datastore_type == "kubernetes"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: CalicoAPIConfig\n", "invalid config file: unknown APIVersion ''"),
        ("apiVersion: v2\nkind: CalicoAPIConfig\n", "invalid config file: unknown APIVersion 'v2'"),
        (
            "apiVersion: projectcalico.org/v3\nkind: Node\n",
            "invalid config file: expected kind 'CalicoAPIConfig', got 'Node'",
        ),
        (HEAD + "spec: {etcdEndpoint: x}\n", 'failed to parse config as YAML/JSON: unknown field "spec.etcdEndpoint"'),
        (HEAD + "extra: 1\n", 'failed to parse config as YAML/JSON: unknown field "extra"'),
        (HEAD + "spec: [1]\n", "failed to parse config as YAML/JSON: spec must be a mapping"),
        ("- a\n", "failed to parse config as YAML/JSON: the file holds no settings"),
        ("", "failed to parse config as YAML/JSON: the file holds no settings"),
        (HEAD + "spec: {kubeconfig: 5}\n", "spec.kubeconfig has the value 5: not a text"),
        (HEAD + "spec: {usePodCIDR: 'true'}\n", "spec.usePodCIDR has the value 'true': not true or false"),
        (HEAD + "spec: {k8sClientBurst: 1.5}\n", "spec.k8sClientBurst has the value 1.5: not a whole number"),
        (HEAD + "spec: {k8sClientQPS: true}\n", "spec.k8sClientQPS has the value True: not a number"),
    ],
)
def test_bad_files_are_told(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_file(tmp_path, text)
    assert str(caught.value) == f"syntax error in {tmp_path / 'calicoctl.cfg'}: {error}"


def test_broken_yaml_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="failed to parse config as YAML/JSON: ") as caught:
        from_file(tmp_path, "a: [\nb: }")
    assert "\n" not in str(caught.value)


def test_a_missing_file_matters_only_if_it_was_asked_for(tmp_path: Path) -> None:
    assert load_settings(environ={}, config_file=config.DEFAULT_CONFIG_FILE).fallback
    with pytest.raises(NotConfigured) as caught:
        load_settings(environ={}, config_file=tmp_path / "none.cfg")
    assert str(caught.value) == f"Error reading config file: {tmp_path / 'none.cfg'}"
    with pytest.raises(NotConfigured, match="Error reading config file"):
        load_settings(environ={}, config_file=tmp_path)


def test_the_default_file_hides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "default.cfg"
    path.write_text(HEAD + "spec: {datastoreType: kubernetes}\n")
    monkeypatch.setattr(config, "DEFAULT_CONFIG_FILE", str(path))
    assert load_settings(environ={"DATASTORE_TYPE": "etcdv3"}).datastore_type == "kubernetes"
    assert load_settings("sqlite:///x.db", environ={}).sqlite_path == "/x.db"


# --- URLs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///var/lib/calico/ipam/ipam.db", {"datastore_type": "sqlite", "sqlite_path": DEFAULT_SQLITE_PATH}),
        ("sqlite:///a%20b.db", {"sqlite_path": "/a b.db"}),
        ("etcd://h1:2379, h2:2379", {"datastore_type": "etcdv3"}),
        ("etcd+http://h1:2379,h2:2379/", {"etcd_endpoints": ("http://h1:2379", "http://h2:2379")}),
        ("etcd+https://h1:2379", {"etcd_endpoints": ("https://h1:2379",)}),
        ("kubernetes://", {"datastore_type": "kubernetes", "kubeconfig": "/from/environment"}),
        ("kubernetes:///my/config", {"kubeconfig": "/my/config"}),
    ],
)
def test_urls(url: str, expected: dict[str, Any]) -> None:
    environ = {"ETCD_USERNAME": "u", "ETCD_PASSWORD": "p", "KUBECONFIG": "/from/environment"}
    settings = load_settings(url, environ=environ)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert (settings.etcd_username, settings.fallback, settings.source) == ("u", False, url)
    if url.startswith("etcd:"):
        assert [each.rpartition("/")[2] for each in settings.etcd_endpoints] == ["h1:2379", "h2:2379"]


@pytest.mark.parametrize(
    "url",
    [
        "/var/lib/x.db",
        "sqlite://x.db",
        "sqlite:///",
        "sqlite://",
        "etcd://",
        "etcd://u:p@h:1",
        "etcd://h/x",
        "redis://x",
    ],
)
def test_bad_urls_are_told(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_settings(url, environ={})
    assert caught.value.hint
    assert "u:p" not in str(caught.value)


# --- plugins -------------------------------------------------------------------------------------------------


def test_a_plugin_never_falls_back_to_a_store_of_its_own() -> None:
    assert plugin_settings({}, {}).datastore_type == "kubernetes"
    assert plugin_settings({"sqlite_path": "/x.db"}, {"SQLITE_PATH": "/y.db"}).datastore_type == "kubernetes"
    assert plugin_settings({"etcd_endpoints": "http://a:1"}, {}).datastore_type == "etcdv3"
    # With nothing configured it is the API server that cannot be found, at the first word to it.
    with (
        open_plugin_datastore({}, {}) as store,
        pytest.raises(NotConfigured, match="no Kubernetes API server is configured"),
    ):
        store.get(ConfigKey())


@pytest.mark.parametrize(
    ("netconf", "environ"),
    [
        ({"datastore_type": "sqlite", "sqlite_path": "/x.db"}, {}),
        ({"datastore_type": "sqlite", "sqlite_path": "/x.db"}, {"DATASTORE_TYPE": "etcdv3", "SQLITE_PATH": "/y.db"}),
        ({"datastore_type": "", "sqlite_path": None}, {"DATASTORE_TYPE": "sqlite", "SQLITE_PATH": "/x.db"}),
        ({"datastore_type": "etcdv3"}, {"CALICO_DATASTORE_TYPE": "sqlite", "SQLITE_PATH": "/x.db"}),
    ],
)
def test_a_plugin_uses_the_embedded_store_when_it_is_named(netconf: dict[str, Any], environ: dict[str, str]) -> None:
    settings = plugin_settings(netconf, environ)
    assert (settings.datastore_type, settings.sqlite_path, settings.fallback) == ("sqlite", "/x.db", False)


def test_the_network_configuration_fills_the_settings() -> None:
    settings = plugin_settings(
        {
            "datastore_type": "kubernetes",
            "etcd_discovery_srv": "s",
            "etcd_key_file": "k",
            "etcd_cert_file": "c",
            "etcd_ca_cert_file": "ca",
            "kubernetes": {"kubeconfig": "/k", "k8s_api_root": "https://r"},
            "policy": {"k8s_auth_token": "t"},
            "calico_api_group": "g",
            "qps": 2.5,
            "burst": 4,
        },
        {"ETCD_USERNAME": "gap", "KUBECONFIG": "/covered", "CALICO_K8S_CLIENT_BURST": "8"},
    )
    assert settings == Settings(
        "kubernetes",
        "the network configuration",
        etcd_discovery_srv="s",
        etcd_key_file="k",
        etcd_cert_file="c",
        etcd_ca_cert_file="ca",
        etcd_username="gap",
        kubeconfig="/k",
        k8s_api_endpoint="https://r",
        k8s_api_token="t",
        calico_api_group="g",
        k8s_client_qps=2.5,
        k8s_client_burst=8,
    )


@pytest.mark.parametrize("netconf", [{"kubernetes": "x", "policy": None}, {"kubernetes": {"kubeconfig": None}}])
def test_odd_network_configurations_are_no_crash(netconf: dict[str, Any]) -> None:
    assert plugin_settings(netconf, {}).kubeconfig == ""


# --- opening -------------------------------------------------------------------------------------------------


def test_open_by_url_settings_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "ipam.db"
    for opened in (
        open_datastore(f"sqlite://{path}", environ={}),
        open_datastore(Settings("sqlite", sqlite_path=str(path))),
        open_datastore(environ={"DATASTORE_TYPE": "sqlite", "SQLITE_PATH": str(path)}),
        open_plugin_datastore({"datastore_type": "sqlite", "sqlite_path": str(path)}, {}),
    ):
        with closing(opened):
            assert opened.name == f"sqlite://{path}"


def test_a_plugin_never_makes_a_store(tmp_path: Path) -> None:
    """Rulings 3: a mistyped path must not give a node a private, empty store."""
    path = tmp_path / "new" / "ipam.db"
    netconf = {"datastore_type": "sqlite", "sqlite_path": str(path)}
    with pytest.raises(StoreError, match=f"^the datastore file {path} does not exist$") as found:
        open_plugin_datastore(netconf, {})
    assert found.value.hint == f"Correct its path, or make the store: ipamctl --datastore sqlite://{path} init"
    assert not path.parent.exists()
    path.parent.mkdir()
    path.touch()
    with pytest.raises(StoreError, match=r"is empty$"):
        open_plugin_datastore(netconf, {})
    assert path.stat().st_size == 0
    with pytest.raises(InvalidInput, match=r"^sqlite_path 'ipam.db' is no absolute path$"):
        open_plugin_datastore({}, {"DATASTORE_TYPE": "sqlite", "SQLITE_PATH": "ipam.db"})


def test_a_store_that_vanishes_is_told_by_plugins_too(tmp_path: Path) -> None:
    path = tmp_path / "ipam.db"
    open_datastore(f"sqlite://{path}", environ={}).close()
    with closing(open_plugin_datastore({"datastore_type": "sqlite", "sqlite_path": str(path)}, {})) as store:
        path.unlink()
        with pytest.raises(StoreError, match="has been removed while it was in use"):
            store.list(Handles())


def test_the_fallback_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ipam.db"
    fallback = Settings("sqlite", "nothing", fallback=True, sqlite_path=str(path))
    monkeypatch.setattr(config, "load_settings", lambda *_, **__: fallback)
    with caplog.at_level(logging.WARNING), open_datastore(environ={}):
        assert f"no datastore is configured: using the file {path} of this host" in caplog.text


def test_kubernetes_is_opened_without_a_word_to_the_server() -> None:
    with open_datastore("kubernetes://", environ={"K8S_API_ENDPOINT": "https://api.invalid:6443"}) as store:
        assert store.name == "kubernetes://api.invalid:6443"
        assert not store.capabilities.atomic
