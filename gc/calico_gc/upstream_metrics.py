"""Upstream's metrics, line for line as its own controller prints them, so that dashboards go on working (gc §14).

They are rendered here because client libraries append ``_total`` to counters and print large numbers otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from calico_gc.pools import NO_POOL
from calico_gc.view import View, usage

HELP: Mapping[str, tuple[str, str]] = {
    "ipam_allocations_borrowed": (
        "gauge",
        "IPs currently allocated in IPAM to a workload or tunnel endpoint, where the allocation was borrowed from a "
        "block affine to another node.",
    ),
    "ipam_allocations_borrowed_per_node": ("gauge", "Number of allocated IPs that are from non-affine blocks."),
    "ipam_allocations_gc_candidates": (
        "gauge",
        "Allocations that are currently marked by the garbage collector as potential candidates to reclaim. Under "
        "normal operation, this metric should return to zero after the garbage collector confirms that this "
        "allocation can be reclaimed and reclaims it, or the allocation is confirmed as valid.",
    ),
    "ipam_allocations_gc_reclamations": (
        "counter",
        "The total allocations that have been reclaimed by the garbage collector over time. Under normal operation, "
        "this counter should increase, and increases of this counter should align to a return to zero for the "
        "candidate gauge.",
    ),
    "ipam_allocations_in_use": ("gauge", "IPs currently allocated in IPAM to a workload or tunnel endpoint."),
    "ipam_allocations_per_node": ("gauge", "Number of IPs allocated"),
    "ipam_blocks": ("gauge", "IPAM blocks currently allocated for the IP pool."),
    "ipam_blocks_per_node": ("gauge", "Number of blocks in IPAM"),
    "ipam_ippool_reserved": (
        "gauge",
        "Number of addresses in the IP Pool that an IPReservation covers, and so cannot be assigned.",
    ),
    "ipam_ippool_size": ("gauge", "Total number of addresses in the IP Pool"),
}
LEGACY = frozenset({"ipam_allocations_borrowed_per_node", "ipam_allocations_per_node", "ipam_blocks_per_node"})
Labels = tuple[tuple[str, str], ...]


def render(view: View, *, legacy: bool = True) -> str:
    """Return the lines of all of upstream's metrics. ``legacy``: the totals per node too."""
    return "".join(f"{line}\n" for line in lines(view, legacy=legacy))


def lines(view: View, *, legacy: bool = True) -> Iterator[str]:
    samples = _samples(view)
    for name, (kind, text) in HELP.items():
        if not samples.get(name) or (name in LEGACY and not legacy):
            continue
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for labels, value in sorted(samples[name].items()):
            inside = ",".join(f'{label}="{escaped(content)}"' for label, content in labels)
            yield f"{name}{{{inside}}} {number(value)}"


def _samples(view: View) -> dict[str, dict[Labels, float]]:
    sizes: dict[Labels, float] = {(("ippool", name),): float(pool.size) for name, pool in view.pools.items()}
    if not view.measured:
        return {"ipam_ippool_size": sizes}
    used = usage(view)
    reserved: dict[Labels, float] = {
        (("ippool", name),): float(pool.reserved(view.reservations)) for name, pool in view.pools.items()
    }
    # Each real pool has a line for each node, so that a rate can be taken from the first allocation on.
    zeros = {(pool, node): 0 for pool in view.pools for node in view.nodes}
    return {
        "ipam_allocations_borrowed": _by_pool({**zeros, **used.borrowed}),
        "ipam_allocations_borrowed_per_node": _by_node(used.borrowed),
        "ipam_allocations_gc_candidates": _by_pool({**zeros, **used.candidates}),
        "ipam_allocations_gc_reclamations": _by_pool(
            {k: n for k, n in view.counts.reclaimed.items() if k[0] in view.pools or k[0] == NO_POOL}
        ),
        "ipam_allocations_in_use": _by_pool({**zeros, **used.in_use}),
        "ipam_allocations_per_node": _by_node({k: n for k, n in used.in_use.items() if k[1] != "unknown_node"}),
        "ipam_blocks": _by_pool(used.blocks),
        "ipam_blocks_per_node": _by_node(used.blocks),
        "ipam_ippool_reserved": reserved,
        "ipam_ippool_size": sizes,
    }


def _by_pool(counts: Mapping[tuple[str, str], int]) -> dict[Labels, float]:
    return {(("ippool", pool), ("node", node)): float(n) for (pool, node), n in counts.items()}


def _by_node(counts: Mapping[tuple[str, str], int]) -> dict[Labels, float]:
    totals: Counter[str] = Counter()
    for (_, node), n in counts.items():
        totals[node] += n
    return {(("node", node),): float(n) for node, n in totals.items()}


def escaped(text: str) -> str:
    """Return the text of a label as the text format wants it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """Return a number as Go prints it with as few digits as needed: with an exponent from a million on."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        whole = text.removesuffix(".0")
        digits = len(whole.lstrip("-").partition(".")[0])
        if abs(value) < _EXPONENT_FROM:
            return whole
        significant = whole.replace(".", "").lstrip("-0").rstrip("0")
        head = significant[0] + (f".{significant[1:]}" if len(significant) > 1 else "")
        return f"{'-' if value < 0 else ''}{head}e+{digits - 1:02d}"
    sign, size = exponent[:1], exponent.lstrip("+-")
    return f"{mantissa.removesuffix('.0')}e{'-' if sign == '-' else '+'}{int(size):02d}"


#: Go prints with an exponent from here on
_EXPONENT_FROM = 1e6
