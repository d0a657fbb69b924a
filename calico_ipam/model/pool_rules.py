"""What a new pool must satisfy (cli §9, datastore §3.7). Pure: everything it needs is handed in.

Upstream's texts are kept, because scripts and people know them; the way out is in the hint beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network, make_network, overlaps, parse_network
from calico_ipam.model.metadata_rules import annotation_rules, label_rules, name_rules
from calico_ipam.model.pool import (
    AUTOMATIC,
    DEFAULT_BLOCK_SIZE,
    LOAD_BALANCER_USE,
    TUNNEL,
    WORKLOAD,
    Pool,
)
from calico_ipam.model.pool_schema import ALLOWED_USES, NEVER, has_host_bits, schema_rules
from calico_ipam.model.resource import IP_POOL, Resource, mapping
from calico_ipam.model.selector import parse_selector

_CIDR_FIELD = "IPPool.Spec.CIDR"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the field, its value (None: not quoted), upstream's reason, and the way out."""

    field: str
    value: str | None
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        quoted = "" if self.value is None else f" = '{self.value}'"
        return f"{self.field}{quoted} ({self.reason})"


def refusal(violations: Sequence[Violation], subject: str) -> InvalidInput:
    """Return the error for broken rules in upstream's words: one line for one, a list for several; one hint a line."""
    if len(violations) == 1:
        text = f"error with field {violations[0]}"
    else:
        text = "error with the following fields:\n" + "".join(f"-  {violation}\n" for violation in violations)
    hints = dict.fromkeys(violation.hint for violation in violations if violation.hint)
    return InvalidInput(text, subject=subject, reason=violations[0].reason, hint="\n".join(hints))


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A pool as somebody asks for it. ``block_size`` 0 and empty ``allowed_uses`` mean the defaults (cli §9.1)."""

    name: str
    cidr: str  #: as written
    block_size: int = 0
    node_selector: str = "all()"
    namespace_selector: str = ""
    allowed_uses: tuple[str, ...] = ()
    assignment_mode: str = AUTOMATIC
    disabled: bool = False
    nat_outgoing: bool = False
    disable_bgp_export: bool = False
    ipip_mode: str = NEVER
    vxlan_mode: str = NEVER
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PoolRequest:
        """Return what an IPPool document asks for."""
        spec, metadata = mapping(document.get("spec")), mapping(document.get("metadata"))
        return cls(
            name=str(metadata.get("name") or ""),
            cidr=str(spec.get("cidr") or ""),
            block_size=int(spec.get("blockSize") or 0),
            node_selector=str(spec.get("nodeSelector") or "all()"),
            namespace_selector=str(spec.get("namespaceSelector") or ""),
            allowed_uses=tuple(spec.get("allowedUses") or ()),
            assignment_mode=str(spec.get("assignmentMode") or AUTOMATIC),
            disabled=spec.get("disabled") is True,
            nat_outgoing=spec.get("natOutgoing") is True,
            disable_bgp_export=spec.get("disableBGPExport") is True,
            ipip_mode=str(spec.get("ipipMode") or NEVER),
            vxlan_mode=str(spec.get("vxlanMode") or NEVER),
            labels=dict(mapping(metadata.get("labels"))),
            annotations=dict(mapping(metadata.get("annotations"))),
        )

    @property
    def uses(self) -> tuple[str, ...]:
        return self.allowed_uses or (WORKLOAD, TUNNEL)

    @property
    def encapsulated(self) -> bool:
        return self.ipip_mode != NEVER or self.vxlan_mode != NEVER

    def block_prefix(self, cidr: Network) -> int:
        """Return the prefix length of the pool's blocks."""
        return self.block_size or DEFAULT_BLOCK_SIZE[cidr.version]

    def resource(self, cidr: Network) -> Resource:
        """Return the document to store, defaults filled in as upstream's client does; false booleans are left out."""
        spec: dict[str, Any] = {
            "cidr": str(cidr),
            "vxlanMode": self.vxlan_mode,
            "ipipMode": self.ipip_mode,
            "natOutgoing": self.nat_outgoing,
            "disabled": self.disabled,
            "disableBGPExport": self.disable_bgp_export,
            "blockSize": self.block_prefix(cidr),
            "nodeSelector": self.node_selector or "all()",
            "namespaceSelector": self.namespace_selector,
            "allowedUses": list(self.uses),
            "assignmentMode": self.assignment_mode,
        }
        kept = {key: value for key, value in spec.items() if value is not False and value != ""}
        return Resource.new(IP_POOL, self.name, kept, labels=self.labels, annotations=self.annotations)


