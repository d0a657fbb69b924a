"""What the collector found and did, as JSON of a stated schema (gc §18.3), or as calicoctl's check report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from calico_gc import handles
from calico_gc.durations import format_duration
from calico_gc.facts import Tracked
from calico_gc.handles import Counts, Observed
from calico_gc.suspicion import Moment, Suspicion
from calico_gc.view import View
from calico_ipam.errors import InvalidInput
from calico_ipam.model.block import Attribute
from calico_ipam.model.names import convert_uid
from calico_ipam.model.timestamps import format_time

SCHEMA = "calico-ipam-gc/v1"
CLEAN, ERROR, PROBLEMS = 0, 1, 3  #: exit codes of --once
#: version of calicoctl that takes the report without --force
CALICOCTL_VERSION = "v3.32.0"


def report(view: View, errors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the report of a view. ``errors``: what went wrong beside the decisions."""
    return {
        "schema": SCHEMA,
        "generated": format_time(view.at.wall),
        "mode": "dry-run" if view.options.dry_run else "act",
        "clusterGUID": view.cluster_guid,
        "datastoreReady": view.ready,
        "inSync": view.in_sync,
        "leader": view.leader,
        "settings": {
            "leakGracePeriod": _duration(view.options.rules.leak_grace),
            "handleGrace": _duration(view.options.handles.grace),
            "namelessAddresses": view.options.rules.nameless,
        },
        "summary": _summary(view),
        "leaks": [_leak(view, key) for key in view.suspects if view.allocation(key) is not None],
        "handles": list(_handles(view)),
        "blocks": list(_blocks(view)),
        "nodes": [_node(view, node) for node in sorted(view.leaving)],
        "findings": [
            {"kind": f.kind, "subject": f.subject, "detail": f.detail, "firstSeen": format_time(f.first.wall)}
            for f in view.findings
        ],
        "errors": [*(f"{path}: {why}" for path, why in sorted(view.damaged.items())), *errors],
    }


def problems(view: View) -> bool:
    """Tell whether there is anything that a person or the collector has to do."""
    wrong = view.handles is not None and any(n for kind, n in view.handles.numbers.items() if kind != handles.GOOD)
    return bool(view.suspects or wrong or view.leaving or view.damaged or view.findings)


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _summary(view: View) -> dict[str, int]:
    numbers: Mapping[str, int] = view.handles.numbers if view.handles is not None else {}
    return {
        "blocks": len(view.blocks),
        "allocations": sum(len(tracked.allocations) for tracked in view.blocks.values()),
        "handles": view.handles.total if view.handles is not None else 0,
        "candidates": view.candidates,
        "confirmed": view.confirmed,
        "held": len(view.held),
        "coldBlocks": len(view.cold),
        "orphanHandles": numbers.get(handles.ORPHAN, 0),
        "skewedHandles": numbers.get(handles.SKEWED, 0),
        "missingHandles": numbers.get(handles.MISSING, 0),
        "stuckHandles": numbers.get(handles.STUCK, 0),
        "emptyBlocks": len(view.empty),
        "nodesToRelease": len(view.leaving),
        "nameless": view.nameless,
        "damaged": len(view.damaged),
    }


def _leak(view: View, key: tuple[str, int]) -> dict[str, Any]:
    allocation = view.allocation(key)
    assert allocation is not None  # noqa: S101  # the caller asks for those that are there
    suspicion = view.suspects[key]
    namespace, name = allocation.pod
    return {
        "ip": str(allocation.address),
        "handle": allocation.handle,
        "sequence": str(allocation.sequence),
        "block": allocation.block,
        "node": allocation.node,
        "pod": f"{namespace}/{name}" if name else "",
        "state": state_of(view, key),
        "reason": suspicion.reason,
        "firstSeen": format_time(suspicion.first.wall),
        "observations": suspicion.observations,
        "action": _action(view, key, suspicion),
    }


def state_of(view: View, key: tuple[str, int]) -> str:
    """Return ``candidate``, ``confirmed`` or ``held``."""
    if key in view.held:
        return "held"
    return "confirmed" if view.suspects[key].confirmed else "candidate"


def _action(view: View, key: tuple[str, int], suspicion: Suspicion) -> str:
    if key in view.held:
        return "hold"
    return "release" if suspicion.confirmed else "wait"


def _handles(view: View) -> Iterator[dict[str, Any]]:
    if view.handles is None:
        return
    for record in sorted(view.handles.records.values(), key=lambda r: r.judged.id):
        judged = record.judged
        yield {
            "id": judged.id,
            "class": judged.kind,
            "uid": judged.uid,
            "revision": judged.revision,
            "have": _counts(judged.have),
            "want": _counts(judged.want),
            "observations": record.observations,
            "age": format_duration(round(record.last - record.first, 3)),
            "action": _repair(view, record),
            "result": view.handles.results.get(judged.id, "dry-run" if view.options.dry_run else ""),
        }


