"""``ipamctl patch`` and ``ipamctl label``: changing some fields of a resource (cli §8.3; limit 18.17)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.options import namespace_option, yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, pass_session
from calico_ipam.errors import IPAMError
from calico_ipam.model.resource import IPAM_CONFIGURATION

if TYPE_CHECKING:
    from calico_ipam.engine.resources import Resources
    from calico_ipam.model.resource import Resource

_ABSENT = "there is none: "
_BAD_PATCH = "hit error: performing strategic merge patch: invalid JSON document"
TYPES = ("strategic", "merge", "json")


@click.command(cls=Mirrored)
@click.argument("words", nargs=-1, metavar="KIND NAME")
@click.option(
    "-p", "--patch", "text", default="", metavar="JSON", help='What to change, such as {"spec":{"disabled":true}}.'
)
@click.option(
    "-t",
    "--type",
    "kind_of_patch",
    default="strategic",
    metavar="TYPE",
    help="strategic, merge, or json for a list of operations.",
)
@namespace_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the result and write nothing.")
@common_options
@pass_session
def patch(
    session: Session,
    /,
    words: tuple[str, ...],
    text: str,
    kind_of_patch: str,
    namespace: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Change some fields of a resource."""
    del yes
    if len(words) != 2:
        raise Told(f"accepts 2 arg(s), received {len(words)}", hint="Say KIND and NAME, such as: ippool my-pool")
    kind, _, resources, resource = _subject(session, words, namespace, prefix="hit error: ", dry_run=dry_run)
    changed = _patched(session, resource, text, kind_of_patch)
    _refuse_another_kind(resource, changed)
    from calico_ipam.model.resource_schema import UnknownField, WrongType, checked

    try:
        document = checked(kind, changed)
    except UnknownField:
        raise
    except WrongType as error:
        raise Told(f"hit error: creating resource from patched data: {error}", hint=error.hint) from None
    if dry_run:
        from calico_ipam.ctl.formats import as_yaml

        click.echo(as_yaml(document), nl=False)
        return
    _store(resources, resource, document)
    say(f"Successfully patched 1 '{kind}' resource")


def _subject(
    session: Session, words: tuple[str, ...], namespace: str | None, *, prefix: str, dry_run: bool
) -> tuple[str, str, Resources, Resource]:
    from calico_ipam.ctl.get import check_cluster, known_kind, namespace_of, resources_of

    check_cluster(session, writes=not dry_run)
    kind = known_kind(session, words[0])
    if kind.ours:
        raise Told(f"{kind.name} objects cannot be changed by hand", hint="'ipamctl ipam repair' mends what is wrong.")
    resources = resources_of(session)
    if not words[1]:
        raise Told("resource name may not be empty", hint=f"Say which {kind.name}.")
    try:
        resource = resources.get(kind.name, words[1], namespace_of(kind, "", namespace))
    except IPAMError as error:
        raise Told(f"{prefix}{error}", hint=error.hint) from None
    return kind.name, words[1], resources, resource


def _patched(session: Session, resource: Resource, text: str, kind_of_patch: str) -> dict[str, Any]:
    document = json.loads(json.dumps(dict(resource.document)))
    try:
        change = json.loads(text)
    except ValueError as error:
        raise Told(_BAD_PATCH, hint=f"The patch is no JSON: {error}.") from None
    if kind_of_patch == "json" and not session.compat:
        if not isinstance(change, list):
            raise Told(
                "hit error: a patch of type json is a list of operations",
                hint='[{"op":"replace","path":"/spec/disabled","value":true}]',
            )
        return _operations(document, change)
    if kind_of_patch not in TYPES and not session.compat:
        raise Told(f"hit error: unknown type of patch {kind_of_patch!r}", hint=f"Choose one of {', '.join(TYPES)}.")
    if not isinstance(change, dict | None):
        raise Told(_BAD_PATCH, hint='Give an object, such as {"spec":{"disabled":true}}.')
    merged: dict[str, Any] = merged_with(document, change or {})
    return merged


def _refuse_another_kind(resource: Resource, changed: Mapping[str, Any]) -> None:
    kind, version = (str(changed.get(name) or "") for name in ("kind", "apiVersion"))
    if (kind, version) != (resource.kind, resource.document.get("apiVersion", version)):
        raise Told(
            "hit error: creating resource from patched data: "
            f"unknown resource type ({kind}) and/or version ({version})",
            hint="A patch cannot make another kind of a resource.",
        )


def merged_with(document: Any, change: Any) -> Any:
    """Return a document with a change merged in: objects field by field, null removes, anything else replaces."""
    if not isinstance(change, Mapping):
        return change
    found = dict(document) if isinstance(document, Mapping) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged_with(found.get(key), value)
    return found


def _operations(document: dict[str, Any], operations: list[Any]) -> dict[str, Any]:
    """Return a document after the operations of a JSON patch (RFC 6902). Raises Told."""
    for number, each in enumerate(operations, 1):
        try:
            if not isinstance(each, dict):
                raise ValueError("it is no object")
            _operate(document, each)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise Told(
                f"hit error: operation {number} of the patch cannot be done: {reason}",
                hint=f"It is {json.dumps(each)}.",
            ) from None
    return document


