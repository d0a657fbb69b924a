"""How a replayed step is compared with the recorded one: documents, results and errors (README §1.5, §3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from calico_ipam import errors

#: Go type name of an error class -> our class. The two Go types without a class of their own are not listed: for them
#: the text and the sentinel count, and ours must not be of a listed class either.
CLASSES: Mapping[str, type[errors.IPAMError] | tuple[type[errors.IPAMError], ...]] = {
    "errors.ErrorResourceDoesNotExist": errors.NotFound,
    "errors.ErrorResourceAlreadyExists": errors.AlreadyExists,
    "errors.ErrorResourceUpdateConflict": (
        errors.Conflict,
        errors.BadSequenceNumber,
        errors.BadHandle,
        errors.OwnerMismatch,
    ),
    "errors.ErrorBadSequenceNumber": errors.BadSequenceNumber,
    "errors.ErrorBadHandle": errors.BadHandle,
    "errors.ErrorIPInCooldown": errors.AddressInCooldown,
    "errors.ErrorInsufficientIdentifiers": errors.InvalidInput,
    "errors.ErrorParsingDatastoreEntry": errors.StoreDamaged,
    "errors.ErrorDatastoreError": (errors.StoreError, errors.OutcomeUnknown),
    "ipam.errBlockNotEmpty": errors.BlockNotEmpty,
    "ipam.invalidSizeError": errors.InvalidSize,
    "ipam.noFreeBlocksError": errors.NoFreeBlocks,
}
CLASSLESS = {"*errors.errorString", "*fmt.wrapError"}

#: name of upstream's sentinel error -> our class
SENTINELS: Mapping[str, type[errors.IPAMError]] = {
    "ErrNoQualifiedPool": errors.NoQualifiedPool,
    "ErrBlockLimit": errors.BlockLimitReached,
    "ErrAlternateOwnerEmpty": errors.AlternateOwnerEmpty,
    "ErrAlternateOwnerMismatch": errors.AlternateOwnerMismatch,
}

#: our classes that upstream wraps in its conflict class: the text of ours is the text of upstream's cause
WRAPPED_IN_CONFLICT = (errors.BadSequenceNumber, errors.BadHandle, errors.OwnerMismatch)


def differences(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Yield one line for each place where two JSON values differ; ``1`` is not ``true``, arrays are ordered."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            if key not in actual:
                yield f"{where}.{key}: expected {_short(expected[key])}, absent"
            elif key not in expected:
                yield f"{where}.{key}: not expected, is {_short(actual[key])}"
            else:
                yield from differences(expected[key], actual[key], f"{where}.{key}")
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{where}: expected {_short(expected)}, is {_short(actual)}"


def state_differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, by key, how two stored states differ."""
    found: dict[str, list[str]] = {}
    for key in sorted({*expected, *actual}):
        if key not in actual:
            found[key] = [f"{key}: expected {_short(expected[key])}, is not stored"]
        elif key not in expected:
            found[key] = [f"{key}: must not be stored, is {_short(actual[key])}"]
        elif expected[key] != actual[key] or repr(expected[key]) != repr(actual[key]):  # the look is quick, not exact
            lines = list(differences(expected[key], actual[key], key))
            if lines:
                found[key] = lines
    return found


def error_differences(
    expected: Mapping[str, Any] | errors.IPAMError | None, actual: errors.IPAMError | None
) -> list[str]:
    """Return how an error differs from the recorded one: class, text, object, sentinel, and cause of a conflict.

    Where an exception names an error of ours, it must be that one.
    """
    if isinstance(expected, errors.IPAMError):
        same = actual is not None and (type(actual), str(actual), actual.subject) == (
            type(expected),
            str(expected),
            expected.subject,
        )
        return [] if same else [f"error: expected {_describe(expected)}, is {actual and _describe(actual)}"]
    if expected is None:
        return [] if actual is None else [f"error: none expected, is {_describe(actual)}"]
    if actual is None:
        return [f"error: expected {expected['type']} {expected['text']!r}, none raised"]
    lines = [*_class_differences(expected, actual), *_text_differences(expected, actual)]
    identifier = expected.get("identifier")
    if identifier is not None and actual.subject != identifier:
        lines.append(f"error: expected about {identifier!r}, is about {actual.subject!r}")
    return lines


def _class_differences(expected: Mapping[str, Any], actual: errors.IPAMError) -> list[str]:
    go_type = expected["type"]
    sentinel = expected.get("is")
    if sentinel is not None:
        return (
            [] if isinstance(actual, SENTINELS[sentinel]) else [f"error: expected {sentinel}, is {_describe(actual)}"]
        )
    if go_type in CLASSLESS:
        cause = expected.get("cause") or {}
        listed = [name for name, ours in CLASSES.items() if isinstance(actual, ours) and name != cause.get("type")]
        # InvalidInput is also what a missing identifier is to us; it is the class of all refused arguments.
        listed = [name for name in listed if name != "errors.ErrorInsufficientIdentifiers"]
        return [f"error: expected one without a class, is {_describe(actual)}"] if listed else []
    if go_type not in CLASSES:
        return [f"error: type {go_type} is not in the table of classes"]
    return [] if isinstance(actual, CLASSES[go_type]) else [f"error: expected {go_type}, is {_describe(actual)}"]


def _text_differences(expected: Mapping[str, Any], actual: errors.IPAMError) -> list[str]:
    text = str(actual)
    if isinstance(actual, WRAPPED_IN_CONFLICT):
        cause = expected.get("cause") or {}
        lines = [] if cause.get("text") == text else [f"error: cause expected {cause.get('text')!r}, is {text!r}"]
        if cause.get("type") in CLASSES and not isinstance(actual, CLASSES[cause["type"]]):
            lines.append(f"error: cause expected {cause['type']}, is {_describe(actual)}")
        text = f"update conflict: {actual.subject}"
    else:
        lines = []
    if expected["text"] != text:
        lines.append(f"error: expected text {expected['text']!r}, is {text!r}")
    return lines


def _describe(error: errors.IPAMError) -> str:
    return f"{type(error).__name__} {str(error)!r}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 400 else f"{text[:400]}… ({len(text)} characters)"
