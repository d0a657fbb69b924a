"""calicoctl's words for a check (cli §4.1), line by line."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from calico_ipam.engine import check
from calico_ipam.engine.survey import WINDOWS_USER
from calico_ipam.errors import InvalidInput
from calico_ipam.model.block_faults import fault
from calico_ipam.model.findings import Finding
from calico_ipam.model.keys import BlockKey

if TYPE_CHECKING:
    from calico_ipam.engine.survey import Survey

TOP = 20

Part = Generator[str, None, int]  # lines of a section, and how many problems it found


def lines(survey: Survey, *, show_all: bool, show_problems: bool, found: list[Finding] | None = None) -> Iterator[str]:
    """Yield the text of a check. ``found``: findings that were looked at twice; what is not among them is left out.
    Raises InvalidInput where calicoctl gives up: an address of a node or a workload that does not parse."""
    show_problems = show_problems or show_all
    yield from _blocks(survey, show_all=show_all)
    yield from _pools(survey)
    yield from _users(survey, show_all=show_all)
    yield "Loading all handles"
    yield from _top(survey)
    is_sure = _among(found, "leaked", "unattributed")
    leaks = [address for address in check.leaked(survey) if is_sure(str(address))]
    yield "Scanning for IPs that are allocated but not actually in use..."
    if show_problems:
        for address in leaks:
            for each in survey.allocations[address]:
                yield f"  {address} leaked; attrs {each.attributes_text}"
    yield f"Found {len(leaks)} IPs that are allocated in IPAM but not actually in use."
    problems = len(leaks)
    for part in (_not_allocated, _handles, _structures):
        problems += yield from part(survey, found, show_all, show_problems)
    yield f"Check complete; found {problems} problems."


def _among(found: list[Finding] | None, *kinds: str) -> Callable[[str], bool]:
    """Return a test whether there is a finding of one of these kinds about a subject; without findings it is always
    passed."""
    if found is None:
        return lambda _subject: True
    return {each.subject for each in found if each.kind in kinds}.__contains__


def _blocks(survey: Survey, *, show_all: bool) -> Iterator[str]:
    yield "Loading all IPAM blocks..."
    yield f"Found {len(survey.blocks)} IPAM blocks."
    of_block: dict[object, list[tuple[int, str]]] = {}
    if show_all:
        for each in survey.every_allocation():
            line = f"  {each.address} allocated; attrs {each.attributes_text}"
            of_block.setdefault(each.block.cidr, []).append((2 * each.ordinal, line))
            if each.attribute.windows_reserved:
                line = f"  {each.address} belongs to {WINDOWS_USER}"
                of_block[each.block.cidr].append((2 * each.ordinal + 1, line))
    for block in survey.blocks:
        yield f" IPAM block {block.cidr} affinity={block.affinity or '<none>'}:"
        yield from (line for _, line in sorted(of_block.get(block.cidr, ())))
    yield f"IPAM blocks record {survey.counts['allocations']} allocations."
    yield ""


def _pools(survey: Survey) -> Iterator[str]:
    yield "Loading all IPAM pools..."
    active = survey.active_pools
    yield from (f"  {pool.cidr_text}" for pool in active)
    yield f"Found {len(active)} active IP pools."
    yield ""


def _users(survey: Survey, *, show_all: bool) -> Iterator[str]:
    def belonging(kind: str) -> Iterator[str]:
        if show_all:
            for address, users in survey.users.items():
                yield from (f"  {address} belongs to {user.name}" for user in users if user.kind == kind)

    yield "Loading all nodes."
    for title, value, node in () if survey.kubernetes else survey.bad_tunnels:
        raise InvalidInput(
            f"failed to parse {title} ({value}) of node {node}: invalid CIDR address: {value}", subject=node
        )
    yield from belonging("node")
    yield f"Found {survey.counts['tunnels']} node tunnel IPs."
    yield ""
    yield "Loading all service load balancer IPs."
    yield from belonging("service")
    yield survey.services_skipped or f"Found {survey.services} service load balancer(s)."
    yield ""
    yield "Loading all workload endpoints."
    for endpoint, value in survey.bad_networks:
        raise InvalidInput(
            f"failed to parse IP ({value}) of workload {endpoint}: invalid CIDR address: {value}", subject=endpoint
        )
    yield from belonging("workload")
    yield f"Found {survey.counts['workloads']} workload IPs."
    yield f"Workloads and nodes are using {len(survey.users)} IPs."
    yield ""


def _top(survey: Survey) -> Iterator[str]:
    yield f"Looking for top (up to {TOP}) nodes by allocations..."
    counts: dict[str, int] = {}
    for each in survey.every_allocation():
        # An address of a virtual owner names no node.
        counts[each.node] = counts.get(each.node, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield from (f"  {node} has {number} allocations" for node, number in ordered[:TOP])
    if ordered:
        yield f"Node with most allocations has {ordered[0][1]}; median is {ordered[len(ordered) // 2][1]}"
    yield ""


def _not_allocated(survey: Survey, found: list[Finding] | None, _show_all: bool, show_problems: bool) -> Part:
    yield "Scanning for IPs that are in use by a workload or node but not allocated in IPAM..."
    outside = inside = 0
    is_sure = _among(found, "not-in-pool", "not-allocated")
    active = survey.active_pools
    odd = (a for a, users in survey.users.items() if len(users) > 1 or a not in survey.allocations)
    for address in sorted(odd, key=lambda each: (each.version, int(each))):
        users = survey.users[address]
        if show_problems and len(users) > 1:
            yield f"  {address} has multiple owners."
        if address in survey.allocations or not is_sure(str(address)):
            continue
        in_pool = survey.pool_of(address, active) is not None
        outside, inside = outside + (not in_pool), inside + in_pool
        if show_problems:
            for user in users:
                tail = (
                    "and in active IPAM pool but has no IPAM allocation."
                    if in_pool
                    else "is not in any active IP pool."
                )
                yield f"  {address} in use by {user.name} {tail}"
    yield f"Found {outside} in-use IPs that are not in active IP pools."
    yield f"Found {inside} in-use IPs that are in active IP pools but have no corresponding IPAM allocation."
    yield ""
    return outside + inside


def _handles(survey: Survey, found: list[Finding] | None, show_all: bool, show_problems: bool) -> Part:
    stray = sorted(filter(_among(found, "stray-handle"), survey.handles.keys() - survey.holdings.keys()))
    missing = sorted(filter(_among(found, "missing-handle"), survey.holdings.keys() - survey.handles.keys()))
    yield "Scanning for IPAM handles with no matching IPs..."
    if show_all:
        yield from (f"  {handle} doesn't have any active IPs." for handle in stray)
    matched = len(survey.handles) - len(stray)
    yield f"Found {len(stray)} handles with no matching IPs (and {matched} handles with matches)."
    yield "Scanning for IPs with missing handle..."
    if show_problems:
        yield from (f"  {handle} is in use in a block but doesn't exist." for handle in missing)
    yield f"Found {len(missing)} handles mentioned in blocks with no matching handle resource."
    return len(stray)


def _structures(survey: Survey, found: list[Finding] | None, _show_all: bool, _show_problems: bool) -> Part:
    yield "Validating IPAMBlock structures..."
    number = 0
    is_sure = _among(found, "invalid-block", "lost-ordinals")
    for block in survey.blocks:
        what = fault(block, survey.now) if is_sure(str(block.cidr)) else ""
        if what:
            number += 1
            yield f"  IPAMBlock {BlockKey(block.cidr)} is invalid: {what}"
    yield f"Found {number} invalid IPAMBlocks."
    return number
