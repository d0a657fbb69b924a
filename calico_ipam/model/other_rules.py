"""Rules of the resources that are no pools: reservations and settings (cli §10). Upstream's texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.metadata_rules import annotation_rules, label_rules, name_rules
from calico_ipam.model.pool_rules import Violation, refusal
from calico_ipam.model.resource import mapping

METRICS_PORT = 9094
ASSIGN_IPS = ("AllServices", "RequestedServicesOnly")
_SWITCH = ("Enabled", "Disabled")
#: of KubeControllersConfiguration: where a text stands, and what it may be, in the order of the definition
_CHOICES = (
    ("controllers.loadBalancer.assignIPs", ASSIGN_IPS),
    ("controllers.migration.policyNameMigrator", ("Disabled", "Enabled")),
    ("controllers.node.hostEndpoint.autoCreate", _SWITCH),
    ("controllers.node.syncLabels", _SWITCH),
    ("healthChecks", _SWITCH),
    ("logSeverityScreen", ("None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic")),
)
_PORTS = ("debugProfilePort", "prometheusMetricsPort")
_NUMBERS = (("maxBlocksPerHost", 0, 1_000_000), ("ipCooldownSeconds", 0, 1200))


def completed_spec(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with what upstream's client fills in before it stores a resource."""
    made = dict(spec)
    if kind != "KubeControllersConfiguration":
        return made
    made.setdefault("prometheusMetricsPort", METRICS_PORT)
    made["healthChecks"] = made.get("healthChecks") or "Enabled"
    controllers = {name: dict(mapping(each)) for name, each in mapping(made.get("controllers")).items()}
    for name, field, value in (
        ("node", "leakGracePeriod", "15m0s"),
        ("loadBalancer", "assignIPs", ASSIGN_IPS[0]),
        ("migration", "policyNameMigrator", "Enabled"),
    ):
        if name in controllers and not controllers[name].get(field):
            controllers[name][field] = value
    return {**made, "controllers": controllers}


def check_new_name(kind: str, name: str) -> None:
    """Refuse a new resource of a kind of which there is one, under another name. Raises InvalidInput."""
    if kind == "KubeControllersConfiguration" and name != "default":
        raise InvalidInput(
            'Cannot create a Kube Controllers Configuration resource with a name other than "default"',
            subject=name,
            hint="There is one for the whole cluster, and it is named default.",
        )


def check_resource(kind: str, document: Mapping[str, Any], *, schema: bool = True) -> None:
    """Refuse a resource that breaks a rule of its kind; without ``schema`` those that the API server has too are left
    to it. Raises InvalidInput."""
    metadata = mapping(document.get("metadata"))
    name = str(metadata.get("name") or "")
    spec = mapping(document.get("spec"))
    if kind == "IPAMConfiguration" and name != "default":
        raise InvalidInput(
            'Cannot create an IPAMConfiguration resource with a name other than "default"',
            subject=name,
            hint="There is one for the whole cluster, and it is named default.",
        )
    broken = [Violation(each.field, each.value, each.reason, each.hint) for each in _metadata(name, metadata)]
    if kind == "IPReservation":
        broken += _reservation(spec)
    if kind == "IPAMConfiguration":
        broken += _configuration(spec)
    if kind == "KubeControllersConfiguration":
        broken += _controllers(spec)
    if not schema:
        broken = [each for each in broken if not each.field.startswith("spec.")]
    if broken:
        raise refusal(broken, f"{kind}({name})")


def _metadata(name: str, metadata: Mapping[str, Any]) -> Iterator[Any]:
    yield from name_rules(name)
    yield from label_rules(dict(mapping(metadata.get("labels"))))
    yield from annotation_rules(dict(mapping(metadata.get("annotations"))))


def _reservation(spec: Mapping[str, Any]) -> Iterator[Violation]:
    entries = [str(each) for each in spec.get("reservedCIDRs") or ()]
    if any(each and not _parses(each) for each in entries):
        yield Violation(
            "ReservedCIDRs",
            f"[{' '.join(entries)}]",
            "Reason: failed to validate Field: ReservedCIDRs because of Tag: cidrs ",
            "Write networks such as 10.0.0.0/28; a single address as 10.0.0.1/32 or fd00::1/128.",
        )
    for index, each in enumerate(entries):
        if not each or "/" not in each or not _parses(each):
            place = f"spec.reservedCIDRs[{index}]"
            yield Violation(
                place,
                None,
                f'{place} in body must be of type cidr: "{each}"',
                "Write networks such as 10.0.0.0/28; a single address as 10.0.0.1/32 or fd00::1/128.",
            )


def _parses(text: str) -> bool:
    if re.search(r"\s", text):
        return False
    try:
        parse_network(text)
    except InvalidInput:
        return False
    return True


def _configuration(spec: Mapping[str, Any]) -> Iterator[Violation]:
    blocks = spec.get("maxBlocksPerHost")
    if isinstance(blocks, int) and blocks < 0:
        yield Violation(
            "MaxBlocksPerHost", str(blocks), "must be greater than or equal to 0", "0 means no limit of yours."
        )
    for name, lowest, highest in _NUMBERS:
        value = spec.get(name)
        place = f"spec.{name}"
        if isinstance(value, int) and value < lowest:
            yield Violation(place, None, f"{place} in body should be greater than or equal to {lowest}")
        if isinstance(value, int) and value > highest:
            yield Violation(place, None, f"{place} in body should be less than or equal to {highest}")
    persistence = spec.get("kubeVirtVMAddressPersistence")
    if persistence not in (None, "", "Enabled", "Disabled"):
        yield Violation("spec.kubeVirtVMAddressPersistence", None, 'supported values: "Enabled", "Disabled"')


def _controllers(spec: Mapping[str, Any]) -> Iterator[Violation]:
    for path, choices in _CHOICES:
        value: Any = spec
        for step in path.split("."):
            value = mapping(value).get(step)
        if value and value not in choices:
            names = ", ".join(f'"{each}"' for each in choices)
            yield Violation(f"spec.{path}", None, f"supported values: {names}", f"{value!r} is none of them.")
    for name in _PORTS:
        value = spec.get(name)
        place = f"spec.{name}"
        if isinstance(value, int) and value < 0:
            yield Violation(place, None, f"{place} in body should be greater than or equal to 0")
        if isinstance(value, int) and value > 65535:
            yield Violation(place, None, f"{place} in body should be less than or equal to 65535")
