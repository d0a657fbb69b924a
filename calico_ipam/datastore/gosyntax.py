"""What Go's encoding/json says of a text that is no JSON (datastore §2.8): the first character that cannot stand there.

Read only after a text was refused, so it may be slow. It knows what Go reads, not what Python reads.
"""

from __future__ import annotations

ENDED = "unexpected end of JSON input"
_BLANKS = " \t\r\n"
_DIGITS = "0123456789"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_KEY = "looking for beginning of object key string"
_ESCAPED = {
    "'": "\\'",
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


class _Refused(Exception):
    """The message is Go's."""


def syntax_error(text: str) -> str:
    """Return Go's words for what is wrong with ``text``; empty when its syntax is right."""
    scanner = _Scanner(text)
    try:
        scanner.whole()
    except _Refused as refused:
        return str(refused)
    return ""


class _Scanner:
    """Reads from left to right; what is open is kept on a stack of its own, since nesting may be deep."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> None:
        opened: list[str] = []
        while True:
            if not self.value(opened):
                continue  # something was opened, and a value stands in it
            while opened and self.closes(opened):
                opened.pop()
            if not opened:
                break
        self.blanks()
        if self.at < len(self.text):
            raise self.refused("after top-level value")

    def value(self, opened: list[str]) -> bool:
        """Read a value, or the opening of one with others in it; False: the first of those comes next."""
        first = self.next(_BLANKS)
        if first in "{[":
            self.at += 1
            closing = "}" if first == "{" else "]"
            if self.next(_BLANKS) == closing:
                self.at += 1
                return True
            opened.append(closing)
            if first == "{":
                self.key()
            return False
        if first == '"':
            self.string()
        elif first in _LITERALS:
            self.literal(_LITERALS[first])
        elif first == "-" or first in _DIGITS:
            self.number()
        else:
            raise self.refused("looking for beginning of value")
        return True

    def closes(self, opened: list[str]) -> bool:
        """Read what stands behind a value: the end of what holds it (True), or what leads to the next one."""
        found = self.next(_BLANKS)
        if found == opened[-1]:
            self.at += 1
            return True
        if found != ",":
            raise self.refused("after object key:value pair" if opened[-1] == "}" else "after array element")
        self.at += 1
        if opened[-1] == "}":
            self.key()
        return False

    def key(self) -> None:
        if self.next(_BLANKS) != '"':
            raise self.refused(_KEY)
        self.string()
        if self.next(_BLANKS) != ":":
            raise self.refused("after object key")
        self.at += 1

    def string(self) -> None:
        self.at += 1
        while (found := self.next()) != '"':
            if found < " ":
                raise self.refused("in string literal")
            self.at += 1
            if found == "\\":
                self.escape()
        self.at += 1

    def escape(self) -> None:
        found = self.next()
        if found not in '"\\/bfnrtu':
            raise self.refused("in string escape code")
        self.at += 1
        for _ in range(4 if found == "u" else 0):
            if self.next() not in "0123456789abcdefABCDEF":
                raise self.refused("in \\u hexadecimal character escape")
            self.at += 1

    def literal(self, word: str) -> None:
        for letter in word:
            if self.next() != letter:
                raise self.refused(f"in literal {word} (expecting {letter!r})")
            self.at += 1

    def number(self) -> None:
        if self.text[self.at] == "-":
            self.at += 1
            if self.next() not in _DIGITS:
                raise self.refused("in numeric literal")
        if self.text[self.at] == "0":
            self.at += 1
        else:
            self.digits()
        if self.text.startswith(".", self.at):
            self.at += 1
            if self.next() not in _DIGITS:
                raise self.refused("after decimal point in numeric literal")
            self.digits()
        if self.text[self.at : self.at + 1] in ("e", "E"):
            self.at += 1
            if self.next() in "+-":
                self.at += 1
            if self.next() not in _DIGITS:
                raise self.refused("in exponent of numeric literal")
            self.digits()

    def digits(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _DIGITS:
            self.at += 1

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1

    def next(self, skip: str = "") -> str:
        """Return the character that stands next, behind blanks if these may stand there."""
        while self.at < len(self.text) and self.text[self.at] in skip:
            self.at += 1
        if self.at >= len(self.text):
            raise _Refused(ENDED)
        return self.text[self.at]

    def refused(self, where: str) -> _Refused:
        return _Refused(f"invalid character {_quoted(self.text[self.at])} {where}")


def _quoted(character: str) -> str:
    """Return a character as Go quotes it: the first byte of one that is not ASCII."""
    if character in _ESCAPED:
        return f"'{_ESCAPED[character]}'"
    byte = character.encode("utf-8", "surrogatepass")[0]
    return f"'\\x{byte:02x}'" if byte < 0x20 or byte == 0x7F else f"'{chr(byte)}'"
