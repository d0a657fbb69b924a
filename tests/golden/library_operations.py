"""The operations of recorded scenarios, carried out with our library (the recordings' README §2).

Each adapter takes the arguments of a recording and returns what the recording's ``result`` would be. An operation
whose method IPAM does not offer yet is *pending*: replaying stops there and the summary says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from calico_ipam.datastore.api import Datastore, Update
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.owners import NOBODY, OwnerPreconditions, OwnerUpdates
from calico_ipam.engine.results import Assignments, AutoAssigned, ClaimResult, NamespaceLabels, ReleaseResult
from calico_ipam.engine.utilization import BlockUtilization, PoolUtilization
from calico_ipam.errors import InvalidInput, IPAMError
from calico_ipam.model.addresses import Network, parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import HostReserved, ReleaseOption
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.owner import Owner
from tests.golden.library_scenario import UnknownRecording

Args = Mapping[str, Any]
T = TypeVar("T")

#: text of the error for arguments that our signatures have no place for
INEXPRESSIBLE = "the library's types do not let a caller say this"


def _no_result(error: IPAMError) -> Any:
    return None


@dataclass(frozen=True)
class Operation:
    """``method``: the attribute of IPAM that it needs. ``failed``: what upstream returns beside an error."""

    method: str
    arguments: frozenset[str]
    call: Callable[[IPAM, Args], Any]
    failed: Callable[[IPAMError], Any] = _no_result

    @property
    def pending(self) -> bool:
        return not hasattr(IPAM, self.method)


# --- assigning ----------------------------------------------------------------------------------------------


def _auto_assign(ipam: IPAM, args: Args) -> Any:
    namespace = args.get("namespace")
    labels = NamespaceLabels(namespace.get("name", ""), namespace.get("labels") or {}) if namespace else None
    return _auto_assigned(
        ipam.auto_assign(
            use=args.get("intended_use", ""),
            num4=args.get("num4", 0),
            num6=args.get("num6", 0),
            handle=args.get("handle"),
            attrs=args.get("attrs"),
            hostname=args["hostname"],
            ipv4_pools=_networks(args.get("ipv4_pools")),
            ipv6_pools=_networks(args.get("ipv6_pools")),
            max_blocks_per_host=args.get("max_blocks_per_host", 0),
            host_reserved4=_host_reserved(args.get("host_reserved_attr_ipv4")),
            host_reserved6=_host_reserved(args.get("host_reserved_attr_ipv6")),
            max_per_handle=args.get("max_alloc_per_handle", 0),
            namespace=labels,
        )
    )


def _auto_assigned(assigned: AutoAssigned) -> Any:
    return {"ipv4": _assignments(assigned.ipv4), "ipv6": _assignments(assigned.ipv6)}


def _assignments(family: Assignments | None) -> Any:
    if family is None:
        return None
    result: dict[str, Any] = {
        "ips": [str(address) for address in family.addresses],
        "ip_version": family.version,
        "num_requested": family.requested,
        "msgs": list(family.messages),
        "partial_error": family.shortfall,
    }
    if family.host_reserved is not None:
        kept = family.host_reserved
        result["host_reserved_attr"] = {
            "start": kept.start,
            "end": kept.end,
            "handle": kept.handle,
            "note": kept.note,
        }
    return result


def _auto_assign_failed(error: IPAMError) -> Any:
    return _auto_assigned(getattr(error, "partial", None) or AutoAssigned())


def _assign_ip(ipam: IPAM, args: Args) -> Any:
    ipam.assign_ip(
        parse_address(args["ip"]),
        handle=args.get("handle"),
        attrs=args.get("attrs"),
        hostname=args["hostname"],
        use=args.get("intended_use") or None,
        host_reserved=_host_reserved(args.get("host_reserved_attr")),
        max_per_handle=args.get("max_alloc_per_handle", 0),
    )


def _ensure_block(ipam: IPAM, args: Args) -> Any:
    four, six = ipam.ensure_block(
        hostname=args["hostname"],
        ipv4_pools=_networks(args.get("ipv4_pools")),
        ipv6_pools=_networks(args.get("ipv6_pools")),
        host_reserved4=_host_reserved(args.get("host_reserved_attr_ipv4")),
        host_reserved6=_host_reserved(args.get("host_reserved_attr_ipv6")),
    )
    return {"ipv4_block": _text(four), "ipv6_block": _text(six)}


# --- releasing ----------------------------------------------------------------------------------------------


def _release_ips(ipam: IPAM, args: Args) -> Any:
    options = [
        ReleaseOption(parse_address(option["address"]), option.get("handle"), option.get("sequence_number"))
        for option in args["options"]
    ]
    return _released(ipam.release_ips(options))


def _released(result: ReleaseResult) -> Any:
    options = []
    for option in result.released:
        shown: dict[str, Any] = {"address": str(option.address)}
        if option.handle:
            shown["handle"] = option.handle
        if option.sequence_number is not None:
            shown["sequence_number"] = option.sequence_number
        options.append(shown)
    return {"unallocated": sorted(str(a) for a in result.unallocated), "released": by_text(options)}


def by_text(items: list[Any]) -> list[Any]:
    """Sort what upstream leaves in any order, by its text (README §1.5)."""
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _release_failed(error: IPAMError) -> Any:
    return _released(getattr(error, "partial", None) or ReleaseResult())


# --- looking and settings -----------------------------------------------------------------------------------


def _ips_by_handle(ipam: IPAM, args: Args) -> Any:
    return {"ips": sorted(str(address) for address in ipam.ips_by_handle(args["handle"]))}


def _assignment_attributes(ipam: IPAM, args: Args) -> Any:
    found = ipam.assignment_attributes(parse_address(args["ip"]))
    return {
        "handle": found.handle,
        "active_owner_attrs": dict(found.active) or None,
        "alternate_owner_attrs": dict(found.alternate) or None,
    }


def _get_config(ipam: IPAM, args: Args) -> Any:
    config = ipam.get_config()
    return {
        "strict_affinity": config.strict_affinity,
        "auto_allocate_blocks": config.auto_allocate_blocks,
        "max_blocks_per_host": config.max_blocks_per_host,
        "kubevirt_vm_address_persistence": config.kubevirt_persistence or None,
        "ip_cooldown_seconds": config.cooldown_seconds,
    }


def config_of(args: Args) -> IPAMConfig:
    """Return the settings that a recording's arguments describe."""
    return IPAMConfig(
        strict_affinity=args.get("strict_affinity", False),
        auto_allocate_blocks=args.get("auto_allocate_blocks", False),
        max_blocks_per_host=args.get("max_blocks_per_host", 0),
        kubevirt_persistence=args.get("kubevirt_vm_address_persistence"),
        cooldown_seconds=args.get("ip_cooldown_seconds", 0),
    )


