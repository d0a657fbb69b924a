"""Arguments as calicoctl's parser takes them (cli §1.2): ``--switch=true``, ``-o=json``, whole numbers in Go's ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from calico_ipam.ctl.failures import Told

#: what Go takes for true and false
TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})

_LARGEST = 2**63 - 1


def spelled_out(context: click.Context, words: Sequence[str], *, interspersed: bool) -> list[str]:
    """Return a command's arguments in the one spelling that click takes: a switch without a value, short options apart.

    ``interspersed``: options may follow positional arguments; otherwise the first of those ends the options. Raises
    click.NoSuchOption for a letter that is no option, Told for a value that no switch can have.
    """
    if context.resilient_parsing:  # a shell completes: what is there need not be right
        return list(words)
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    known = {name: each for each in options for name in (*each.opts, *each.secondary_opts)}
    rest = list(words)
    found: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--" or not (interspersed or word.startswith("-")):
            return [*found, word, *rest]
        if word.startswith("--"):
            found += _long(known, word, rest)
        elif word.startswith("-") and len(word) > 1:
            try:
                found += _short(known, word, rest)
            except click.NoSuchOption as error:
                error.ctx = context
                raise
        else:
            found.append(word)
    return found


def _long(known: dict[str, click.Option], word: str, rest: list[str]) -> Iterator[str]:
    name, equals, value = word.partition("=")
    option = known.get(name)
    if name[2:3] in ("", "-"):
        raise Told(f"bad flag syntax: {word}", hint="Two dashes, then the name of an option.")
    if option is None or not (equals and option.is_flag):
        yield word
        if option is not None and not equals and not option.is_flag and rest:
            yield rest.pop(0)
        return
    yield from _switch(option, name, value)


def _short(known: dict[str, click.Option], word: str, rest: list[str]) -> Iterator[str]:
    letters = word[1:]
    while letters:
        option = known.get(f"-{letters[0]}")
        if option is None:
            raise click.NoSuchOption(f"-{letters}")
        name, given = f"-{letters[0]}", letters[1:]
        if len(given) > 1 and given.startswith("="):
            if option.is_flag:
                yield from _switch(option, name, given[1:])
            else:
                yield from (name, given[1:])
            return
        yield name
        if not option.is_flag:
            if given:
                yield given
            elif rest:
                yield rest.pop(0)
            return
        letters = given


def _switch(option: click.Option, name: str, value: str) -> Iterator[str]:
    """Yield what turns a switch on, or what turns it off: its opposite, or nothing."""
    if value not in TRUE | FALSE:
        title = ", ".join(sorted(option.opts, key=len)) if len(option.opts) > 1 else name
        reason = f'strconv.ParseBool: parsing "{value}": invalid syntax'
        raise Told(
            f"{name} is a switch: it is true or false, not {value!r}",
            exact=f'invalid argument "{value}" for "{title}" flag: {reason}',
        )
    turned = (value in TRUE) is (name in option.opts)
    yield from (option.opts if turned else option.secondary_opts)[:1]


def whole_number(text: str, *, any_base: bool = False) -> int:
    """Return the whole number that a text means to Go: 64 bits, with a sign.

    ``any_base``: also 0x10, 0b1, 0o7, 010, and _ between digits. Raises ValueError with Go's reason.
    """
    body = text[1:] if text[:1] in ("+", "-") else text
    try:
        if not body.isascii() or not body[:1].isdigit() or ("_" in body and not any_base):
            raise ValueError
        octal = any_base and len(body) > 1 and body[0] == "0" and body.replace("_", "").isdigit()
        number = int(body, 8 if octal else 0 if any_base else 10)
    except ValueError:
        raise ValueError("invalid syntax") from None
    number = -number if text.startswith("-") else number
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise ValueError("value out of range")
    return number