def _repair(view: View, record: Observed) -> str:
    chosen = view.options.handles
    mode = chosen.collect if record.judged.kind in (handles.ORPHAN, handles.STUCK) else chosen.repair
    if mode != "on" or chosen.grace is None:
        return "report"
    if not record.confirmed(chosen.grace, chosen.observations):
        return "wait"
    return {handles.ORPHAN: "delete", handles.STUCK: "delete", handles.SKEWED: "update"}.get(
        record.judged.kind, "create"
    )


def _counts(counts: Counts) -> dict[str, int]:
    return dict(counts)


def _blocks(view: View) -> Iterator[dict[str, Any]]:
    for cidr, host in sorted(view.empty.items()):
        since = view.empty_since.get(cidr)
        planned = ("give-back", cidr) in view.planned or ("give-back", cidr) in view.busy
        yield {
            "cidr": cidr,
            "node": host,
            "action": "release-affinity" if planned else "keep" if since is None else "wait",
            "emptyFor": "" if since is None else format_duration(round(view.at.mono - since)),
        }


def _node(view: View, node: str) -> dict[str, Any]:
    failures = view.failing.get(("node", node), 0)
    result = "dry-run" if view.options.dry_run else f"failed {failures} times" if failures else "pending"
    return {"name": node, "action": "release", "result": result}


# --- calicoctl's shape ---------------------------------------------------------------------------------------


def calicoctl_report(view: View) -> dict[str, Any]:
    """Return the report that ``calicoctl ipam release --from-report`` takes (cli §4.4).

    Only what is confirmed and would be released now counts as unused; whatever else is known, or not, is in use.
    """
    allocations: dict[str, list[dict[str, Any]]] = {}
    for tracked in view.blocks.values():
        for ordinal, attribute in tracked.block.taken():
            address = str(tracked.block.address(ordinal))
            key = (tracked.cidr, ordinal)
            suspicion = view.suspects.get(key)
            leaked = suspicion is not None and suspicion.confirmed and key not in view.held
            allocations.setdefault(address, []).append(_checked(tracked, ordinal, attribute, leaked=leaked))
    orphans = [
        {"ID": r.judged.id, "UID": _shown_uid(r.judged.uid), "Revision": r.judged.revision}
        for r in (view.handles.records.values() if view.handles is not None else ())
        if r.judged.kind == handles.ORPHAN
    ]
    found: dict[str, Any] = {
        "version": CALICOCTL_VERSION,
        "clusterGUID": view.cluster_guid,
        "datastoreLocked": not view.ready,
        "clusterInformationRevision": view.cluster_revision,
        "clusterType": view.cluster_type,
        "allocations": dict(sorted(allocations.items())),
    }
    return {**found, "leakedHandles": orphans} if orphans else found


def _shown_uid(uid: str) -> str | None:
    """Return a custom resource's UID as calicoctl shows and compares it; None where there are none (etcd)."""
    try:
        return convert_uid(uid) if uid else None
    except InvalidInput:
        return uid  # no UUID, so nobody converts it


def _checked(tracked: Tracked, ordinal: int, attribute: Attribute, *, leaked: bool) -> dict[str, Any]:
    attrs = attribute.active
    node = attrs.get("node") or tracked.host
    reserved = attribute.windows_reserved  # it has no handle of its own (cli §4.2)
    owners = None
    if reserved:
        from calico_ipam.engine.survey import WINDOWS_USER

        owners = [WINDOWS_USER]
    optional = {
        "handle": "" if reserved else attribute.handle,
        "sequenceNumber": tracked.block.sequence_of(ordinal),
        "pod": attrs.get("pod"),
        "namespace": attrs.get("namespace"),
        "node": node,
        "type": attrs.get("type"),
        "creationTimestamp": attrs.get("timestamp"),
        "borrowed": node != tracked.host,
        "inUse": not leaked and not attribute.cold,
        "coolingDown": attribute.cold,
    }
    return {
        "ip": str(tracked.block.address(ordinal)),
        **{name: value for name, value in optional.items() if value or name in ("sequenceNumber", "inUse")},
        "owners": owners,
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a report so that nobody ever reads half of one. Raises OSError."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads half of it. Raises OSError."""
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(file.name).unlink()
            raise


def time_left(suspicion: Suspicion, now: Moment) -> float | None:
    """Return the seconds until another look can confirm a candidate; None when none will."""
    due = suspicion.due()
    return None if due is None else max(0.0, due - now.mono)
