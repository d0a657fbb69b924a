"""Endpoints of which only the addresses are looked at: the same as whole ones, from pods that say much more. Lists that
are not kept whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Delete
from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube.pods import ADDRESSES, endpoint_of
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles, Resources
from calico_ipam.model.resource import WORKLOAD_ENDPOINT
from tests.memory_kube import MemoryKubeStore


def pod(status: dict[str, Any], annotations: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "cart-1", "namespace": "shop", "annotations": annotations or {}, **metadata},
        "spec": {"nodeName": "n-1", "serviceAccountName": "default"},
        "status": status,
    }


@pytest.mark.parametrize(
    "document",
    [
        pod({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}),
        pod({"podIP": "10.0.0.1"}),
        pod({}, {"cni.projectcalico.org/podIPs": "10.0.0.2/32,fd00::2/128"}),
        pod({"podIP": "::ffff:10.0.0.1"}),
        pod({"podIP": "10.0.0.1", "phase": "Succeeded"}),
        pod({}),
    ],
)
def test_addresses_are_those_of_the_whole_endpoint(document: dict[str, Any]) -> None:
    whole, slim = endpoint_of(document), endpoint_of(document, ADDRESSES)
    assert (slim.name, slim.namespace) == (whole.name, whole.namespace) == ("n--1-k8s-cart--1-eth0", "shop")
    assert slim.spec == {"ipNetworks": whole.spec.get("ipNetworks", [])}


def test_a_bad_annotation_does_not_hide_an_address() -> None:
    document = pod({"podIP": "10.0.0.1"}, {"cni.projectcalico.org/allowedSourcePrefixes": "["})
    with pytest.raises(BadDocument):
        endpoint_of(document)
    assert endpoint_of(document, ADDRESSES).spec == {"ipNetworks": ["10.0.0.1/32"]}


@pytest.mark.parametrize("ip", ["300.1.1.1", "10.0.0.0/33", "x"])
def test_a_bad_address_is_refused(ip: str) -> None:
    with pytest.raises(BadDocument, match="failed to parse IP"):
        endpoint_of(pod({"podIP": ip}), ADDRESSES)


# --- lists --------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[MemoryKubeStore]:
    with MemoryKubeStore() as made:
        yield made


@pytest.mark.parametrize("only", [(), ADDRESSES])
def test_pods_that_are_no_endpoints_are_not_listed(
    store: MemoryKubeStore, monkeypatch: pytest.MonkeyPatch, only: tuple[str, ...]
) -> None:
    """A pod that waits for a node is nothing that cannot be understood; one in the network of its node neither."""
    waiting, agent = pod({"phase": "Pending"}, name="waiting"), pod({"podIP": "x"}, name="agent")
    waiting["spec"]["nodeName"] = ""
    agent["spec"]["hostNetwork"] = True
    page = {"metadata": {"resourceVersion": "7"}, "items": [waiting, pod({"podIP": "10.0.0.1"}), agent]}
    monkeypatch.setattr(store.api, "call", lambda _request, _deadline: page)
    listing = store.list(Resources(WORKLOAD_ENDPOINT, only=only))
    assert [entry.value.name for entry in listing] == ["n--1-k8s-cart--1-eth0"]
    assert listing.damaged == ()


def test_what_is_only_looked_at_can_still_be_deleted(store: MemoryKubeStore) -> None:
    store.commit(Create(HandleKey("a.b"), Handle("a.b", {"10.0.0.0/26": 1})))
    (seen,) = store.read(Handles(writable=False)).listing(Handles())
    assert seen == store.get(HandleKey("a.b"))
    assert seen.origin is None
    store.commit(Delete(seen))
    assert len(store.list(Handles())) == 0
