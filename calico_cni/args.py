"""``CNI_ARGS``: key=value pairs from the runtime (cni.md §2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calico_cni.errors import CNIError
from calico_cni.protocol import go_quote
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address

IGNORE_UNKNOWN = "IgnoreUnknown"
IP = "IP"
POD_NAME = "K8S_POD_NAME"
POD_NAMESPACE = "K8S_POD_NAMESPACE"
POD_SANDBOX = "K8S_POD_INFRA_CONTAINER_ID"
POD_UID = "K8S_POD_UID"
TEST_NAMESPACE = "CNI_TEST_NAMESPACE"

#: What identifies the workload; known to both plugins.
WORKLOAD_KEYS = frozenset({IP, POD_NAME, POD_NAMESPACE, POD_SANDBOX, POD_UID, TEST_NAMESPACE})
#: What an assignment by calico-ipam knows.
ADDRESS_KEYS = frozenset({IP})

_TRUE = frozenset({"1", "true"})
_FALSE = frozenset({"0", "false"})


@dataclass(frozen=True, slots=True)
class Args:
    """The pairs that were given; the last of a key counts."""

    values: Mapping[str, str] = field(default_factory=dict)
    ip: Address | None = None

    def get(self, key: str) -> str:
        return self.values.get(key, "")


def parse_args(text: str, known: frozenset[str]) -> Args:
    """Return the arguments. Raises CNIError for a bad pair, a bad value, and a key that nobody asked for."""
    values: dict[str, str] = {}
    unknown: list[str] = []
    ignore = False
    ip: Address | None = None
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise CNIError(f"ARGS: invalid pair {go_quote(pair)}")
        if key == IGNORE_UNKNOWN:
            ignore = _boolean(pair, value)
        elif key not in known:
            unknown.append(pair)
        elif key == IP:
            ip = _address(pair, value)
        values[key] = value
    if unknown and not ignore:
        raise CNIError(f"ARGS: unknown args [{' '.join(go_quote(pair) for pair in unknown)}]")
    return Args(values, ip)


def _boolean(pair: str, value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise CNIError(
        f"ARGS: error parsing value of pair {go_quote(pair)}: boolean unmarshal error: invalid input {value}"
    )


def _address(pair: str, value: str) -> Address | None:
    if not value:
        return None
    try:
        return parse_address(value)
    except InvalidInput as error:
        raise CNIError(f"ARGS: error parsing value of pair {go_quote(pair)}: {error}") from None
