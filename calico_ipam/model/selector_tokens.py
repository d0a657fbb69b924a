"""Words of the selector language (ipam-library §21.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from calico_ipam.errors import InvalidInput

MAX_LABEL_LENGTH = 512
_SHOWN_LABEL_LENGTH = 1024  # characters of an overlong label that its error quotes

_IDENTIFIER = re.compile(r"[A-Za-z0-9_./-]+")
_BLANKS = re.compile(r"[ \t]*")
_SYMBOLS = {
    "{": "LBrace",
    "}": "RBrace",
    ",": "Comma",
    "(": "LParen",
    ")": "RParen",
}
#: symbols of two characters, and what is missing when the second one is
_DOUBLED = {"=": ("Eq", "expected =="), "&": ("And", "expected &&"), "|": ("Or", "expected ||")}
_CALLS = {"has(": "Has", "all(": "All", "global(": "Global"}
# Word operators exist only behind a label. The character that must not continue the word is the next one, and for
# operators of two words the next one that is no blank: hence the possessive blanks.
_WORDS = (
    ("Contains", re.compile(r"contains(?![A-Za-z0-9_./-])")),
    ("StartsWith", re.compile(r"starts[ \t]*with[ \t]*+(?![A-Za-z0-9_./-])")),
    ("EndsWith", re.compile(r"ends[ \t]*with[ \t]*+(?![A-Za-z0-9_./-])")),
    ("NotIn", re.compile(r"not[ \t]*in[ \t]*+(?![A-Za-z0-9_./-])")),
    ("In", re.compile(r"in(?![A-Za-z0-9_./-])")),
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word; ``value`` is the label or the content of the string. ``str()`` is what upstream's messages show."""

    kind: str
    value: str = ""

    def __str__(self) -> str:
        return f"Tok{self.kind}({self.value})"


def quote(value: str) -> str:
    """Return a string literal; one that contains a double quote cannot contain a single one too."""
    return f"'{value}'" if '"' in value else f'"{value}"'


def tokenise(text: str) -> list[Token]:
    """Return the tokens of a selector, the last of kind ``EOF``. Raises InvalidInput."""
    tokens: list[Token] = []
    position = 0
    while True:
        position = _blanks(text, position)
        if position >= len(text):
            tokens.append(Token("EOF"))
            return tokens
        last = tokens[-1] if tokens else None
        token, position = _symbol(text, position) or _word(text, position, last)
        tokens.append(token)


def _blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def _symbol(text: str, position: int) -> tuple[Token, int] | None:
    """Return the punctuation or string that stands at ``position``, and where it ends."""
    first = text[position]
    if first in "\"'":
        end = text.find(first, position + 1)
        if end < 0:
            raise InvalidInput("unterminated string", subject=text)
        return Token("StringLiteral", text[position + 1 : end]), end + 1
    if first in _SYMBOLS:
        return Token(_SYMBOLS[first]), position + 1
    if first in _DOUBLED:
        kind, missing = _DOUBLED[first]
        if not text.startswith(first, position + 1):
            raise InvalidInput(missing, subject=text)
        return Token(kind), position + 2
    if first == "!":
        return (Token("Ne"), position + 2) if text.startswith("=", position + 1) else (Token("Not"), position + 1)
    return None


def _word(text: str, position: int, last: Token | None) -> tuple[Token, int]:
    """Return the operator, call or label that stands at ``position``, and where it ends."""
    if last is not None and last.kind == "Label":
        for kind, pattern in _WORDS:
            if found := pattern.match(text, position):
                return Token(kind), found.end()
        raise InvalidInput(f'expected operator after label "{last.value}"', subject=text)
    for opening, kind in _CALLS.items():
        if text.startswith(opening, position):
            label = ""
            position = _blanks(text, position + len(opening))
            if kind == "Has":
                label, position = _label(text, position)
                position = _blanks(text, position)
            if not text.startswith(")", position):
                raise InvalidInput(f"no closing ')' after {opening}", subject=text)
            return Token(kind, label), position + 1
    label, position = _label(text, position)
    return Token("Label", label), position


def _label(text: str, position: int) -> tuple[str, int]:
    found = _IDENTIFIER.match(text, position)
    if found is None:
        raise InvalidInput("expected identifier", subject=text)
    if len(found[0]) > MAX_LABEL_LENGTH:
        raise InvalidInput(f"label too long: {found[0][:_SHOWN_LABEL_LENGTH]}", subject=text)
    return found[0], found.end()
