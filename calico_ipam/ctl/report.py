"""The report of a check, and what may be released by it (cli §4.4, §5.2, §5.3)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calico_ipam.ctl.failures import Told
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.names import convert_uid

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Entry
    from calico_ipam.engine.survey import Allocation, Survey
    from calico_ipam.model.findings import Finding


# --- writing -------------------------------------------------------------------------------------------------


def document(survey: Survey, version: str, cluster: Entry) -> dict[str, Any]:
    """Return the report of a survey, as calicoctl writes it."""
    spec = cluster.value.spec
    allocations = {
        str(address): [_allocation(survey, each) for each in group] for address, group in survey.allocations.items()
    }
    stray = [
        {"ID": handle, "UID": convert_uid(entry.uid) if entry.uid else None, "Revision": entry.revision}
        for handle, entry in sorted(survey.handles.items())
        if handle not in survey.holdings
    ]
    found: dict[str, Any] = {
        "version": version,
        "clusterGUID": str(spec.get("clusterGUID") or ""),
        "datastoreLocked": spec.get("datastoreReady") is False,
        "clusterInformationRevision": cluster.revision,
        "clusterType": str(spec.get("clusterType") or ""),
        "allocations": dict(sorted(allocations.items())),
    }
    if spec.get("datastoreReady") is None:
        found["datastoreLocked"] = False
    return found | ({"leakedHandles": stray} if stray else {})


def _allocation(survey: Survey, each: Allocation) -> dict[str, Any]:
    active = each.attribute.active
    users = survey.users.get(each.address, [])
    handle = None if each.attribute.windows_reserved else each.attribute.handle
    optional = {
        "handle": handle,
        "sequenceNumber": each.sequence_number,
        "pod": active.get("pod"),
        "namespace": active.get("namespace"),
        "node": each.node,
        "type": active.get("type"),
        "creationTimestamp": active.get("timestamp"),
    }
    found: dict[str, Any] = {"ip": str(each.address)}
    found |= {key: value for key, value in optional.items() if value or key == "sequenceNumber"}
    found["inUse"] = bool(users)
    if each.borrowed:
        found["borrowed"] = True
    if each.cooling:
        found["coolingDown"] = True
    found["owners"] = [user.name for user in users] or None
    return found


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what ours adds to the report: counts by kind, and each finding with its cure."""
    count: dict[str, int] = {}
    for finding in findings:
        count[finding.kind] = count.get(finding.kind, 0) + 1
    problems = {
        "leakedIPs": count.get("leaked", 0) + count.get("unattributed", 0),
        "inUseNotInPool": count.get("not-in-pool", 0),
        "inUseNotAllocated": count.get("not-allocated", 0),
        "strayHandles": count.get("stray-handle", 0),
        "missingHandles": count.get("missing-handle", 0),
        "multipleOwners": count.get("multiple-owners", 0),
        "invalidBlocks": count.get("invalid-block", 0) + count.get("lost-ordinals", 0),
        "total": len(findings),
    }
    return {"problems": problems, "details": [finding.document() for finding in findings]}


