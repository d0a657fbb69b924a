"""The tokens of recorded operator commands: put into inputs, matched in outputs (README of the recordings)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(r"\{\{(etcd|k8s|kubeconfig|token|cwd|rev:[^{}]+|uid:[^{}]+|xuid:[^{}]+|uuid|hex32|now|addr)\}\}")

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
PATTERNS = {
    "uuid": UUID,
    "hex32": "[0-9a-f]{32}",
    "now": r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\"]*",
    "addr": "0x[0-9a-f]+",
}

#: name of a token -> the values that it may stand for, or None when it is not known
Known = Callable[[str], "set[str] | None"]


def expand(text: str, known: Known) -> str:
    """Return an input with its tokens replaced."""

    def value(match: re.Match[str]) -> str:
        found = known(match[1])
        assert found, f"nothing is known of {match[0]}"
        return sorted(found, key=lambda each: (len(each), each))[-1]

    return TOKEN.sub(value, text)


def pattern(text: str, known: Known) -> re.Pattern[str]:
    """Return what matches an output that was recorded as ``text``."""
    parts, position = [], 0
    for match in TOKEN.finditer(text):
        parts.append(re.escape(text[position : match.start()]))
        parts.append(_alternatives(match[1], known))
        position = match.end()
    parts.append(re.escape(text[position:]))
    return re.compile("".join(parts), re.DOTALL)


def _alternatives(token: str, known: Known) -> str:
    if token in PATTERNS:
        return PATTERNS[token]
    if token == "rev:list":
        return r"\d+"
    found = known(token)
    if not found:
        return UUID if token.startswith(("uid:", "xuid:")) else r"\d+"
    return "(?:" + "|".join(re.escape(each) for each in sorted(found)) + ")"


def same_text(recorded: str, ours: str, known: Known) -> bool:
    return pattern(recorded, known).fullmatch(ours) is not None


def same_document(recorded: Any, ours: Any, known: Known, *, ordered: bool = True) -> bool:
    """Tell whether a document is the recorded one; ``ordered``: with its fields in the same order."""
    texts = [json.dumps(each, ensure_ascii=False, sort_keys=not ordered) for each in (recorded, ours)]
    return same_text(texts[0], texts[1], known)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is new or different in ``after``, and None for what is gone."""
    return {
        key: after.get(key)
        for key in sorted(before.keys() | after.keys())
        if json.dumps(before.get(key)) != json.dumps(after.get(key))
    }
