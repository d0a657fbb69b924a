"""A private host and one sandbox for each test of this folder that asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_cni.dataplane.linux import LinuxDataplane
from tests.netns_tools import Namespace, Node, private_node, require_root


@pytest.fixture
def node() -> Iterator[Node]:
    """A fresh host; the test runs inside it."""
    require_root()
    with private_node() as made:
        yield made


@pytest.fixture
def pod(node: Node) -> Namespace:
    """A fresh sandbox of that host."""
    return node.sandbox()


@pytest.fixture
def dataplane() -> LinuxDataplane:
    """The dataplane without its wait for other programs that rewrite hardware addresses."""
    return LinuxDataplane(mac_quiet=0)
