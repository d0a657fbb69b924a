"""Labels that other orchestrators send in ``args`` (cni.md §6.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calico_cni.context import Call
    from calico_cni.identity import Identity

NAMESPACE_LABEL = "projectcalico.org/namespace"
ORCHESTRATOR_LABEL = "projectcalico.org/orchestrator"

_FOREIGN = re.compile(r"[^-_.a-zA-Z0-9]+")
_DOTTED = re.compile(r"[-.]*\.[-.]*")


def sanitised(value: str) -> str:
    """Return a text as a label's key or value may be: ``//my/val/`` becomes ``my.val``."""
    text = _FOREIGN.sub("-", value.replace("/", "."))
    return _DOTTED.sub(".", text).strip(".-")


def split_labels(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], str]:
    """Return the labels, and the namespace that one of them names instead (empty: none)."""
    labels: dict[str, str] = {}
    namespace = ""
    for key, value in pairs:
        if key == NAMESPACE_LABEL:
            namespace = sanitised(value)
        else:
            labels[sanitised(key)] = sanitised(value)
    return labels, namespace


def workload_namespace(call: Call, identity: Identity) -> tuple[dict[str, str], str]:
    """Return the workload's labels and the namespace of its record, which a label may choose."""
    labels, chosen = split_labels(call.conf.labels)
    return labels, chosen or identity.namespace