def write_file(path: str, text: str) -> None:
    """Write a file as a whole or not at all, for its owner only; a device or a pipe is written to, and a link is
    followed. Raises OSError, which names ``path``."""
    there = os.path.exists(path)  # noqa: PTH110  # pathlib is not needed otherwise, and costs 7 ms
    stream = path.startswith(("/dev/", "/proc/"))  # it may be a descriptor of ours, whatever it leads to
    try:
        if there and (stream or not os.path.isfile(path)):  # noqa: PTH113  # as above
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123  # as above
                file.write(text)
        else:
            _replace_file(os.path.realpath(path), text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _replace_file(path: str, text: str) -> None:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")  # noqa: PTH118  # as above
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105  # as above
    except BaseException:
        if os.path.exists(temporary):  # noqa: PTH110  # as above
            os.unlink(temporary)  # noqa: PTH108  # as above
        raise


# --- reading -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leak:
    """An address that a report says nobody uses, and what must still be true of it."""

    address: Address
    handle: str | None
    sequence_number: int | None
    attributed: bool = True  #: it has a handle, a type or a pod; others are released only when asked for (limit 18.2)
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StrayHandle:
    """A handle that a report says has no addresses."""

    id: str
    uid: str
    revision: str


@dataclass(frozen=True, slots=True)
class Report:
    """One report file."""

    path: str
    version: str
    guid: str
    revision: str
    leaks: Mapping[Address, Leak]
    handles: Mapping[str, StrayHandle]


def read(path: str) -> Report:
    """Read a report. Raises Told for a file that is none, or that cannot be read."""
    from calico_ipam.ctl.files import text_of

    content = _content(path, text_of(path))
    leaks: dict[Address, Leak] = {}
    for text, group in (content.get("allocations") or {}).items():
        for entry in group if isinstance(group, list) else ():
            if isinstance(entry, dict) and not entry.get("inUse") and not entry.get("coolingDown"):
                leak = _leak(path, str(entry.get("ip") or text), entry)
                leaks[leak.address] = leak
    handles = {
        str(each.get("ID")): StrayHandle(
            str(each.get("ID")), str(each.get("UID") or ""), str(each.get("Revision") or "")
        )
        for each in content.get("leakedHandles") or ()
        if isinstance(each, dict)
    }
    return Report(
        path,
        str(content.get("version") or ""),
        str(content.get("clusterGUID") or ""),
        str(content.get("clusterInformationRevision") or ""),
        leaks,
        handles,
    )


def _content(path: str, text: str) -> dict[str, Any]:
    """Return what a report holds. Raises Told; under calicoctl's name in the words of Go's decoder."""
    from calico_ipam.datastore.gojson import BadDocument, kind_of, parse

    way_out = "Make one with 'ipamctl ipam check -o FILE'."
    try:
        content = parse(text)
    except BadDocument as error:
        raise Told(f"{path} is no report: {error}", exact=str(error), hint=way_out) from None
    content = {} if content is None else content
    place, wrong = "Go value of type ipam.CheckReport", content
    if isinstance(content, dict):
        place, wrong = "Go struct field CheckReport.allocations of type map[string][]*ipam.Allocation", None
        if not isinstance(content.get("allocations"), dict | None):
            wrong = content["allocations"]
    if wrong is not None:
        exact = f"json: cannot unmarshal {kind_of(wrong)} into {place}"
        raise Told(f"{path} is no report of 'ipam check'", exact=exact, hint=way_out)
    found: dict[str, Any] = content
    return found


def _leak(path: str, text: str, entry: Mapping[str, Any]) -> Leak:
    try:
        address = parse_address(text)
    except InvalidInput:
        raise Told(
            f"{path} holds {text!r}, which is no address", hint="The report was damaged: make a new one."
        ) from None
    number = entry.get("sequenceNumber")
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise Told(
            f"{path} has the sequence number {number!r} for {address}, which is no whole number",
            hint="Editors that compute with fractions damage reports: make a new one.",
        )
    handle = entry.get("handle")
    return Leak(
        address,
        str(handle) if handle else None,
        number,
        bool(handle or entry.get("type") or entry.get("pod")),
        entry,
    )


def merge(reports: Sequence[Report], *, strictly: bool) -> tuple[dict[Address, Leak], dict[str, StrayHandle]]:
    """Return what every report says is leaked, as the latest says it (cli §5.3). ``strictly``: an address whose
    handle or sequence number differs between reports was used again in between, and is left alone (limit 18.13)."""
    leaks, handles = dict(reports[0].leaks), dict(reports[0].handles)
    for report in reports[1:]:
        kept: dict[Address, Leak] = {}
        for address, leak in report.leaks.items():
            before = leaks.get(address)
            if before is None:
                continue
            same = (before.handle, before.sequence_number) == (leak.handle, leak.sequence_number)
            if same or not strictly:
                kept[address] = leak
        leaks = kept
        handles = {
            name: each
            for name, each in report.handles.items()
            if name in handles and handles[name].revision == each.revision
        }
    return leaks, handles
