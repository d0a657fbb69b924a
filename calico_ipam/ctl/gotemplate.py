"""The part of Go's templates that people write for ``get -o go-template`` (cli §17.2): fields, range, if, with, join.

Go's names of fields are those of the documents in another spelling: ``.ObjectMeta.Name`` is ``metadata.name``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.resource_schema import SCHEMAS

_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r"\"(?:\\.|[^\"\\])*\"|`[^`]*`|[^\s|()]+|[|()]")
_ALIASES = {"objectmeta": "metadata", "typemeta": ""}
#: what Go finds in the metadata of a resource too
_PROMOTED = frozenset(
    (
        *("name", "namespace", "labels", "annotations", "uid", "resourceversion", "creationtimestamp"),
        *("generatename", "generation", "finalizers"),
    )
)
#: what a field holds that is not there, by its type
_ZERO: Mapping[str, Any] = {"bool": False, "int": 0, "int32": 0}


@dataclass(frozen=True, slots=True)
class _Node:
    """Text, a pipeline, or a block with the parts for yes and no."""

    kind: str
    text: str
    inner: tuple[_Node, ...] = ()
    otherwise: tuple[_Node, ...] = ()
    place: int = 0


def render(template: str, value: Any, functions: Mapping[str, Callable[..., Any]] | None = None) -> str:
    """Return what a template makes of a value. Raises InvalidInput for one that cannot be understood."""
    nodes, _, rest = _sequence(list(_tokens(template)), 0)
    if rest is not None:
        raise InvalidInput(f"template: get:1: unexpected {{{{{rest}}}}}")
    try:
        return "".join(_run(nodes, value, value, {**_FUNCTIONS, **(functions or {})}))
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InvalidInput(f"template: get: {error}", hint="A function got what it cannot work with.") from None


def _tokens(template: str) -> Iterator[_Node]:
    position, trim = 0, False
    for match in _ACTION.finditer(template):
        text = template[position : match.start()]
        text = text.lstrip() if trim else text
        yield _Node("text", text.rstrip() if match[1] else text)
        yield _Node("action", match[2], place=match.start() + 2)
        position, trim = match.end(), bool(match[3])
    tail = template[position:]
    if "{{" in tail:
        raise InvalidInput("template: get:1: unclosed action", hint="Close it with }}.")
    yield _Node("text", tail.lstrip() if trim else tail)


def _sequence(tokens: list[_Node], start: int) -> tuple[tuple[_Node, ...], int, str | None]:
    found: list[_Node] = []
    position = start
    while position < len(tokens):
        token = tokens[position]
        position += 1
        word = token.text.split(" ")[0] if token.kind == "action" else ""
        if word in ("end", "else"):
            return tuple(found), position, token.text
        if word in ("range", "if", "with"):
            block, position = _block(tokens, position, word, token)
            found.append(block)
        elif token.kind == "text" or not token.text.startswith("/*"):
            found.append(token)
    return tuple(found), position, None


def _block(tokens: list[_Node], position: int, word: str, token: _Node) -> tuple[_Node, int]:
    """Return a block that ``token`` opens, with all its alternatives, and where it ends."""
    inner, position, stop = _sequence(tokens, position)
    otherwise: tuple[_Node, ...] = ()
    if stop is not None and stop.startswith("else "):
        following = _Node("action", stop.removeprefix("else").strip(), place=token.place)
        alternative, position = _block(tokens, position, following.text.split(" ")[0], following)
        otherwise, stop = (alternative,), "end"
    elif stop == "else":
        otherwise, position, stop = _sequence(tokens, position)
    if stop is None:
        raise InvalidInput("template: get:1: unexpected EOF", hint=f"Close {{{{{token.text}}}}} with {{{{end}}}}.")
    return _Node(word, token.text.removeprefix(word).strip(), inner, otherwise, token.place), position


def _run(nodes: tuple[_Node, ...], root: Any, dot: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    for node in nodes:
        if node.kind == "text":
            yield node.text
            continue
        value = _pipeline(node, root, dot, functions)
        if node.kind == "action":
            yield _shown(value)
        elif node.kind == "range":
            items = list(value.values()) if isinstance(value, Mapping) else list(value or ())
            for item in items:
                yield from _run(node.inner, root, item, functions)
            if not items:
                yield from _run(node.otherwise, root, dot, functions)
        elif value:
            yield from _run(node.inner, root, value if node.kind == "with" else dot, functions)
        else:
            yield from _run(node.otherwise, root, dot, functions)


def _pipeline(node: _Node, root: Any, dot: Any, functions: Mapping[str, Callable[..., Any]]) -> Any:
    if re.search(r"\$\w|:=", node.text):
        raise InvalidInput(
            f"template: get: variables such as in {{{{{node.text}}}}} are not supported",
            hint="Use {{range .}} and dots.",
        )
    words = _WORD.findall(node.text)
    if words.count("(") != words.count(")"):
        which = "unclosed left paren" if words.count("(") > words.count(")") else "unexpected right paren"
        raise InvalidInput(f"template: get:1: {which}", hint=f"Look at the brackets of {{{{{node.text}}}}}.")
    return _evaluated(iter(words), lambda word: _value(word, node, root, dot, functions))


def _evaluated(words: Iterator[str], meaning: Callable[[str], Any]) -> Any:
    """Return what a pipeline gives, up to its end or to the bracket that closes it."""
    command: list[Any] = []
    passed: list[Any] = []
    for word in words:
        if word == ")":
            break
        if word == "|":
            command, passed = [], [_called([*command, *passed])]
        else:
            command.append(_evaluated(words, meaning) if word == "(" else meaning(word))
    return _called([*command, *passed])


def _called(command: list[Any]) -> Any:
    if not command:
        return None
    return command[0](*command[1:]) if callable(command[0]) else command[0]


def _value(word: str, node: _Node, root: Any, dot: Any, functions: Mapping[str, Callable[..., Any]]) -> Any:
    if word[0] in '"`':
        return (
            word[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape") if word[0] == '"' else word[1:-1]
        )
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    if word in ("true", "false"):
        return word == "true"
    if word.startswith((".", "$")):
        value = root if word.startswith("$") else dot
        for name in word.lstrip("$").split(".")[1:]:
            if name:
                value = _field(value, name, word, node)
        return value
    if word in functions:
        return functions[word]
    raise InvalidInput(
        f'template: get:1: function "{word}" not defined',
        subject=word,
        hint=f"Known are {', '.join(sorted(functions))}.",
    )


def _field(value: Any, name: str, word: str, node: _Node) -> Any:
    wanted = _ALIASES.get(name.lower(), name.lower())
    if not wanted:
        return value
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.lower() == wanted:
                return item
        if wanted in _PROMOTED and isinstance(value.get("metadata"), Mapping) and "items" not in value:
            empty: Any = {} if wanted in ("labels", "annotations") else ""
            return next((item for key, item in value["metadata"].items() if key.lower() == wanted), empty)
        if isinstance(value, Mapping) and name[:1].isupper():
            return "" if "items" not in value else _missing(name, word, node, "runtime.Object")
    return _missing(name, word, node, "[]runtime.Object" if isinstance(value, list) else type(value).__name__)


def _missing(name: str, word: str, node: _Node, kind: str) -> Any:
    raise InvalidInput(
        f'template: get:1:{node.place}: executing "get" at <{word}>: can\'t evaluate field {name} in type {kind}',
        subject=name,
        hint="The template runs over a list of results: {{range .}}{{range .Items}}{{.ObjectMeta.Name}}{{end}}{{end}}.",
    )


def _shown(value: Any) -> str:
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + " ".join(_shown(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{k}:{_shown(v)}" for k, v in sorted(value.items())) + "]"
    return str(value)


def join(items: Any, separator: str) -> str:
    """Return the items of a list, or of a map as ``key=value``, with a separator between them."""
    if isinstance(items, Mapping):
        return separator.join(f"{key}={_shown(value)}" for key, value in sorted(items.items()))
    if items is not None and not isinstance(items, list | tuple):
        return _shown(items)
    return separator.join(_shown(each) for each in items or ())


def join_and_truncate(items: Any, separator: str, longest: int) -> str:
    """As join; a text longer than ``longest`` is cut and ends in three dots."""
    text = join(items, separator)
    if longest <= 0 or len(text) <= longest:
        return text
    return text[: max(0, longest - 3)] + "..."


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "join": join,
    "joinAndTruncate": join_and_truncate,
    "len": lambda value: len(value or ()),
    "not": lambda value: not value,
    "eq": lambda first, *others: first in others,
    "ne": lambda one, other: one != other,
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
    "and": lambda *values: next((each for each in values if not each), values[-1]),
    "or": lambda *values: next((each for each in values if each), values[-1]),
    "printf": lambda form, *values: re.sub(r"%[vdq]", "%s", form) % tuple(_shown(v) for v in values),
    "index": lambda value, *keys: _indexed(value, keys),
}


def _indexed(value: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def whole(document: Any) -> Any:
    """Return a document, or a list of them, with the fields of its spec that are not there: in Go each has a value."""
    if isinstance(document, Mapping) and isinstance(document.get("items"), list):
        return {**document, "items": [whole(item) for item in document["items"]]}
    schema = SCHEMAS.get(str(document.get("kind"))) if isinstance(document, Mapping) else None
    if schema is None or not isinstance(schema.spec, Mapping):
        return document
    zeros = {name: _ZERO.get(kind, "") for name, kind in schema.spec.items() if isinstance(kind, str)}
    lists: dict[str, list[str]] = {
        name: [] for name, kind in schema.spec.items() if isinstance(kind, str) and kind.startswith("[]")
    }
    return {**document, "spec": {**zeros, **lists, **document.get("spec", {})}}
