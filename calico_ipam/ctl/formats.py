"""How resources are written: tables of columns, YAML and JSON as calicoctl writes them (cli §8.2)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from calico_ipam.ctl.kinds import Kind
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.pool import AUTOMATIC, DEFAULT_BLOCK_SIZE, TUNNEL, WORKLOAD
from calico_ipam.model.resource import Resource
from calico_ipam.model.resource_schema import ANY, METADATA, SCHEMAS, is_kept

#: kinds whose status is shown even when it is empty
_WITH_STATUS = frozenset({"Node", "KubeControllersConfiguration", "Tier"})
#: fields of the metadata that --export leaves out
_PRIVATE = (
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def completed(resource: Resource) -> Resource:
    """Return a resource as a reader sees it: a pool with its defaults (cli §9.1)."""
    if resource.kind != "IPPool":
        return resource
    spec = dict(resource.spec)
    try:
        version = parse_network(str(spec.get("cidr"))).version
    except InvalidInput:
        return resource  # upstream fills in nothing then
    defaults = {
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "blockSize": DEFAULT_BLOCK_SIZE[version],
        "nodeSelector": "all()",
        "allowedUses": [WORKLOAD, TUNNEL],
        "assignmentMode": AUTOMATIC,
    }
    return resource.with_spec({**spec, **{name: value for name, value in defaults.items() if not spec.get(name)}})


def document(resource: Resource, *, export: bool = False) -> dict[str, Any]:
    """Return a resource as it is printed: in Go's order of fields."""
    if resource.kind not in SCHEMAS and resource.kind not in _WITH_STATUS:
        return {k: v for k, v in resource.document.items() if k != "counts"}
    made = completed(resource)
    metadata = {name: made.metadata[name] for name in METADATA if made.metadata.get(name)}
    if export:
        metadata = {name: value for name, value in metadata.items() if name not in _PRIVATE}
    schema = SCHEMAS.get(made.kind)
    spec = dict(made.spec)
    if schema is not None and schema.spec != ANY:
        ordered = {
            name: spec[name]
            for name, kind in schema.spec.items()
            if name in spec and is_kept(spec[name], kind, name in schema.kept | schema.shown)
        }
        spec = ordered | {name: value for name, value in spec.items() if name not in schema.spec}
    found: dict[str, Any] = {
        "kind": made.kind,
        "apiVersion": "projectcalico.org/v3",
        "metadata": metadata,
        "spec": spec,
    }
    status = made.document.get("status")
    if status or made.kind in _WITH_STATUS:
        found["status"] = status or {}
    return found


def list_document(kind: str, resources: Sequence[Resource], revision: str) -> dict[str, Any]:
    version = "projectcalico.org/v3" if kind in SCHEMAS or kind in _WITH_STATUS else "crd.projectcalico.org/v1"
    return {
        "kind": f"{kind}List",
        "apiVersion": version,
        "metadata": {"resourceVersion": revision} if revision else {},
        "items": [document(each) for each in resources],
    }


def as_json(value: Any) -> str:
    """Return JSON as Go's encoder indents it, without a line feed at the end."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    for sign in "&<>\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def as_yaml(value: Any) -> str:
    """Return YAML as calicoctl writes it: keys sorted, texts that look like something else in double quotes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        style = None
        if "\n" in value:
            style = "|"
        elif _means_more(value) or dumper.resolve(yaml.ScalarNode, value, (True, False)) != _TEXT:
            style = '"'
        return dumper.represent_scalar(_TEXT, value, style=style)

    Dumper.add_representer(str, text)
    found: str = yaml.dump(
        value, Dumper=Dumper, sort_keys=True, allow_unicode=True, default_flow_style=False, width=10**6
    )
    return found.removesuffix("...\n") if value is None else found


_TEXT = "tag:yaml.org,2002:str"
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


def _means_more(text: str) -> bool:
    """Tell whether Go's YAML takes a text for something else, where Python's does not: 1e3, 08, 00:11:22:33:44:55."""
    if text in ("y", "n", "Y", "N") or _BASE_60.fullmatch(text):
        return True
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def columns_table(kind: Kind, headings: Sequence[str], resources: Sequence[Resource]) -> str:
    """Return a table as calicoctl's: every cell three wider than the widest, the last one too; a blank line follows."""
    rows = [[kind.cells[heading](completed(each)) for heading in headings] for each in resources]
    widths = [max(5, *(len(row[i]) + 3 for row in [list(headings), *rows])) for i in range(len(headings))]
    lines = ["".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]
    return "\n".join(lines) + "\n\n"