def default_pool_name(cidr: str) -> str:
    """Return the name of a pool that nobody named: ``pool-10-244-0-0-16``."""
    return "pool-" + re.sub(r"[^a-z0-9]", "-", cidr.strip().lower()).strip("-")


def check_new_pool(request: PoolRequest, existing: Iterable[Pool], *, schema: bool = True) -> Network:
    """Return the masked CIDR of a pool that breaks no rule that pools alone can tell. Raises InvalidInput.

    The order is upstream's (cli §9.2): the CIDR, then overlaps and host bits, then everything else; each stage is
    reported as a whole. An existing pool of the same name is not compared: that one is "already exists". Without
    ``schema`` the rules of the schema are left to whoever stores the pool.
    """
    cidr = _cidr(request)
    _refuse_first(request, _cidr_rules(request, cidr, existing), _other_rules(request, cidr, schema=schema))
    return cidr


def check_pool_alone(request: PoolRequest) -> None:
    """Refuse a pool that breaks a rule which it alone can tell: what ``validate`` knows (cli §8.3). Raises
    InvalidInput."""
    cidr = _cidr(request)
    broken = [*_metadata_rules(request)]
    if has_host_bits(request, cidr):
        hint = f"{request.cidr} has host bits set: write {cidr}."
        reason = "Reason: failed to validate Field: CIDR because of Tag: net "
        broken.append(Violation("CIDR", request.cidr, reason, hint))
    broken += [*_field_rules(request), *_schema_rules(request, cidr)]
    _refuse_first(request, broken)


def _refuse_first(request: PoolRequest, *stages: Iterable[Violation]) -> None:
    """Raise InvalidInput for the first stage in which a rule is broken, with all that is wrong there."""
    for stage in stages:
        broken = list(stage)
        if broken:
            raise refusal(broken, f"{IP_POOL}({request.name})")


def _other_rules(request: PoolRequest, cidr: Network, *, schema: bool) -> Iterator[Violation]:
    yield from _metadata_rules(request)
    yield from _field_rules(request)
    if schema:
        yield from _schema_rules(request, cidr)


def check_existing_blocks(request: PoolRequest, cidr: Network, blocks: Iterable[Network]) -> None:
    """Refuse a block size that existing blocks in the CIDR do not have (cli §9.2 rule 11; public report P01).

    Two sizes over the same addresses is how one address gets two owners. Raises InvalidInput.
    """
    prefix = request.block_prefix(cidr)
    other = sorted({b.prefixlen for b in blocks if b.prefixlen != prefix and overlaps(b, cidr)})
    if not other:
        return
    sizes = " and ".join(f"/{size}" for size in other)
    way_out = (
        f"Use --block-size {other[0]}, or release the addresses of these blocks first."
        if len(other) == 1
        else "Release the addresses of these blocks first, or choose another CIDR."
    )
    violation = Violation(
        "IPPool.Spec.BlockSize",
        str(prefix),
        "IPPool blocksSize conflicts with existing allocations that use a different blockSize",
        f"{cidr} already holds blocks of {sizes}. {way_out}",
    )
    raise refusal([violation], f"{IP_POOL}({request.name})")


def _cidr(request: PoolRequest) -> Network:
    subject = f"{IP_POOL}({request.name})"
    example = "Give a network with its prefix length, such as 10.244.0.0/16 or fd00:10:244::/48."
    if not request.cidr:
        raise refusal([Violation(_CIDR_FIELD, None, "IPPool CIDR must be specified", example)], subject)
    try:
        cidr = parse_network(request.cidr) if "/" in request.cidr else None
    except InvalidInput:
        cidr = None
    if cidr is None:
        raise refusal([Violation(_CIDR_FIELD, request.cidr, "IPPool CIDR must be a valid subnet", example)], subject)
    return cidr


