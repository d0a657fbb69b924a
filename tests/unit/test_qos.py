"""Bandwidth and its relatives in annotations: values, clamps, defaults (cni.md §10)."""

from __future__ import annotations

import pytest

from calico_ipam.datastore.kube.qos import PREFIX, controls_of, quantity


def controls(**given: str) -> dict[str, object]:
    return controls_of({PREFIX + name: text for name, text in given.items()})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1k", 1000),
        ("10M", 10**7),
        ("4Gi", 4 * 2**30),
        ("1P", 10**15),
        ("0.5", 1),
        ("1500m", 2),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("+5", 5),
        ("-5", -5),
        (".5k", 500),
        ("", None),
        ("k", None),
        ("10 M", None),
        ("10Q", None),
        ("1e99999", None),
    ],
)
def test_quantities(text: str, value: int | None) -> None:
    assert quantity(text) == value


def test_all_of_them() -> None:
    given = {
        "Bandwidth": "1M",
        "Burst": "2M",
        "Peakrate": "3M",
        "Minburst": "4k",
        "PacketRate": "5",
        "PacketBurst": "6",
        "MaxConnections": "7",
    }
    annotations = {way + name: text for way in ("ingress", "egress") for name, text in given.items()}
    values = {"Bandwidth": 10**6, "Burst": 2 * 10**6, "Peakrate": 3 * 10**6, "Minburst": 4000}
    values |= {"PacketRate": 5, "PacketBurst": 6, "MaxConnections": 7}
    expected = {way + name: value for way in ("ingress", "egress") for name, value in values.items()}
    assert controls(**annotations, dscp="ef") == {**expected, "dscp": "EF"}


def test_what_only_refines_something_is_nothing_alone() -> None:
    assert controls(ingressBurst="1M", ingressPeakrate="2M", ingressMinburst="4k", egressPacketBurst="5") == {}


def test_defaults_of_bursts() -> None:
    assert controls(ingressBandwidth="1M", egressPacketRate="9") == {
        "ingressBandwidth": 10**6,
        "ingressBurst": 4294967296,
        "egressPacketRate": 9,
        "egressPacketBurst": 5,
    }


def test_a_peak_below_the_bandwidth_is_none() -> None:
    found = controls(ingressBandwidth="2M", ingressPeakrate="2M", ingressMinburst="4k")
    assert found == {"ingressBandwidth": 2 * 10**6, "ingressBurst": 4294967296}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ingressBandwidth", "1", 1000),
        ("ingressBandwidth", "2P", 10**15),
        ("egressPacketRate", "20k", 10_000),
        ("egressMaxConnections", "5G", 4294967295),
        ("egressMaxConnections", "-1", 1),
        ("ingressBandwidth", "fast", None),
    ],
)
def test_out_of_range_is_moved_to_the_end_and_garbage_ignored(name: str, text: str, value: int | None) -> None:
    assert controls(**{name: text}).get(name) == value


def test_calicos_key_beats_kubernetes() -> None:
    both = {"kubernetes.io/ingress-bandwidth": "1M", f"{PREFIX}ingressBandwidth": "2M"}
    assert controls_of(both)["ingressBandwidth"] == 2 * 10**6
    assert controls_of({"kubernetes.io/egress-bandwidth": "1M"})["egressBandwidth"] == 10**6


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("63", 63), ("64", None), ("af43", "AF43"), ("CS6", "CS6"), ("CS7", None), ("AF44", None), ("x", None)],
)
def test_dscp(text: str, value: object) -> None:
    assert controls(dscp=text).get("dscp") == value
