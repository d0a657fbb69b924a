"""Our definitions of the custom resources against upstream's: an object that one accepts the other accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube_tools import V1, KubeServer
from tests.shared import REPOSITORY, SHARED

OURS = REPOSITORY / "gc" / "deploy" / "crds"
THEIRS = SHARED / "crds"


def definitions(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for file in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            found[document["metadata"]["name"]] = document
    assert found, f"{folder} holds no definitions"
    return found


def fields(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact of a schema by its place; what is written for people only is left out."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            prose = key == "description" and isinstance(value, str)
            if prose or key in ("x-kubernetes-validations", "annotations"):
                continue  # rules are compared by what they refuse
            yield from fields(value, f"{path}.{key}")
    elif isinstance(schema, list):
        yield path, sorted(map(str, schema)) if all(isinstance(item, str) for item in schema) else None
        for number, item in enumerate(schema):
            if not isinstance(item, str):
                yield from fields(item, f"{path}[{number}]")
    else:
        yield path, schema


def test_the_same_resources_are_defined() -> None:
    assert set(definitions(OURS)) == set(definitions(THEIRS))


@pytest.mark.parametrize("name", sorted(definitions(THEIRS)) if THEIRS.is_dir() else ["absent"])
def test_every_field_is_as_upstreams(name: str) -> None:
    if not THEIRS.is_dir():
        pytest.skip(f"{THEIRS} is absent")
    ours, theirs = (dict(fields(definitions(folder)[name])) for folder in (OURS, THEIRS))
    assert ours == theirs


def test_every_definition_says_what_it_is_for() -> None:
    for name, document in definitions(OURS).items():
        for version in document["spec"]["versions"]:
            assert version["schema"]["openAPIV3Schema"].get("description"), name


# --- what is refused ----------------------------------------------------------------------------------------

POOL = {"cidr": "10.0.0.0/16", "ipipMode": "Never", "vxlanMode": "Never"}
BALANCER = {**POOL, "allowedUses": ["LoadBalancer"]}
#: spec of a pool, and whether it is accepted
POOLS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, False),
    (POOL, True),
    ({"cidr": "10.0.0.0/16"}, True),
    ({"cidr": "fd00::/64", "blockSize": 122}, True),
    ({**POOL, "cidr": "10.0.0.1/16"}, False),
    ({**POOL, "cidr": "nonsense"}, False),
    ({**POOL, "cidr": "169.254.0.0/24"}, False),
    ({**POOL, "cidr": "169.0.0.0/8"}, False),
    ({**POOL, "cidr": "fe80::/64"}, False),
    ({**POOL, "cidr": "fe00::/8"}, False),
    ({**POOL, "cidr": "febf::/64"}, False),
    ({**POOL, "ipipMode": "Always"}, True),
    ({**POOL, "vxlanMode": "CrossSubnet"}, True),
    ({**POOL, "ipipMode": "Always", "vxlanMode": "Always"}, False),
    ({**POOL, "ipipMode": "Sometimes"}, False),
    ({"cidr": "fd00::/64", "ipipMode": "Always"}, False),
    ({"cidr": "fd00::/64", "vxlanMode": "Always"}, True),
    ({**POOL, "blockSize": 0}, True),
    ({**POOL, "blockSize": 20}, True),
    ({**POOL, "blockSize": 19}, False),
    ({**POOL, "blockSize": 32}, True),
    ({**POOL, "blockSize": 33}, False),
    ({"cidr": "fd00::/64", "blockSize": 115}, False),
    ({"cidr": "fd00::/64", "blockSize": 116}, True),
    ({**POOL, "cidr": "10.0.0.0/27"}, False),
    ({**POOL, "cidr": "10.0.0.0/26"}, True),
    ({**POOL, "cidr": "10.0.0.0/27", "disabled": True}, True),
    ({**POOL, "cidr": "10.0.0.0/28", "blockSize": 28}, True),
    ({"cidr": "fd00::/123"}, False),
    ({"cidr": "fd00::/122"}, True),
    ({**POOL, "nodeSelector": "global()"}, False),
    (
        {**POOL, "nodeSelector": "zone == 'a'", "namespaceSelector": "team == 'b'"},
        True,
    ),  # though its default is tunnels, too
    ({**POOL, "allowedUses": ["Workload"], "namespaceSelector": "team == 'b'"}, True),
    ({**POOL, "allowedUses": ["Workload"], "namespaceSelector": "global()"}, False),
    ({**POOL, "allowedUses": ["Workload", "Tunnel"], "namespaceSelector": "team == 'b'"}, False),
    ({**POOL, "allowedUses": ["Tunnel"], "namespaceSelector": ""}, True),
    ({**POOL, "allowedUses": ["Holiday"]}, False),
    ({**POOL, "allowedUses": ["Workload", "Workload"]}, False),
    ({**POOL, "allowedUses": []}, True),
    (BALANCER, True),
    ({**BALANCER, "allowedUses": ["LoadBalancer", "Workload"]}, False),
    ({**BALANCER, "vxlanMode": "Always"}, False),
    ({**BALANCER, "ipipMode": "Always"}, False),
    ({**BALANCER, "disableBGPExport": True}, False),
    ({**BALANCER, "nodeSelector": "zone == 'a'"}, False),
    ({**BALANCER, "nodeSelector": "all()"}, True),
    ({**POOL, "assignmentMode": "Manual"}, True),
    ({**POOL, "assignmentMode": "Never"}, False),
)
CHANGES = (
    ({"cidr": "10.0.0.0/15"}, False),
    ({"blockSize": 25}, False),
    ({"disabled": True}, True),
    ({"nodeSelector": "zone == 'a'"}, True),
)


@pytest.fixture(scope="module")
def our_definitions() -> Iterator[KubeServer]:
    """An API server that serves our definitions of both groups."""
    with KubeServer("v1", "v3", definitions=OURS) as running:
        yield running


def _try(server: KubeServer, spec: dict[str, Any]) -> bool:
    body = {"apiVersion": V1, "kind": "IPPool", "metadata": {"name": "p"}, "spec": spec}
    status, answer = server.ask("POST", server.collection("ippools"), body)
    assert status in (201, 400, 422), answer
    if status == 201:
        server.delete(f"{server.collection('ippools')}/p")
    return status == 201


def test_pools_are_refused_alike(kube: KubeServer, our_definitions: KubeServer) -> None:
    for server in (kube, our_definitions):
        server.clear()
    for spec, accepted in POOLS:
        verdicts = _try(kube, spec), _try(our_definitions, spec)
        assert verdicts == (accepted, accepted), f"upstream's {verdicts[0]}, ours {verdicts[1]}: {spec}"


def test_changes_of_pools_are_refused_alike(kube: KubeServer, our_definitions: KubeServer) -> None:
    for server in (kube, our_definitions):
        server.clear()
        path = f"{server.collection('ippools')}/p"
        body = {"apiVersion": V1, "kind": "IPPool", "metadata": {"name": "p"}, "spec": {**POOL, "blockSize": 26}}
        server.create(server.collection("ippools"), body)
        for change, accepted in CHANGES:
            now = server.get(path)
            status, _ = server.ask("PUT", path, {**now, "spec": {**now["spec"], **change}})
            assert (status == 200) is accepted, (server.definitions, change)