def _set_config(ipam: IPAM, args: Args) -> Any:
    ipam.set_config(config_of(args))


def _utilization(ipam: IPAM, args: Args) -> Any:
    return {
        "pools": [
            {
                "name": pool.name,
                "cidr": str(pool.cidr),
                **_counts(pool),
                "blocks": [{"cidr": str(block.cidr), **_counts(block)} for block in pool.blocks],
            }
            for pool in ipam.get_utilization(args.get("pools") or ()).pools
        ]
    }


def _counts(of: PoolUtilization | BlockUtilization) -> dict[str, int]:
    return {"capacity": of.capacity, "in_use": of.in_use, "reserved": of.reserved, "available": of.available}


# --- affinities ---------------------------------------------------------------------------------------------


def _owner(args: Args) -> BlockOwner:
    return BlockOwner(args.get("affinity_type") or HOST, args["host"])


def _claim_affinity(ipam: IPAM, args: Args) -> Any:
    return _claimed(ipam.claim_affinity(parse_network(args["cidr"]), _owner(args)))


def _claimed(result: ClaimResult) -> Any:
    return {"claimed": [str(c) for c in result.claimed], "failed": [str(c) for c in result.failed]}


def _claim_failed(error: IPAMError) -> Any:
    return _claimed(getattr(error, "partial", None) or ClaimResult())


