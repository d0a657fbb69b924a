"""A DEL whose configuration was stripped on the way (public report P27)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calico_cni.plugin.installed import _under
from calico_ipam.errors import NotConfigured
from tests.cni_bench import answer, failure
from tests.pod_bench import NETWORK, PodBench

STRIPPED: dict[str, Any] = dict.fromkeys(
    ("datastore_type", "nodename", "nodename_file_optional", "policy", "kubernetes", "ipam_lock_file")
)


@pytest.fixture
def bench(tmp_path: Path) -> PodBench:
    return PodBench(tmp_path, "kubernetes").prepare()


def install(bench: PodBench, **changes: Any) -> None:
    conflist = {"name": NETWORK, "cniVersion": "1.0.0", "plugins": [{"type": "other"}, bench.netconf(**changes)]}
    (bench.folder / "installed.conflist").write_text(json.dumps(conflist))


def test_the_installed_configuration_fills_the_gap(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    install(bench)
    for previous in (None, {"cniVersion": "0.3.1", "ips": []}):
        response = bench.call("DEL", **STRIPPED, prevResult=previous)
        assert (response.exit_code, response.stdout) == (0, "")
        assert bench.addresses() == [] and bench.pod_annotations()["podIP"] == ""
    assert bench.opened[-1]["kubernetes"] == {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}
    assert "the installed one is used" in bench.log()


def test_the_environment_comes_first(bench: PodBench) -> None:
    install(bench, datastore_type="etcdv3")
    bench.call("DEL", **STRIPPED, environ={"DATASTORE_TYPE": "kubernetes"})
    assert bench.opened[-1] == {}


def test_what_is_given_stays(bench: PodBench) -> None:
    install(bench, datastore_type="etcdv3")
    bench.call("DEL")
    assert bench.opened[-1]["datastore_type"] == "kubernetes"


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"plugins": [{"type": "other"}, 7]}', '{"plugins": 7}'])
def test_nothing_anywhere_is_an_error_to_be_repeated(bench: PodBench, content: str | None) -> None:
    """Never exit 0 without having released."""
    if content is not None:
        (bench.folder / "installed.conflist").write_text(content)
    answer(bench.call("ADD"))
    bench.open_error = NotConfigured("no Kubernetes API server is configured")
    found = failure(bench.call("DEL", **STRIPPED))
    assert found["code"] == 11 and "names no datastore" in found["details"]
    assert not bench.dataplane.pairs, "the sandbox's own link goes all the same"
    bench.open_error = None
    assert bench.call("DEL").exit_code == 0 and bench.addresses() == []


def test_sections_are_merged_only_where_they_are_of_one_kind() -> None:
    ipam = {"type": "host-local", "subnet": "10.0.0.0/8"}
    installed = {"name": "a", "mtu": 1400, "ipam": ipam, "cniVersion": "1.0.0"}
    same = _under({"name": "b", "ipam": {"type": "host-local"}}, installed)
    assert same == {"name": "b", "mtu": 1400, "ipam": ipam}
    other = _under({"name": "b", "ipam": {"type": "static"}, "MTU": 9000}, installed)
    assert other == {"name": "b", "MTU": 9000, "ipam": {"type": "static"}}