def _operate(document: Any, operation: dict[str, Any]) -> None:
    parent, key = _place(document, operation["path"])
    match operation["op"]:
        case "test":
            if _at(parent, key) != operation["value"]:
                raise ValueError(f"{operation['path']} is {_at(parent, key)!r}")
        case "remove":
            del parent[_index(parent, key)]
        case "replace":
            parent[_index(parent, key)] = operation["value"] if _at(parent, key) is not Ellipsis else None
        case "add":
            _add(parent, key, operation["value"])
        case ("move" | "copy") as name:
            source, from_ = _place(document, operation["from"])
            value = _at(source, from_)
            if name == "move":
                del source[_index(source, from_)]
            _add(parent, key, json.loads(json.dumps(value)))
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _place(document: Any, path: Any) -> tuple[Any, str]:
    if not isinstance(path, str):
        raise ValueError(f"the path {json.dumps(path)} is no text")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    if not steps:
        raise ValueError(f"the path {path!r} leads to no field")
    for step in steps[:-1]:
        document = document[_index(document, step)]
    return document, steps[-1]


def _index(parent: Any, key: str) -> Any:
    return int(key) if isinstance(parent, list) else key


def _at(parent: Any, key: str) -> Any:
    return parent[_index(parent, key)]


def _add(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else int(key), value)
    else:
        parent[key] = value


def _store(resources: Resources, before: Resource, document: dict[str, Any]) -> None:
    try:
        resources.update(before, document)
    except IPAMError as error:
        raise Told(f"hit error: updating existing resource: {error}", hint=error.hint) from None


# --- labels --------------------------------------------------------------------------------------------------


@click.command(cls=Mirrored)
@click.argument("words", nargs=-1, metavar="KIND NAME KEY=VALUE")
@click.option("--overwrite", is_flag=True, help="Change the value of a label that is there.")
@click.option("--remove", is_flag=True, help="Remove the label KEY.")
@namespace_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@common_options
@pass_session
def label(
    session: Session,
    /,
    words: tuple[str, ...],
    overwrite: bool,
    remove: bool,
    namespace: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Set a label of a resource, or remove it."""
    del yes
    example = "For example: ipamctl label node my-node zone=a"
    if len(words) < 3:
        raise Told(f"requires at least 3 arg(s), only received {len(words)}", hint=example)
    if len(words) > 3 and session.for_people:  # calicoctl takes no notice of the others
        raise Told(f"one label at a time, not {len(words) - 2}", hint=example)
    word, name, text = words[:3]
    key, equals, value = (text, "", "") if remove else text.partition("=")
    if not remove and not equals:
        raise Told(f"invalid label {text}", hint="Write KEY=VALUE.")
    try:
        _, _, resources, resource = _subject(session, (word, name), namespace, prefix=_ABSENT, dry_run=dry_run)
    except Told as error:
        if error.on_stdout:
            raise
        # calicoctl does not say why it found nothing
        absent = error.message.startswith(_ABSENT)
        known = f"{word} {name} not found" if absent else f"failed to get {word} {name}, error {error.message}"
        raise Told(known, hint="\n".join(filter(None, (error.message[len(_ABSENT) :] * absent, error.hint)))) from None
    labels, done = _labels(resource, word, name, key, value, overwrite=overwrite, remove=remove)
    if dry_run:
        say(f"Would have {done} label {key} on {word} {name}")
        return
    metadata = {**resource.metadata, "labels": labels}
    _store_labels(resources, resource, metadata, word, name)
    preposition = "from" if remove else "on"
    say(f"Successfully {done} label {key} {preposition} {word} {name}")


def _labels(
    resource: Resource, word: str, name: str, key: str, value: str, *, overwrite: bool, remove: bool
) -> tuple[dict[str, str], str]:
    labels = resource.labels
    if remove:
        if key not in labels:
            raise Told(
                f"cannot remove label of {word} {name}, key {key} does not exist",
                hint=f"It has: {', '.join(labels) or 'no label'}.",
            )
        return {k: v for k, v in labels.items() if k != key}, "removed"
    if key in labels and labels[key] != value and not overwrite:
        raise Told(
            f"failed to update label of {word} {name}, key {key} is already present. "  # noqa: S608  # no query
            "please use '--overwrite' to set a new value",
            hint=f"Its value is {labels[key]}.",
        )
    return {**labels, key: value}, "updated" if key in labels else "set"


def _store_labels(resources: Resources, resource: Resource, metadata: dict[str, Any], word: str, name: str) -> None:
    if resource.kind == IPAM_CONFIGURATION and not resources.stored_configuration:
        # They are kept where the IPAM code reads them, which has no place for labels.
        hint = "The IPAM settings have no labels."
        raise Told(f"failed to update {word} {name}, label not changed", hint=hint)
    try:
        resources.update(resource, {**resource.document, "metadata": metadata})
    except IPAMError as error:
        reason = "\n".join(filter(None, (f"{error}".rstrip("\n"), error.hint)))
        raise Told(f"failed to update {word} {name}, label not changed", hint=reason) from None