def _release_affinity(ipam: IPAM, args: Args) -> Any:
    owner = BlockOwner(HOST, args["host"])
    ipam.release_affinity(parse_network(args["cidr"]), owner, must_be_empty=args.get("must_be_empty", False))


def _release_host_affinities(ipam: IPAM, args: Args) -> Any:
    ipam.release_host_affinities(_owner(args), must_be_empty=args.get("must_be_empty", False))


def _release_block_affinity(ipam: IPAM, args: Args) -> Any:
    block = _plain(ipam).get(BlockKey(parse_network(args["cidr"]))).value
    if "passed_affinity" in args:
        block = replace(block, affinity=args["passed_affinity"] or None)
    ipam.release_block_affinity(block, must_be_empty=args.get("must_be_empty", False))


def _collect_cold(ipam: IPAM, args: Args) -> Any:
    entry = _plain(ipam).get(BlockKey(parse_network(args["cidr"])))
    if args.get("stale"):
        _plain(ipam).commit(Update(entry, entry.value.bumped()))
    ipam.collect_cold_addresses(entry, config_of(args.get("config") or {}))


# --- owners -------------------------------------------------------------------------------------------------


def _set_owner_attributes(ipam: IPAM, args: Args) -> Any:
    updates, conditions = args.get("updates"), args.get("preconditions") or {}
    if updates is None:
        raise InvalidInput(INEXPRESSIBLE)
    ipam.set_owner_attributes(
        parse_address(args["ip"]),
        args.get("handle", ""),
        OwnerUpdates(
            active=_side(updates.get("active_owner_attrs"), updates.get("clear_active_owner"), {}),
            alternate=_side(updates.get("alternate_owner_attrs"), updates.get("clear_alternate_owner"), {}),
        ),
        OwnerPreconditions(
            active=_side(
                _pod(conditions.get("expected_active_owner")), conditions.get("verify_active_owner_empty"), NOBODY
            ),
            alternate=_side(
                _pod(conditions.get("expected_alternate_owner")), conditions.get("verify_alternate_owner_empty"), NOBODY
            ),
        ),
    )


def _side(value: T | None, empty: bool | None, nothing: T) -> T | None:
    """Return one value for what upstream says with two fields. Ours has no place for both of them at once."""
    if value is not None and empty:
        raise InvalidInput(INEXPRESSIBLE)
    return nothing if empty else value


def _pod(document: Mapping[str, str] | None) -> Owner | None:
    return None if document is None else Owner(document.get("namespace", ""), document.get("name", ""))


def _ensure_active_vm_owner(ipam: IPAM, args: Args) -> Any:
    ipam.ensure_active_vm_owner(args.get("network", ""), args["namespace"], args["vm"], args["target_pod"])


# --- arguments ----------------------------------------------------------------------------------------------


def _plain(ipam: IPAM) -> Datastore:
    """Return the store without hooks: what the recorder read by itself is not part of the operation."""
    return getattr(ipam.store, "inner", ipam.store)


def _networks(texts: list[str] | None) -> list[Network]:
    return [parse_network(text) for text in texts or ()]


def _host_reserved(document: Mapping[str, Any] | None) -> HostReserved | None:
    if document is None:
        return None
    return HostReserved(
        start=document.get("start", 0),
        end=document.get("end", 0),
        handle=document.get("handle", ""),
        note=document.get("note", ""),
    )


def _text(network: Network | None) -> str | None:
    return None if network is None else str(network)


