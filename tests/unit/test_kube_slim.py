"""Endpoints of which only the addresses are looked at: the same as whole ones, from pods that say much more."""

from __future__ import annotations

from typing import Any

import pytest

from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube.pods import ADDRESSES, endpoint_of


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
