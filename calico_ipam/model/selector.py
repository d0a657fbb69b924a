"""Calico's selector language for nodes and namespaces (ipam-library §21).

::

    selector   = [ or-expr ]                      empty or blanks only: all()
    or-expr    = and-expr { "||" and-expr }
    and-expr   = operation { "&&" operation }
    operation  = { "!" } primary                  an even number of ! cancels
    primary    = "has(" label ")" | "all(" ")" | "global(" ")" | "(" or-expr ")"
               | label "==" string | label "!=" string | label "contains" string
               | label "starts with" string | label "ends with" string
               | label "in" set | label "not in" set

Reading, writing and evaluating keep their own stacks, so neither depth nor length of a selector can exhaust Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from calico_ipam.errors import InvalidInput
from calico_ipam.model.selector_tokens import Token, quote, tokenise

Labels = Mapping[str, str]
Leaf = Callable[[Labels], bool]
#: one step of a postfix program: a test, a negation, or a join of the last ``number`` results
Step = Leaf | Literal["not"] | tuple[Literal["&&", "||"], int]

_STRING_OPERATORS = {
    "Eq": "==",
    "Ne": "!=",
    "Contains": "contains",
    "StartsWith": "starts with",
    "EndsWith": "ends with",
}
_SET_OPERATORS = {"In": "in", "NotIn": "not in"}
_LONGEST_LEFTOVER = 500  # characters of left-over tokens that an error quotes


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector. Equal canonical texts are equal selectors."""

    canonical: str
    _program: tuple[Step, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.canonical

    def matches(self, labels: Labels) -> bool:
        """Tell whether an object with these labels is selected (§21.3)."""
        results: list[bool] = []
        for step in self._program:
            if step == "not":
                results.append(not results.pop())
            elif isinstance(step, tuple):
                operator, number = step
                operands = results[-number:]
                del results[-number:]
                results.append(all(operands) if operator == "&&" else any(operands))
            else:
                results.append(step(labels))
        return results[0]

    @property
    def unique_id(self) -> str:
        """Upstream's ID of the selector: ``s:`` and a SHA-224 of the canonical text (§21.4)."""
        from base64 import urlsafe_b64encode
        from hashlib import sha224

        digest = sha224(f"s:{self.canonical}".encode("utf-8", "surrogatepass")).digest()
        return "s:" + urlsafe_b64encode(digest).decode().rstrip("=")


@lru_cache(maxsize=64)  # a pure function; every request asks for the same few selectors again
def parse_selector(text: str) -> Selector:
    """Return the selector that ``text`` describes. Raises InvalidInput with upstream's wording."""
    return _Parser(text).selector()


@dataclass(slots=True)
class _Group:
    """A parenthesis, or the whole text, while it is being read."""

    negated: bool
    or_opening: int  #: place in the pieces where ``(`` goes should the ``||`` get a second operand
    and_opening: int
    or_operands: int = 0
    and_operands: int = 0


class _Parser:
    """Reads tokens from left to right; collects the canonical text in pieces and the program in postfix order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenise(text)
        self.position = 0
        self.pieces: list[str] = []
        self.program: list[Step] = []
        self.groups: list[_Group] = []

    def selector(self) -> Selector:
        if self.tokens[0].kind == "EOF":
            return Selector("all()", (_always,))
        self.open_group(negated=False)
        while self.groups:
            self.operand()
            while self.groups and not self.joined():
                self.close_group()
        return Selector("".join(self.pieces), tuple(self.program))

    def next(self) -> Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def peek(self) -> Token:
        return self.tokens[self.position]

    def refuse(self, message: str) -> InvalidInput:
        return InvalidInput(message, subject=self.text)

    def open_group(self, *, negated: bool) -> None:
        here = len(self.pieces)
        self.pieces += ["", ""]
        self.groups.append(_Group(negated, here, here + 1))

    def operand(self) -> None:
        """Read negations and opening parentheses down to the next test, and that test."""
        while True:
            negated = False
            while self.peek().kind == "Not":
                self.next()
                negated = not negated
            if negated:
                self.pieces.append("!")
            if self.peek().kind != "LParen":
                break
            self.next()
            self.open_group(negated=negated)
        self.test()
        if negated:
            self.program.append("not")
        self.groups[-1].and_operands += 1

    def joined(self) -> bool:
        """Read the operator behind an operand, if there is one."""
        group = self.groups[-1]
        if self.peek().kind == "And":
            self.next()
            self.pieces[group.and_opening] = "("
            self.pieces.append(" && ")
            return True
        if group.and_operands > 1:
            self.pieces.append(")")
            self.program.append(("&&", group.and_operands))
        group.or_operands += 1
        group.and_operands = 0
        if self.peek().kind == "Or":
            self.next()
            self.pieces[group.or_opening] = "("
            self.pieces.append(" || ")
            group.and_opening = len(self.pieces)
            self.pieces.append("")
            return True
        return False

    def close_group(self) -> None:
        """Leave a parenthesis, which makes it an operand of the one around it, or end the text."""
        group = self.groups.pop()
        if group.or_operands > 1:
            self.pieces.append(")")
            self.program.append(("||", group.or_operands))
        if not self.groups:
            if self.peek().kind != "EOF":
                raise self.refuse(f"unexpected content at end of selector [{self.leftover()}]")
            return
        if self.next().kind != "RParen":
            raise self.refuse("expected )")
        if group.negated:
            self.program.append("not")
        self.groups[-1].and_operands += 1

    def leftover(self) -> str:
        shown = ""
        for token in self.tokens[self.position :]:
            shown += f" {token}" if shown else str(token)
            if len(shown) > _LONGEST_LEFTOVER:
                return shown[:_LONGEST_LEFTOVER] + " …"
        return shown

    def test(self) -> None:
        token = self.next()
        if token.kind == "Has":
            self.add(f"has({token.value})", _has(token.value))
        elif token.kind in ("All", "Global"):
            self.add(f"{token.kind.lower()}()", _always)
        elif token.kind == "Label":
            self.comparison(token.value)
        else:
            raise self.refuse(f"unexpected token: {token}")

    def comparison(self, label: str) -> None:
        operator = self.next()
        if operator.kind == "EOF":
            raise self.refuse("unexpected end of string looking for op")
        if operator.kind in _STRING_OPERATORS:
            literal = self.next()
            if literal.kind != "StringLiteral":
                raise self.refuse("expected string")
            value = literal.value
            self.add(
                f"{label} {_STRING_OPERATORS[operator.kind]} {quote(value)}", _compare(operator.kind, label, value)
            )
        elif operator.kind in _SET_OPERATORS:
            values = frozenset(self.set_literal())
            text = ", ".join(quote(v) for v in sorted(values))  # code points sort as their UTF-8 bytes do
            self.add(f"{label} {_SET_OPERATORS[operator.kind]} {{{text}}}", _member(operator.kind, label, values))
        else:
            raise self.refuse(f"expected == or != not: {operator}")

    def set_literal(self) -> Iterator[str]:
        if self.next().kind != "LBrace":
            raise self.refuse("expected set literal")
        while self.peek().kind == "StringLiteral":
            yield self.next().value
            if self.peek().kind != "Comma":
                break
            self.next()
        if self.next().kind != "RBrace":
            raise self.refuse("expected }")

    def add(self, text: str, leaf: Leaf) -> None:
        self.pieces.append(text)
        self.program.append(leaf)


def _always(_labels: Labels) -> bool:
    return True


def _has(label: str) -> Leaf:
    return lambda labels: label in labels


def _compare(kind: str, label: str, value: str) -> Leaf:
    if kind == "Eq":
        return lambda labels: labels.get(label) == value
    if kind == "Ne":
        return lambda labels: labels.get(label) != value
    if kind == "Contains":
        return lambda labels: label in labels and value in labels[label]
    if kind == "StartsWith":
        return lambda labels: label in labels and labels[label].startswith(value)
    return lambda labels: label in labels and labels[label].endswith(value)


def _member(kind: str, label: str, values: frozenset[str]) -> Leaf:
    if kind == "In":
        return lambda labels: labels.get(label) in values
    return lambda labels: labels.get(label) not in values
