"""JSON text as Go's encoding/json reads and writes it (datastore §2.8).

Documents are shared with programs in Go, so the text written here is theirs byte for byte, and what they accept is
accepted: keys in any letter case, ``null`` for a zero value. Integers never become floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecodeError, JSONDecoder, JSONEncoder
from math import isinf
from typing import Any, NoReturn

MAX_UINT64 = (1 << 64) - 1
MAX_INT64 = (1 << 63) - 1

#: deepest nesting of a document. What was read must also be written and compared, by callers with less stack left.
MAX_DEPTH = 200


class BadDocument(Exception):
    """A text that is no document of the kind expected; the message is the cause, as Go words it."""


def _no_such_number(text: str) -> NoReturn:
    raise BadDocument(f"invalid character {text[:1]!r} looking for beginning of value")


def _float(text: str) -> float:
    number = float(text)
    if isinf(number):  # it could never be written again
        raise BadDocument(f"json: cannot unmarshal number {text} into Go value of type float64")
    return number


# Python alone would take NaN, Infinity and 1e999
_DECODER = JSONDecoder(parse_constant=_no_such_number, parse_float=_float)
_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def parse(text: str) -> Any:
    """Return the value that ``text`` holds. Raises BadDocument."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        end = -1
    if end != len(text):  # there is space around the value, which programs do not write, or no value
        value = _decoded(text)
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        value = without_surrogates(value)
    return value


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except JSONDecodeError as error:
        from calico_ipam.datastore.gosyntax import syntax_error  # only a damaged document needs it

        raise BadDocument(syntax_error(text) or error.msg) from None
    except RecursionError:
        raise BadDocument("exceeded max depth") from None
    except ValueError as error:  # a number of more digits than the interpreter converts
        raise BadDocument(str(error)) from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return
    raise BadDocument("exceeded max depth")


def without_surrogates(value: Any) -> Any:
    """Replace lone halves of surrogate pairs, which no UTF-8 text can hold; Go replaces them on reading as well."""
    if isinstance(value, str):
        return _SURROGATE.sub(_REPLACEMENT, value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    return value


def serialise(value: Any) -> str:
    """Return the text that Go's ``json.Marshal`` gives: compact, ``< > &`` and U+2028/9 escaped, nothing else.

    The order of keys is the caller's; maps are handed in sorted (:func:`sorted_map`).
    """
    text = _ENCODER.encode(value)
    if "<" in text or ">" in text or "&" in text:
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    if not text.isascii():
        text = _SURROGATE.sub(_REPLACEMENT, text).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text


def sorted_map(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map in the order Go writes it: by the bytes of the key."""
    return dict(sorted(items.items()))  # code points sort as their UTF-8 bytes do


def folded(document: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, Any]:
    """Return an object whose keys are spelt as in ``names``: Go takes them in any letter case, the later one wins."""
    if document.keys() <= names:  # nearly always
        return document
    spelt = {name.casefold(): name for name in names}
    return {key if key in names else spelt.get(key.casefold(), key): value for key, value in document.items()}


def kind_of(value: Any) -> str:
    """Return what Go's error texts call a JSON value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


class Schema:
    """The known fields of one struct: name to Go type, in the order they are written."""

    __slots__ = ("_folded", "fields", "struct")

    def __init__(self, struct: str, fields: Mapping[str, str]) -> None:
        self.struct = struct
        self.fields = fields
        self._folded = {name.casefold(): name for name in fields}

    def read(self, document: Any) -> Fields:
        """Split a document into known and unknown fields; ``null`` is an empty one. Raises BadDocument."""
        if document is None:
            return Fields(self, {}, {})
        if not isinstance(document, dict):
            raise BadDocument(f"json: cannot unmarshal {kind_of(document)} into Go value of type model.{self.struct}")
        if document.keys() <= self.fields.keys():  # nearly always
            return Fields(self, document, {})
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in document.items():
            if key in self.fields:
                known[key] = value
            elif (name := self._folded.get(key.casefold())) is not None:
                known[name] = value  # as in Go, the one that stands later wins
            else:
                extra[key] = value
        return Fields(self, known, extra)


class Fields:
    """The fields of one document, each read as the type it must have. Every reader raises BadDocument."""

    __slots__ = ("_known", "_schema", "extra")

    def __init__(self, schema: Schema, known: dict[str, Any], extra: dict[str, Any]) -> None:
        self._schema = schema
        self._known = known
        self.extra = extra

    def is_null(self, name: str) -> bool:
        return self._known.get(name) is None

    def text_or_none(self, name: str) -> str | None:
        value = self._known.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._mismatch(name, value)

    def text(self, name: str) -> str:
        return self.text_or_none(name) or ""

    def flag(self, name: str) -> bool:
        value = self._known.get(name)
        if value is None:
            return False
        if isinstance(value, bool):
            return value
        raise self._mismatch(name, value)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._known.get(name)
        if value is None:
            return 0
        return self._integer(name, value, low, high)

    def array(self, name: str) -> list[Any]:
        value = self._known.get(name)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise self._mismatch(name, value)

    def texts(self, name: str) -> dict[str, str]:
        """Return a map of texts."""
        stored = self._map(name)
        for value in stored.values():
            if type(value) is not str:
                break
        else:  # nearly always
            return stored
        found = {}
        for key, value in stored.items():
            if value is not None and not isinstance(value, str):
                raise self._mismatch(name, value, "string")
            found[key] = value or ""
        return found

    def integers(self, name: str, low: int, high: int) -> dict[str, int]:
        """Return a map of integers."""
        stored = self._map(name)
        for value in stored.values():
            if type(value) is not int or not low <= value <= high:
                break
        else:  # nearly always
            return stored
        return {k: 0 if v is None else self._integer(name, v, low, high) for k, v in stored.items()}

    def _map(self, name: str) -> dict[str, Any]:
        value = self._known.get(name)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise self._mismatch(name, value)

    def _integer(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mismatch(name, value, "int")
        if not low <= value <= high:
            raise BadDocument(
                f"json: cannot unmarshal number {value} into Go struct field {self._place(name)} of type int"
            )
        return value

    def _mismatch(self, name: str, value: Any, go_type: str = "") -> BadDocument:
        wanted = go_type or self._schema.fields[name]
        return BadDocument(
            f"json: cannot unmarshal {kind_of(value)} into Go struct field {self._place(name)} of type {wanted}"
        )

    def _place(self, name: str) -> str:
        return f"{self._schema.struct}.{name}"
