"""Where the API server and its credentials come from: kubeconfigs of all kinds, settings above them, renewed tokens."""

from __future__ import annotations

import base64
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from calico_ipam.datastore.kube import connection
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import KUBERNETES, Settings
from calico_ipam.errors import NotConfigured, Unauthorized
from calico_ipam.model.keys import ConfigKey
from tests.bad_api import BadApi, Behaviour, Received, answering, respond, status_body

NOTHING = answering(404, status_body(404, "NotFound", "no"))
CONFIG = ConfigKey()


def kubeconfig(server: str, user: dict[str, Any] | None = None, name: str = "c") -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": server}}],
            "users": [{"name": name, "user": user or {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


def store(**settings: Any) -> KubernetesStore:
    return KubernetesStore(Settings(KUBERNETES, "the test", calico_api_group="v1", **settings))


def asked(bad: BadApi, **settings: Any) -> Received:
    """Read something with the settings and return the request that came in."""
    with store(**settings) as opened:
        assert opened.read(CONFIG).entry(CONFIG) is None
    return bad.requests[-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


# --- kubeconfigs --------------------------------------------------------------------------------------------


def test_a_file_with_a_token(file: Path) -> None:
    with BadApi(NOTHING) as bad:
        file.write_text(kubeconfig(bad.url, {"token": "secret"}))
        request = asked(bad, kubeconfig=str(file))
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["user-agent"] == "calico-ipam"


def test_a_file_with_a_password(file: Path) -> None:
    with BadApi(NOTHING) as bad:
        file.write_text(kubeconfig(bad.url, {"username": "u", "password": "p"}))
        request = asked(bad, kubeconfig=str(file))
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"u:p").decode()


def test_inline_content_stands_above_everything(file: Path) -> None:
    with BadApi(NOTHING) as bad:
        inline = kubeconfig(bad.url, {"token": "inline"})
        request = asked(
            bad, kubeconfig=str(file), kubeconfig_inline=inline, k8s_api_token="other", k8s_api_endpoint="http://x:1"
        )
    assert request.headers["authorization"] == "Bearer inline"


def test_several_files_are_one(tmp_path: Path) -> None:
    with BadApi(NOTHING) as bad:
        first, second = tmp_path / "one", tmp_path / "two"
        whole = yaml.safe_load(kubeconfig(bad.url, {"token": "t"}))
        first.write_text(yaml.safe_dump({**whole, "users": []}))
        second.write_text(yaml.safe_dump({**whole, "clusters": [], "contexts": []}))
        request = asked(bad, kubeconfig=f"{tmp_path / 'absent'}:{first}:{second}:{first}")
    assert request.headers["authorization"] == "Bearer t"


def test_another_context(file: Path) -> None:
    with BadApi(NOTHING) as bad:
        here, there = (yaml.safe_load(kubeconfig(url, {}, name)) for url, name in ((bad.url, "a"), ("http://x:1", "b")))
        joined = {key: there[key] + here[key] for key in ("clusters", "users", "contexts")}
        file.write_text(yaml.safe_dump({**there, **joined}))
        asked(bad, kubeconfig=str(file), k8s_current_context="a")
        with store(kubeconfig=str(file), k8s_current_context="z") as opened, pytest.raises(NotConfigured, match="z"):
            opened.get(CONFIG)


def test_single_settings_stand_above_the_file(file: Path) -> None:
    with BadApi(NOTHING) as bad:
        file.write_text(kubeconfig("http://nowhere.invalid:1", {"token": "file"}))
        request = asked(bad, kubeconfig=str(file), k8s_api_endpoint=f"{bad.url}/api/v1/", k8s_api_token="setting")
    assert request.headers["authorization"] == "Bearer setting"
    assert request.path == "/apis/crd.projectcalico.org/v1/ipamconfigs/default"


def test_another_address_with_the_token_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewing a token, the official client would go back to the address of the file."""
    monkeypatch.setattr(connection, "TOKEN_SECONDS", -1.0)
    with BadApi(NOTHING) as bad:
        file.write_text(kubeconfig("http://nowhere.invalid:1", {"token": "file"}))
        with store(kubeconfig=str(file), k8s_api_endpoint=bad.url) as opened:
            for _ in range(3):
                assert opened.read(CONFIG).entry(CONFIG) is None
        assert [r.headers["authorization"] for r in bad.requests] == ["Bearer file"] * 3


def test_an_endpoint_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with BadApi(NOTHING) as bad:
        assert "authorization" not in asked(bad, k8s_api_endpoint=bad.url).headers


def test_the_file_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    with BadApi(NOTHING) as bad:
        (tmp_path / ".kube" / "config").write_text(kubeconfig(bad.url, {"token": "home"}))
        assert asked(bad).headers["authorization"] == "Bearer home"


def test_an_ipv6_host(file: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    with BadApi(NOTHING, "::1") as bad:
        file.write_text(kubeconfig(bad.url, {"token": "six"}))
        request = asked(bad, kubeconfig=str(file))
        assert request.headers["host"] == f"[::1]:{bad.port}"
        with store(kubeconfig=str(file)) as opened:
            assert opened.name == f"kubernetes://[::1]:{bad.port}"


# --- what cannot be used ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "{",
        "- a\n- b\n",
        "apiVersion: v1\nkind: Config\n",
        "current-context: c\ncontexts: []\n",
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: c}}]\nclusters: []\nusers: []\n",
        "current-context: [1]\ncontexts: 7\n",
        kubeconfig("https://h:1", {"client-certificate": "/absent/cert", "client-key": "/absent/key"}),
    ],
)
def test_a_malformed_file_is_named(file: Path, text: str) -> None:
    file.write_text(text)
    with store(kubeconfig=str(file)) as opened, pytest.raises(NotConfigured) as caught:
        opened.get(CONFIG)
    assert str(file) in f"{caught.value} {caught.value.hint}"
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with store(kubeconfig=str(tmp_path / "nope")) as opened, pytest.raises(NotConfigured, match=r"nope does not exist"):
        opened.get(CONFIG)


def test_a_file_that_nobody_may_read_is_named(tmp_path: Path) -> None:
    with store(kubeconfig=str(tmp_path)) as opened, pytest.raises(NotConfigured, match=r"cannot be used: .*directory"):
        opened.get(CONFIG)


def test_nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with store() as opened, pytest.raises(NotConfigured, match="no Kubernetes API server is configured") as caught:
        opened.get(CONFIG)
    assert "KUBECONFIG" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"k8s_cert_file": "/absent.pem", "k8s_key_file": "/absent.key"},
            "client certificate /absent.pem cannot be read",
        ),
        ({"k8s_ca_file": "/absent.ca"}, "certificate authority /absent.ca cannot be read"),
        ({"k8s_cert_file": __file__}, "a client certificate is given but no client key"),
        ({"k8s_key_file": __file__}, "a client key is given but no client certificate"),
    ],
)
def test_certificate_files(settings: dict[str, str], text: str) -> None:
    with store(k8s_api_endpoint="https://h:1", **settings) as opened, pytest.raises(NotConfigured, match=text):
        opened.get(CONFIG)


# --- credential plugins -------------------------------------------------------------------------------------


def plugin(path: Path, script: str) -> dict[str, Any]:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}


def credential(token: str) -> str:
    return '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"' + token + '"}}'


def test_a_plugin_gives_the_token(file: Path, tmp_path: Path) -> None:
    with BadApi(NOTHING) as bad:
        file.write_text(kubeconfig(bad.url, plugin(tmp_path / "p", f"echo '{credential('made')}'")))
        assert asked(bad, kubeconfig=str(file)).headers["authorization"] == "Bearer made"


@pytest.mark.parametrize(
    ("script", "text"),
    [("echo 'log in first' >&2; exit 1", "log in first"), ("echo '{}'", "missing key"), (":", "decode")],
)
def test_a_plugin_that_fails_is_told(
    file: Path, tmp_path: Path, script: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The official client only logs it, and the API server would say no more than 'unauthorized'."""
    file.write_text(kubeconfig("http://h:1", plugin(tmp_path / "p", script)))
    with store(kubeconfig=str(file)) as opened, pytest.raises(NotConfigured, match=text) as caught:
        opened.get(CONFIG)
    assert "gives no credentials" in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_plugin_that_is_not_there_is_told(file: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/absent/plugin"}}
    file.write_text(kubeconfig("http://h:1", user))
    with store(kubeconfig=str(file)) as opened, pytest.raises(NotConfigured, match="/absent/plugin"):
        opened.get(CONFIG)


# --- renewed credentials ------------------------------------------------------------------------------------


def wanting(token: str) -> Behaviour:
    """Serve only who has this token."""
    refusal = status_body(401, "Unauthorized", "Unauthorized")

    def serve(client: socket.socket, request: Received) -> None:
        if request.headers.get("authorization") == f"Bearer {token}":
            NOTHING(client, request)
        else:
            respond(client, 401, refusal)

    return serve


@pytest.mark.parametrize("by_file", [False, True])
def test_a_token_renewed_in_place_is_read_again(file: Path, tmp_path: Path, by_file: bool) -> None:
    token = tmp_path / "token"

    def write(text: str) -> None:
        token.write_text(text)
        file.write_text(kubeconfig(bad.url, {"tokenFile": str(token)} if by_file else {"token": text}))

    with BadApi(wanting("old")) as bad:
        write("old")
        with store(kubeconfig=str(file)) as opened:
            assert opened.read(CONFIG).entry(CONFIG) is None
            bad.behaviour = wanting("new")
            write("new")
            assert opened.read(CONFIG).entry(CONFIG) is None
            assert [r.headers["authorization"] for r in bad.requests] == ["Bearer old", "Bearer old", "Bearer new"]
            bad.behaviour = wanting("another")
            with pytest.raises(Unauthorized, match="connection is unauthorized: Unauthorized") as caught:
                opened.read(CONFIG)
            assert len(bad.requests) == 4  # the same token is not tried twice
    assert str(file) in caught.value.hint
    assert "Bearer" not in f"{caught.value}{caught.value.hint}"


def test_nothing_secret_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), BadApi(wanting("x")) as bad:
        file.write_text(kubeconfig(bad.url, {"token": "very-secret"}))
        with store(kubeconfig=str(file)) as opened, pytest.raises(Unauthorized):
            opened.get(CONFIG)
    assert "very-secret" not in caplog.text
