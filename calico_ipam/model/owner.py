"""Who owns an address: the attributes beside a handle (ipam-library §3, §15.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calico_ipam.errors import InvalidInput
from calico_ipam.model.block import Block

POD = "pod"
NAMESPACE = "namespace"
NODE = "node"
TYPE = "type"
TIMESTAMP = "timestamp"
VMI_NAME = "vmi-name"
VMI_UID = "vmi-uid"
VM_UID = "vm-uid"
VMIM_UID = "vmim-uid"


@dataclass(frozen=True, slots=True)
class Owner:
    """A pod that an address is believed to belong to; both names empty: nobody."""

    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"pod={self.name} namespace={self.namespace}"

    def matches(self, attributes: Mapping[str, str] | None) -> bool:
        """Tell whether the attributes name this owner. Nobody matches only where there are no attributes at all."""
        if not (self.namespace or self.name):
            return not attributes
        found = attributes or {}
        return found.get(POD) == self.name and found.get(NAMESPACE) == self.namespace


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Refuse attributes that are no texts: nobody could read the block any more. Raises InvalidInput."""
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(
                f"attribute {name!r} has the value {value!r}; name and value must be text",
                subject=repr(name),
                hint="Write numbers as text, and leave out what has no value.",
            )


def held_elsewhere(block: Block) -> list[tuple[int, str]]:
    """Return (ordinal, node) of the addresses of a block whose holder is not on the block's own node, ascending.

    The node is the one that the holder's attributes name, empty where they name none.
    """
    home = block.owner.host if block.owner else ""
    nodes = ((ordinal, attribute.active.get(NODE, "")) for ordinal, attribute in block.taken())
    return [(ordinal, node) for ordinal, node in nodes if node != home]