def _cidr_rules(request: PoolRequest, cidr: Network, existing: Iterable[Pool]) -> Iterator[Violation]:
    for pool in existing:
        if pool.name != request.name and overlaps(pool.cidr, cidr):
            yield Violation(
                _CIDR_FIELD,
                str(cidr),
                f"{IP_POOL}({request.name}) CIDR overlaps with {IP_POOL}({pool.name}) CIDR {pool.cidr_text}",
                f"Choose a CIDR outside {pool.cidr_text}, or delete pool {pool.name} first.",
            )
    if has_host_bits(request, cidr):
        yield Violation(
            _CIDR_FIELD,
            str(cidr),
            "IPPool CIDR is not strictly masked",
            f"{request.cidr} has host bits set: write {cidr}.",
        )


def _schema_rules(request: PoolRequest, cidr: Network) -> Iterator[Violation]:
    for field_, reason, hint in schema_rules(request, cidr):
        yield Violation(field_, None, reason, hint)


def _metadata_rules(request: PoolRequest) -> Iterator[Violation]:
    for broken in (*name_rules(request.name), *label_rules(request.labels), *annotation_rules(request.annotations)):
        yield Violation(broken.field, broken.value, broken.reason, broken.hint)


def _field_rules(request: PoolRequest) -> Iterator[Violation]:
    for title, option, text in (
        ("NodeSelector", "--node-selector", request.node_selector),
        ("NamespaceSelector", "--namespace-selector", request.namespace_selector),
    ):
        try:
            parse_selector(text or "all()")
        except InvalidInput as error:
            yield Violation(
                title,
                text,
                f"Reason: failed to validate Field: {title} because of Tag: selector ",
                f"{option} does not parse: {error}. Examples: all(), zone == 'a', has(rack) && !has(gpu).",
            )
    for use in request.allowed_uses:
        if use not in ALLOWED_USES:
            given = f"[{' '.join(request.allowed_uses)}]"
            hint = f"Choose from {', '.join(ALLOWED_USES)}."
            yield Violation("IPpool.AllowedUses", given, f"unknown use: {use}", hint)


def check_changed_pool(request: PoolRequest, stored: Resource, *, schema: bool = True) -> Network:
    """Return the masked CIDR of a pool that is to replace ``stored`` (cli §9.2 rules 1 to 6 and 8 to 10).

    Raises InvalidInput.
    """
    cidr = _cidr(request)
    if LOAD_BALANCER_USE in (stored.spec.get("allowedUses") or ()) and set(request.uses) != {LOAD_BALANCER_USE}:
        broken = Violation(
            "IPPool.Spec.AllowedUses",
            f"[{' '.join(request.uses)}]",
            "IPPool allowed use cannot be changed from LoadBalacer to Workload or Tunnel",
            "Make another pool for workloads.",
        )
        raise refusal([broken], f"{IP_POOL}({request.name})")
    _refuse_first(request, _change_rules(request, cidr, stored), _other_rules(request, cidr, schema=schema))
    return cidr


def _change_rules(request: PoolRequest, cidr: Network, stored: Resource) -> Iterator[Violation]:
    before = str(stored.spec.get("cidr") or "")
    try:
        network = parse_network(before)
    except InvalidInput:
        network = None
    if network != cidr:
        yield Violation(
            _CIDR_FIELD,
            str(cidr),
            "IPPool CIDR cannot be modified",
            f"Pool {request.name} has {before}; make a new pool.",
        )
    version = network.version if network is not None else cidr.version
    size = int(stored.spec.get("blockSize") or 0) or DEFAULT_BLOCK_SIZE[version]
    if request.block_prefix(cidr) != size:
        yield Violation(
            "IPPool.Spec.BlockSize",
            str(request.block_prefix(cidr)),
            "IPPool BlockSize cannot be modified",
            f"Pool {request.name} has blocks of /{size}; 'ipamctl pool resize' changes them safely.",
        )
    yield from _cidr_rules(request, cidr, ())


def ula_network(random_bits: int) -> Network:
    """Return a unique local /48 (RFC 4193) made from 40 random bits."""
    return make_network(6, (0xFD << 120) | ((random_bits & ((1 << 40) - 1)) << 80), 48)