RESERVED = ("host_reserved_attr_ipv4", "host_reserved_attr_ipv6")
OPERATIONS: Mapping[str, Operation] = {
    "auto_assign": Operation(
        "auto_assign",
        frozenset(
            {
                *("num4", "num6", "handle", "attrs", "hostname", "ipv4_pools", "ipv6_pools", "max_blocks_per_host"),
                *("intended_use", "max_alloc_per_handle", "namespace", *RESERVED),
            }
        ),
        _auto_assign,
        _auto_assign_failed,
    ),
    "assign_ip": Operation(
        "assign_ip",
        frozenset({"ip", "handle", "attrs", "hostname", "host_reserved_attr", "intended_use", "max_alloc_per_handle"}),
        _assign_ip,
    ),
    "release_ips": Operation("release_ips", frozenset({"options"}), _release_ips, _release_failed),
    "release_by_handle": Operation(
        "release_by_handle", frozenset({"handle"}), lambda ipam, args: ipam.release_by_handle(args["handle"])
    ),
    "ips_by_handle": Operation("ips_by_handle", frozenset({"handle"}), _ips_by_handle, lambda error: {"ips": []}),
    "get_assignment_attributes": Operation("assignment_attributes", frozenset({"ip"}), _assignment_attributes),
    "ensure_block": Operation(
        "ensure_block",
        frozenset({"hostname", "ipv4_pools", "ipv6_pools", *RESERVED}),
        _ensure_block,
        lambda error: {"ipv4_block": None, "ipv6_block": None},
    ),
    "get_ipam_config": Operation("get_config", frozenset(), _get_config),
    "set_ipam_config": Operation(
        "set_config",
        frozenset(
            {
                *("strict_affinity", "auto_allocate_blocks", "max_blocks_per_host"),
                *("kubevirt_vm_address_persistence", "ip_cooldown_seconds"),
            }
        ),
        _set_config,
    ),
    "claim_affinity": Operation(
        "claim_affinity", frozenset({"cidr", "affinity_type", "host"}), _claim_affinity, _claim_failed
    ),
    "release_affinity": Operation("release_affinity", frozenset({"cidr", "host", "must_be_empty"}), _release_affinity),
    "release_host_affinities": Operation(
        "release_host_affinities", frozenset({"affinity_type", "host", "must_be_empty"}), _release_host_affinities
    ),
    "release_pool_affinities": Operation(
        "release_pool_affinities",
        frozenset({"pool"}),
        lambda ipam, args: ipam.release_pool_affinities(parse_network(args["pool"])),
    ),
    "release_block_affinity": Operation(
        "release_block_affinity", frozenset({"cidr", "must_be_empty", "passed_affinity"}), _release_block_affinity
    ),
    "remove_ipam_host": Operation(
        "remove_ipam_host",
        frozenset({"affinity_type", "host"}),
        lambda ipam, args: ipam.remove_ipam_host(_owner(args)),
    ),
    # Kubernetes only: no recording of another store has it.
    "upgrade_host": Operation("upgrade_host", frozenset({"node"}), lambda ipam, args: None),
    "garbage_collect_cold_ips": Operation(
        "collect_cold_addresses", frozenset({"cidr", "config", "stale"}), _collect_cold
    ),
    "get_utilization": Operation("get_utilization", frozenset({"pools"}), _utilization),
    "set_owner_attributes": Operation(
        "set_owner_attributes", frozenset({"ip", "handle", "updates", "preconditions"}), _set_owner_attributes
    ),
    "ensure_active_vm_owner_attrs": Operation(
        "ensure_active_vm_owner", frozenset({"network", "namespace", "vm", "target_pod"}), _ensure_active_vm_owner
    ),
}

#: not library calls: somebody else changes the datastore
OUTSIDE: Mapping[str, frozenset[str]] = {
    "store_put": frozenset({"key", "value", "object"}),
    "store_delete": frozenset({"key"}),
}


def check_known(op: str, args: Args, where: str) -> None:
    """Raise UnknownRecording for an operation, or an argument of it, that no adapter understands."""
    known = OUTSIDE.get(op) if op in OUTSIDE else OPERATIONS[op].arguments if op in OPERATIONS else None
    if known is None:
        raise UnknownRecording(f"{where}: unknown operation {op!r}")
    if set(args) - known:
        raise UnknownRecording(f"{where}: {op} with unknown arguments {sorted(set(args) - known)}")
