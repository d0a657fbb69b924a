"""What calicoctl says of a text that is no YAML: the words and the line numbers of its parser, a sister of libyaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PREFIX = "error converting YAML to JSON: yaml: "


def not_yaml(text: str) -> str:
    """Return the reason why a document is no YAML; empty when it can be read here.

    Lines are counted from the beginning of the document. The first line is not told, and outside the scanner lines
    are counted from nought, as upstream does.
    """
    import yaml

    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=parser)
    except yaml.MarkedYAMLError as error:
        mark, context = error.problem_mark, error.context_mark
        line = mark.line if mark is not None else 0
        if line:
            line += isinstance(error, yaml.scanner.ScannerError)
        elif context is not None:
            line = context.line
        return f"{_PREFIX}{f'line {line}: ' if line else ''}{error.problem}"
    except yaml.YAMLError as error:  # a character that YAML has no place for
        return f"{_PREFIX}{getattr(error, 'reason', None) or error}"
    except RecursionError:
        return f"{_PREFIX}exceeded maximum nesting depth"
    repeated = "".join(f"\n  {each}" for each in _repeated(node, set()))
    return f"{_PREFIX}unmarshal errors:{repeated}" if repeated else ""


def _repeated(node: Any, visited: set[int]) -> Iterator[str]:
    """Yield what is said of the keys that stand twice in one mapping. Aliases lead to nodes that were ``visited``."""
    import yaml

    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _repeated(each, visited)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        yield from _repeated(value, visited)
        if isinstance(key.value, str) and key.value in seen:
            yield f'line {value.start_mark.line + 1}: key "{key.value}" already set in map'
        seen.add(key.value if isinstance(key.value, str) else id(key))
