"""Who owns an address (ipam-library §15.2)."""

from __future__ import annotations

import pytest

from calico_ipam.model.owner import Owner

POD = {"pod": "p", "namespace": "ns", "node": "n"}


@pytest.mark.parametrize(
    ("owner", "attributes", "matches"),
    [
        (Owner(), None, True),
        (Owner(), {}, True),
        (Owner(), POD, False),
        (Owner(), {"node": "n"}, False),
        (Owner("ns", "p"), POD, True),
        (Owner("ns", "p"), {"pod": "p"}, False),
        (Owner("ns", "p"), {"namespace": "ns"}, False),
        (Owner("ns", "p"), {**POD, "pod": "q"}, False),
        (Owner("ns", "p"), {**POD, "namespace": "other"}, False),
        (Owner("ns", "p"), {}, False),
        (Owner("ns", "p"), None, False),
        (Owner("", "p"), {"pod": "p"}, False),
        (Owner("", "p"), {"pod": "p", "namespace": ""}, True),
    ],
)
def test_match(owner: Owner, attributes: dict[str, str] | None, matches: bool) -> None:
    assert owner.matches(attributes) is matches
    assert str(Owner("ns", "p")) == "pod=p namespace=ns"
