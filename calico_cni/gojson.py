"""JSON as the runtimes' own language reads and prints it (cni.md §2.3, §3).

What is accepted, how it is laid out and what an error says are compared by people and scripts with what upstream's
plugins print, so the texts here are those of Go's ``encoding/json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Go's types of numbers that fields have.
NUMBERS = ("int", "uint64", "float32")


class GoJSONError(ValueError):
    """A text that is no JSON, or a value of another type than its field; ``str()`` is Go's text."""


_HTML = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"},
)


def dump_indented(value: Any) -> str:
    """Return ``value`` laid out as a plugin prints it: four blanks, no final newline."""
    return json.dumps(value, indent=4, ensure_ascii=False).translate(_HTML)


def dump_compact(value: Any) -> str:
    """Return ``value`` on one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_HTML)


def load(text: bytes) -> Any:
    """Return the value that ``text`` holds. Raises GoJSONError with Go's syntax error."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=_refuse, parse_float=_finite)
        return _repaired(value) if b"\\ud" in text or b"\\uD" in text else value
    except (ValueError, RecursionError):
        raise GoJSONError(_Scanner(text).complaint()) from None


def _repaired(value: Any) -> Any:
    """Replace lone halves of surrogate pairs: they could be no file's name and in no document of the datastore."""
    from calico_ipam.datastore.gojson import without_surrogates

    return without_surrogates(value)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)  # NaN and Infinity are Python's, not JSON's


class _Fraction(float):
    """A number with a point or an exponent that knows how it was written: Go's errors quote it so."""

    text: str


def _finite(text: str) -> float:
    number = _Fraction(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(text)
    number.text = text
    return number


def kind_of(value: Any) -> str:
    """Return what Go calls the JSON type of a value."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, Mapping) else "null"


def shown(value: Any) -> str:
    """Return a value of a document as Go prints it in the texts of errors (``%v``)."""
    if value is None:
        return "<nil>"
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{key}:{shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(shown(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "g") if isinstance(value, int | float) else str(value)


def cannot(value: Any, target: str, go_type: str) -> GoJSONError:
    """Return the error for a value that does not fit: ``target`` is ``value`` or ``struct field X.y``."""
    kind = kind_of(value)
    if kind == "number" and go_type in NUMBERS:
        # The types fit, so it is this number that does not: a fraction, or one out of range.
        kind = f"number {getattr(value, 'text', value)}"
    return GoJSONError(f"json: cannot unmarshal {kind} into Go {target} of type {go_type}")


_SPACE = b" \t\r\n"
_DIGITS = b"0123456789"
_HEX = b"0123456789abcdefABCDEF"
_END = -1


def _quote(char: int) -> str:
    """Return a byte as Go's errors show it."""
    if char == ord("'"):
        return "'\\''"
    if char == ord('"'):
        return "'\"'"
    named = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 92: "\\\\"}
    if char in named:
        return f"'{named[char]}'"
    if char < 0x20 or char == 0x7F:
        return f"'\\x{char:02x}'"
    if 0x80 <= char < 0xA0 or char == 0xAD:
        return f"'\\u{char:04x}'"
    return f"'{chr(char)}'"


class _ComplaintError(Exception):
    """The scan found what is wrong."""


class _Scanner:
    """Finds the first byte that Go's scanner would complain about. Used only for a text that is known to be bad."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def complaint(self) -> str:
        try:
            self._value()
            self._blank()
            if self._peek() != _END:
                self._fail("after top-level value")
        except _ComplaintError as stop:
            return str(stop)
        except RecursionError:
            return "exceeded max depth"
        # Python refused what this scanner accepts: only a number beyond all measure gets here.
        return "number is too long"

    def _peek(self) -> int:
        return self._text[self._at] if self._at < len(self._text) else _END

    def _fail(self, context: str) -> None:
        char = self._peek()
        if char == _END:
            raise _ComplaintError("unexpected end of JSON input")
        raise _ComplaintError(f"invalid character {_quote(char)} {context}")

    def _need(self, allowed: bytes, context: str) -> int:
        char = self._peek()
        if char == _END or char not in allowed:
            self._fail(context)
        self._at += 1
        return char

    def _blank(self) -> None:
        while self._peek() != _END and self._peek() in _SPACE:
            self._at += 1

    def _value(self) -> None:
        self._blank()
        char = self._peek()
        literal = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}.get(char)
        if char == ord("{"):
            self._object()
        elif char == ord("["):
            self._array()
        elif char == ord('"'):
            self._string()
        elif literal is not None:
            self._at += 1
            for expected in literal[1:]:
                self._need(bytes([expected]), f"in literal {literal.decode()} (expecting {_quote(expected)})")
        elif char != _END and (char in _DIGITS or char == ord("-")):
            self._number()
        else:
            self._fail("looking for beginning of value")

    def _object(self) -> None:
        self._at += 1
        self._blank()
        if self._peek() == ord("}"):
            self._at += 1
            return
        while True:
            self._blank()
            if self._peek() != ord('"'):
                self._fail("looking for beginning of object key string")
            self._string()
            self._blank()
            self._need(b":", "after object key")
            self._value()
            self._blank()
            if self._need(b",}", "after object key:value pair") == ord("}"):
                return

    def _array(self) -> None:
        self._at += 1
        self._blank()
        if self._peek() == ord("]"):
            self._at += 1
            return
        while True:
            self._value()
            self._blank()
            if self._need(b",]", "after array element") == ord("]"):
                return

    def _string(self) -> None:
        self._at += 1
        while True:
            char = self._peek()
            if char == _END or char < 0x20:
                self._fail("in string literal")
            self._at += 1
            if char == ord('"'):
                return
            if char == ord("\\") and self._need(b'"\\/bfnrtu', "in string escape code") == ord("u"):
                for _ in range(4):
                    self._need(_HEX, "in \\u hexadecimal character escape")

    def _number(self) -> None:
        if self._peek() == ord("-"):
            self._at += 1
        if self._need(_DIGITS, "in numeric literal") != ord("0"):
            self._digits()
        if self._peek() == ord("."):
            self._at += 1
            self._need(_DIGITS, "after decimal point in numeric literal")
            self._digits()
        if self._peek() in (ord("e"), ord("E")):
            self._at += 1
            if self._peek() in (ord("+"), ord("-")):
                self._at += 1
            self._need(_DIGITS, "in exponent of numeric literal")
            self._digits()

    def _digits(self) -> None:
        while self._peek() != _END and self._peek() in _DIGITS:
            self._at += 1
