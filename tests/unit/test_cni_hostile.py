"""Annotations and configurations that nobody would write: one document comes out, and nothing half done stays."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from calico_cni import schema
from calico_cni.protocol import Response
from tests.pod_bench import STORES, PodBench

ROUNDS = 60
FEATURES = {"ip_addrs_no_ipam": True, "floating_ips": True}
ANNOTATIONS = (
    *("ipv4pools", "ipv6pools", "ipFamilies", "ipAddrs", "ipAddrsNoIpam", "floatingIPs", "allowedSourcePrefixes"),
    *("hwAddr", "podIP", "podIPs", "containerID"),
)
TEXTS = (
    *("", "[]", '[""]', "[null]", "null", "{}", "5", "true", '"x"', "[1]", "[[]]", '[{"a":1}]', "[", "nope", "1e999"),
    *('["10.65.0.9"]', '["10.65.0.9","10.65.0.10"]', '["10.65.0.9","fd00:65::9"]', '["::ffff:10.65.0.9"]'),
    *('["fe80::1%eth0"]', '["10.65.0.0/24"]', '["0.0.0.0/0"]', '["pool4"]', '["pool4","nope"]', '["fd00:65::/64"]'),
    *('["IPv4"]', '["IPv6"]', '["IPv4","IPv6","IPv4"]', '["ipv4"]', "02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "-5"),
    *('["\\ud800"]', "\ud800x", "\0", "[" * 3000, f'["{"a" * 5000}"]', '\ufeff["10.65.0.9"]', ' ["10.65.0.9"] '),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1 << 31,
        1 << 63,
        1.5,
        1e30,
        "",
        "x",
        "true",
        "k8s",
        "calico-ipam",
        "host-local",
        "9.9",
    ),
    *("/nope", "a" * 300, "\0", "\ud800", [], [1], ["x"], [None], [[]], ["10.65.0.9"], {}, {"a": 1}, {"type": "x"}),
)
VERBS = ("ADD", "ADD", "ADD", "DEL", "CHECK", "GC", "STATUS")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of a configuration makes its file outside the checkout."""
    monkeypatch.chdir(tmp_path)


def check(response: Response) -> None:
    """Nothing but one document comes out, and no defect shows."""
    if response.exit_code == 0 and not response.stdout:
        return
    found = json.loads(response.stdout)
    if response.exit_code:
        assert isinstance(found["code"], int) and found["msg"] and "panicked" not in found["msg"], found


def left(bench: PodBench) -> list[object]:
    records = [] if bench.on_kubernetes else bench.records()
    return [*bench.addresses(), *bench.handles(), *records, *bench.dataplane.pairs]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_annotations(seed: int, tmp_path: Path) -> None:
    choose = Random(seed)
    bench = PodBench(tmp_path, choose.choice(STORES)).prepare()
    pod: dict[str, Any] = {name: choose.choice(TEXTS) for name in choose.sample(ANNOTATIONS, choose.randint(1, 3))}
    bench.pod(**pod)
    namespace = {name: choose.choice(TEXTS) for name in choose.sample(ANNOTATIONS[:3], choose.randint(0, 1))}
    bench.namespace("test", None, **namespace)
    changes: dict[str, Any] = {"feature_control": FEATURES if choose.random() < 0.7 else {}}
    response = bench.call("ADD", **changes, cniVersion=choose.choice(("0.1.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")))
    check(response)
    assert response.exit_code == 0 or not left(bench), (pod, response.stdout)
    for _ in range(2):
        gone = bench.call("DEL", **changes)
        assert (gone.exit_code, gone.stdout) == (0, ""), (pod, gone.stdout)
    assert not left(bench)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_configurations(seed: int, tmp_path: Path) -> None:
    choose = Random(seed)
    bench = PodBench(tmp_path, choose.choice(STORES)).prepare()
    changes: dict[str, Any] = {"cniVersion": "1.1.0"}
    for key in choose.sample(sorted(schema.NETCONF.fields), choose.randint(1, 3)):
        kind = schema.NETCONF.fields[key]
        value = choose.choice(VALUES)
        if isinstance(kind, schema.Struct) and choose.random() < 0.7:
            value = {choose.choice(sorted(kind.fields)): value}
            value |= {"type": "calico-ipam"} if key == "ipam" and "type" not in value else {}
        changes[key.upper() if choose.random() < 0.1 else key] = value
    verb = choose.choice(VERBS)
    response = bench.call(verb, **changes)
    check(response)
    assert response.exit_code == 0 or verb != "ADD" or not left(bench), (changes, response.stdout)
    assert verb == "ADD" or response.exit_code or not response.stdout
