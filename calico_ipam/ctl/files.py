"""Resources from files, folders and standard input (cli §8.1)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.kinds import KINDS
from calico_ipam.model.resource_schema import SCHEMAS, UnknownField, WrongType, checked

LONGEST = 10 * 1024 * 1024  # bytes of one document
_SUFFIXES = (".yaml", ".yml", ".json")


class NothingThere(Told):
    """A file or folder holds no resource."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a document stands."""

    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}"


def read_resources(path: str, *, recursive: bool, skip_empty: bool = False) -> list[dict[str, Any]]:
    """Return the documents of a file, a folder or ``-``, each checked against the fields of its kind.

    Raises NothingThere, Told, OSError. ``skip_empty``: a file without a document is passed over.
    """
    folder = path != "-" and os.path.isdir(path)  # noqa: PTH112  # pathlib is not needed otherwise, and costs 7 ms
    found: list[dict[str, Any]] = []
    for name in _files(path, recursive=recursive) if folder else (path,):
        documents = _file(name)
        if not documents and not (folder and skip_empty):
            raise NothingThere(f"no resources specified in file {name}", hint="The file holds no document.")
        found += documents
    if not found:
        raise NothingThere(
            f"no resources specified in directory {path}",
            hint=f"Files that count end in {', '.join(_SUFFIXES)}; those of sub-folders with -R only.",
        )
    return found


def _files(folder: str, *, recursive: bool) -> Iterator[str]:
    for entry in sorted(os.scandir(os.path.normpath(folder)), key=lambda each: each.name):
        if entry.is_dir(follow_symlinks=False):  # a link may lead back up
            if recursive:
                yield from _files(entry.path, recursive=True)
        elif entry.name.lower().endswith(_SUFFIXES):
            yield entry.path


def _file(path: str) -> list[dict[str, Any]]:
    if path == "-":
        name, text = "standard input", _stdin()
    else:
        name = path
        try:
            text = text_of(path)
        except Told as error:
            raise unusable(error.message, error.hint) from None
    return [document for source, part in _parts(name, text) for document in _documents(source, part)]


def text_of(path: str) -> str:
    """Return the text of a file. Raises Told, in upstream's words where it cannot be opened."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError as error:
        reason = str(error.strerror or error)
        done = "read" if isinstance(error, IsADirectoryError) else "open"
        raise Told(f"{done} {path}: {reason[:1].lower()}{reason[1:]}", hint="Name a file that can be read.") from None
    except UnicodeDecodeError:
        raise Told(f"{path} is no text in UTF-8", hint="Name a file of text.") from None


def _stdin() -> str:
    try:
        return standard_input().read()
    except (UnicodeDecodeError, ValueError, OSError):
        raise unusable("standard input is closed or no text", "Pipe YAML or JSON into it.") from None


def standard_input() -> TextIO:
    """Return standard input as text in UTF-8, whatever the locale. Raises Told when it is closed."""
    stream = sys.stdin
    if stream is None or stream.closed:
        raise Told("standard input is closed", hint="Pipe the file into it, or name a file.")
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="strict")
    return stream


def _parts(name: str, text: str) -> Iterator[tuple[Source, str]]:
    """Yield the documents of a text, which lines that begin with three dashes separate."""
    lines: list[str] = []
    first = 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if line.startswith("---"):
            yield Source(name, first), "".join(lines)
            lines, first = [], number + 1
        else:
            lines.append(line)
    yield Source(name, first), "".join(lines)


def _documents(source: Source, text: str) -> Iterator[dict[str, Any]]:
    if len(text.encode()) > LONGEST:
        raise unusable(f"{source}: the document is longer than {LONGEST} bytes", "Split it.")
    content = _parsed(source, text)
    if content is None:
        return
    for item in content if isinstance(content, list) else [content]:
        yield from _resources(source, item)


def _parsed(source: Source, text: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            from calico_ipam.ctl.yaml_words import not_yaml

            reason = f"{source.name}, line {source.line + getattr(error, 'lineno', 1) - 1}: {error}"
            raise unusable(reason, "The file is no valid JSON.", exact=not_yaml(text)) from None
    import yaml

    from calico_ipam.ctl.yaml_words import not_yaml

    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = source.line + (mark.line if mark is not None else 0)
        problem = getattr(error, "problem", None) or str(error)
        reason = f"error converting YAML to JSON: yaml: line {line}: {problem}"
        raise unusable(reason, f"{source.name} is no valid YAML there.", exact=not_yaml(text)) from None


def _loader() -> Any:
    """Return a loader that keeps times as texts and refuses a key that stands twice in one mapping."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(None, None, "a key must be a text", key.start_mark)
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f'key "{key.value}" already set in map', key.start_mark
                    )
                seen.add(key.value)
            return dict(super().construct_mapping(node, deep))

    Loader.yaml_implicit_resolvers = {
        first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def _resources(source: Source, item: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(item, Mapping):
        reason = f"{source}: a resource must be a mapping with apiVersion, kind and metadata"
        raise unusable(reason, "Write 'kind: IPPool' and so on.", exact=_no_object(item))
    kind, version = str(item.get("kind") or ""), str(item.get("apiVersion") or "")
    known = version == "projectcalico.org/v3"
    if known and kind.removesuffix("List") in SCHEMAS and kind.endswith("List"):
        yield from _items(source, item)
        return
    if not kind:
        raise unusable(f"{source}: the kind is missing", "Write 'kind: IPPool' and so on.", exact=_no_object(item))
    if kind not in SCHEMAS or not known:
        raise unknown_kind(source, kind, version)
    try:
        yield checked(kind, dict(item))
    except UnknownField:
        raise
    except WrongType as error:
        raise unusable(str(error), f"{source}: {error.hint}") from None


def _no_object(item: Any) -> str:
    """Return what calicoctl says of a document that is neither a resource nor an array of them."""
    what = {dict: "object", bool: "bool", int: "number", float: "number"}.get(type(item), "string")
    return (
        f"error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {what} "
        "into Go value of type []unstructured.Unstructured"
    )


def _items(source: Source, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the resources of a typed list."""
    for name in item:
        if name not in _LIST_FIELDS:
            raise UnknownField(str(name), _LIST_FIELDS, "A list")
    items = item.get("items")
    if not isinstance(items, list | None):
        raise unusable(f"{source}: the items of a list are a list", "Write each resource behind a dash.")
    for each in items or ():
        yield from _resources(source, each)


_LIST_FIELDS = ("kind", "apiVersion", "metadata", "items")


def unusable(reason: str, way_out: str, *, exact: str = "") -> Told:
    """Return the error for a file that cannot be read as resources; ``exact``: the reason in calicoctl's words."""
    return Told(
        f"failed to execute command: {reason}",
        exact=f"failed to execute command: {exact or reason}",
        hint=way_out,
    )


def unknown_kind(source: Source, kind: str, version: str) -> Told:
    """Return the error for a kind, or a version of it, that nobody knows."""
    from difflib import get_close_matches

    known: Sequence[str] = [each.name for each in KINDS if not each.ours]
    close = get_close_matches(kind, known, n=1)
    hint = f"Did you mean {close[0]}?" if close and close[0] != kind else f"Known are {', '.join(known)}."
    if kind in known:
        hint = "Write 'apiVersion: projectcalico.org/v3'."
    return unusable(f"unknown resource type ({kind}) and/or version ({version})", f"{source}: {hint}")
