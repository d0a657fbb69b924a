"""``ipamctl get``: resources, and the IPAM objects that calicoctl cannot show (cli §8.2, §16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Watching, watch_option
from calico_ipam.ctl.failures import Told, is_missing_file
from calico_ipam.ctl.kinds import KINDS, Kind, by_name, find_kind
from calico_ipam.ctl.session import Session, connection_options, pass_session
from calico_ipam.errors import InvalidInput, IPAMError, NotConfigured

if TYPE_CHECKING:
    from calico_ipam.engine.resources import Resources
    from calico_ipam.model.resource import Resource

_FAILED = "failed to get resources: "
_PLAIN = ("ps", "wide", "yaml", "yml", "json")


@dataclass(slots=True)
class Found:
    """One result: a resource, or a list of them."""

    kind: Kind
    resources: list[Resource]
    revision: str = ""
    is_list: bool = False
    documents: list[dict[str, Any]] = field(default_factory=list)


@click.command(cls=Watching)
@click.argument("words", nargs=-1, metavar="KIND [NAME]...")
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="Show the resources that FILE names.")
@click.option("-R", "--recursive", is_flag=True, help="Look into sub-folders of FILE.")
@click.option("--skip-empty", is_flag=True, help="A FILE without resources is no failure.")
@click.option(
    "-o",
    "--output",
    "--format",
    "form",
    default="ps",
    metavar="FORMAT",
    help="ps, wide, yaml, json, csv, name, "
    "custom-columns=A,B, go-template=T, go-template-file=F or jsonpath=EXPRESSION.",
)
@click.option("-n", "--namespace", metavar="NAME", help="The namespace of namespaced kinds. Default: default.")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
@click.option("-a", "all_too", is_flag=True, hidden=True, help="The same as -A.")
@click.option("--export", is_flag=True, help="Leave out what belongs to this cluster only.")
@watch_option
@connection_options
@pass_session
def get(
    session: Session,
    /,
    words: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    skip_empty: bool,
    form: str,
    namespace: str | None,
    all_namespaces: bool,
    all_too: bool,
    export: bool,
    watch: float | None,
) -> None:
    """Show resources.

    \b
    KIND: ippool, ipreservation, ipamconfig, node, workloadendpoint, clusterinfo,
          kubecontrollersconfig, ipamblock, ipamhandle, blockaffinity
    """
    everywhere = all_namespaces or all_too

    def once() -> None:
        _once(session, words, files, recursive, skip_empty, form, namespace, everywhere, export)

    if watch is not None:
        from calico_ipam.ctl.watching import repeat

        repeat(session, once, every=watch, lines=form == "json")
    else:
        once()


def _once(
    session: Session,
    words: Sequence[str],
    files: Sequence[str],
    recursive: bool,
    skip_empty: bool,
    form: str,
    namespace: str | None,
    everywhere: bool,
    export: bool,
) -> None:
    if not words and not files:
        raise click.UsageError("Say what to show: a KIND, or -f FILE.", click.get_current_context())
    _check_format(session, form)
    check_cluster(session, prefix=_FAILED)
    wanted = _wanted(session, words, files, recursive=recursive, skip_empty=skip_empty)
    if wanted is None:
        if session.for_people:
            click.echo("No resources specified")
        else:  # calicoctl writes the nothing that it found
            _write(session, form, (), export=False, namespaces=False)
        return
    resources = resources_of(session)
    found, errors = _look_up(session, resources, wanted, namespace, everywhere)
    _write(session, form, found, export=export and bool(wanted[0][1]), namespaces=everywhere or bool(namespace))
    if errors:
        raise Told("\n".join(str(error) for error in errors), hint=_suggestion(session, errors[0], wanted[0][0]))


Wanted = tuple[Kind, str, str]  # kind, name (empty for all), namespace


def _wanted(
    session: Session, words: Sequence[str], files: Sequence[str], *, recursive: bool, skip_empty: bool
) -> list[Wanted] | None:
    """Return what is asked for; None for a file without resources that may be so."""
    if files:
        from calico_ipam.ctl.files import NothingThere, read_resources
        from calico_ipam.engine.resources import identity

        found: list[Wanted] = []
        for path in files:
            try:
                for document in read_resources(path, recursive=recursive):
                    kind, name, namespace = identity(document)
                    found.append((by_name(kind), name, namespace))
            except NothingThere as error:
                if not skip_empty:
                    raise Told(f"{_FAILED}{error}", hint=error.hint) from None
        return found or None
    kind_ = known_kind(session, words[0], prefix=_FAILED)
    for name in words[1:]:
        if not name:
            raise Told(f"{_FAILED}resource name may not be empty", hint="Leave the name out to see all.")
    return [(kind_, name, "") for name in words[1:]] or [(kind_, "", "")]


def known_kind(session: Session, word: str, *, prefix: str = "") -> Kind:
    """Return the kind that a word names. Raises Told."""
    kind = find_kind(word, ours=not session.compat)
    if kind is None:
        from difflib import get_close_matches

        from calico_ipam.ctl import guesses

        names = [alias for each in KINDS for alias in each.aliases]
        close = get_close_matches(word.lower(), names, n=2)
        others = (
            f"Did you mean {' or '.join(close)}?" if close else f"Known are {', '.join(k.aliases[0] for k in KINDS)}."
        )
        first, slash, name = word.partition("/")
        if slash and find_kind(first, ours=True):
            others = f"Write two words: {first} {name}."
        hint = guesses.KINDS.get(word.lower(), others)
        raise Told(f"{prefix}resource type '{word}' is not supported", hint=hint)
    return kind


def _check_format(session: Session, form: str) -> None:
    if form in _PLAIN:
        return
    name, equals, value = form.partition("=")
    if name in ("go-template", "go-template-file", "custom-columns"):
        if not value:
            what = {"go-template": "a template", "go-template-file": "a template file"}.get(name, "at least one column")
            raise Told(f"need to specify {what}", hint=f"Write it behind the sign: -o {name}=...")
        return
    if not session.compat and (form in ("name", "table", "csv") or (equals and name == "jsonpath")):
        return
    raise Told(
        f"unrecognized output format '{form}'",
        hint="Known are ps, wide, yaml, json, csv, name, custom-columns=, go-template=, jsonpath=.",
    )


def namespace_of(kind: Kind, own: str, flag: str | None, *, everywhere: bool = False) -> str:
    """Return the namespace of a resource; ``own`` is what it says itself. Raises Told when that and the flags disagree
    (cli §8.2)."""
    if not kind.namespaced:
        if own:
            raise Told(
                "namespace should not be specified for a non-namespaced resource. "
                f"{kind.name} is not a namespaced resource",
                hint="Remove metadata.namespace: it belongs to the whole cluster.",
            )
        if flag or everywhere:
            raise Told(f"{kind.name} is not namespaced", hint="Leave -n and -A out: it belongs to the whole cluster.")
        return ""
    if flag and everywhere:
        raise Told("cannot use both --namespace and --all-namespaces flags at the same time", hint="Give one of them.")
    if flag and own and own != flag:
        raise Told(f"resource namespace does not match client namespace. {own} != {flag}", hint="Make them the same.")
    return own or flag or "default"


def check_cluster(session: Session, *, prefix: str = "", writes: bool = False) -> None:
    """Compare the versions of this program and the cluster. Raises Told."""
    from calico_ipam.ctl.version import check_version

    try:
        check_version(session, writes=writes)
    except Told as error:
        raise Told(f"{prefix}{error.message}", hint=error.hint) from None


def resources_of(session: Session) -> Resources:
    """Return the operations on resources. Raises Told."""
    from calico_ipam.engine.resources import Resources

    try:
        session.open()
        engine = session.engine
    except (NotConfigured, InvalidInput) as error:
        if is_missing_file(error):
            raise
        raise Told(
            str(error), exact=f"Failed to create Calico API client: {error}", hint=error.hint, on_stdout=True
        ) from None
    atomic = session.store.capabilities.atomic
    return Resources(engine, stored_configuration=session.compat and atomic, server_rules=session.compat and not atomic)


def _look_up(
    session: Session, resources: Resources, wanted: Sequence[Wanted], namespace: str | None, everywhere: bool
) -> tuple[list[Found], list[IPAMError]]:
    found: list[Found] = []
    errors: list[IPAMError] = []
    for kind, name, own in wanted:
        try:
            where = namespace_of(kind, own, namespace, everywhere=everywhere)
            if name and everywhere and kind.namespaced:
                raise Told("cannot use --all-namespace flag for getting a single resource", hint="Say which: -n NAME.")
            if kind.ours:
                from calico_ipam.ctl.ipam_objects import look_up

                found.append(look_up(session.engine, kind, name))
            elif name:
                resource = resources.get(kind.name, name, where)
                found.append(Found(kind, [resource]))
            else:
                items, revision = resources.list(kind.name, None if everywhere or not kind.namespaced else where)
                found.append(Found(kind, list(items), revision, is_list=True))
        except IPAMError as error:
            errors.append(error)
    return found, errors


def _suggestion(session: Session, error: IPAMError, kind: Kind) -> str:
    """Return what a name that does not exist may have been meant to be."""
    from difflib import get_close_matches

    from calico_ipam.errors import NotFound
    from calico_ipam.model.keys import Resources as Scope

    if not isinstance(error, NotFound) or session.compat or kind.ours:
        return error.hint
    wanted = error.subject.partition("(")[2].rstrip(")").rpartition("/")[2]
    try:
        names = [entry.value.name for entry in session.store.list(Scope(kind.name))]
    except IPAMError:
        return error.hint
    close = get_close_matches(wanted, names, n=3)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return (
        f"There are: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}." if names else f"There is no {kind.name}."
    )


# --- writing -------------------------------------------------------------------------------------------------


def _write(session: Session, form: str, found: Sequence[Found], *, export: bool, namespaces: bool) -> None:
    from calico_ipam.ctl import formats

    name, _, value = form.partition("=")
    if form in ("ps", "wide", "table") or name == "custom-columns":
        for each in found:
            _table(session, each, form, value, namespaces=namespaces)
        if found and not session.for_people:
            click.echo("", nl=False)
        return
    if form == "name":
        for each in found:
            for resource in each.resources:
                click.echo(f"{each.kind.aliases[0]}/{resource.name}")
        return
    shown = found if session.store.capabilities.atomic else [_with_upstream_uids(each) for each in found]
    contents: list[Any] = [_content(each, export=export) for each in shown]
    if name in ("go-template", "go-template-file"):
        _template(session, name, value, contents)
        return
    one: Any = contents[0] if len(contents) == 1 else (contents or None)
    if name == "jsonpath" or form == "csv":
        from calico_ipam.ctl.output import document

        document(one, form)
    elif form == "json":
        click.echo(formats.as_json(one), nl=session.for_people)
    else:
        click.echo(formats.as_yaml(one), nl=False)


def _with_upstream_uids(found: Found) -> Found:
    """Return a result with the UIDs that calicoctl shows of custom resources: the API server's, bits reversed."""
    from dataclasses import replace

    from calico_ipam.model.names import convert_uid

    if found.kind.ours or found.kind.name in ("Node", "WorkloadEndpoint"):
        return found
    converted = []
    for each in found.resources:
        uid = each.metadata.get("uid")
        metadata = {**each.metadata, **({"uid": convert_uid(str(uid))} if uid else {})}
        converted.append(replace(each, document={**each.document, "metadata": metadata}))
    return replace(found, resources=converted)


def _content(found: Found, *, export: bool) -> Any:
    from calico_ipam.ctl import formats

    if found.is_list:
        return formats.list_document(found.kind.name, found.resources, found.revision)
    return formats.document(found.resources[0], export=export)


def _template(session: Session, name: str, value: str, contents: list[Any]) -> None:
    from calico_ipam.ctl.gotemplate import render, whole

    template = value
    if name == "go-template-file":
        from calico_ipam.ctl.files import text_of

        template = text_of(value)
    shown = [whole(each) for each in contents]
    click.echo(render(template, shown, {"config": lambda key: _config_value(session, key)}), nl=False)


def _config_value(session: Session, key: str) -> str:
    return _default_asn(session) if key == "asnumber" else ""


def _default_asn(session: Session) -> str:
    from calico_ipam.errors import NotFound
    from calico_ipam.model.keys import ResourceKey

    try:
        found = session.store.get(ResourceKey("BGPConfiguration", "default")).value.spec.get("asNumber")
    except NotFound:
        return "64512"
    except IPAMError:
        return "unknown" if session.store.capabilities.atomic else "64512"
    return str(found or "64512")


def _table(session: Session, found: Found, form: str, columns: str, *, namespaces: bool) -> None:
    from calico_ipam.ctl.formats import columns_table, completed
    from calico_ipam.ctl.output import Column

    kind = found.kind
    headings = list(kind.wide if form == "wide" else kind.short)
    if columns:
        headings = [each if session.compat else each.strip() for each in columns.split(",")]
        for heading in headings:
            if heading not in kind.cells:
                valid = ", ".join(kind.headings)
                raise Told(f"unknown heading {heading}, valid values are: {valid}", hint="Headings are in capitals.")
    elif kind.namespaced and namespaces and "NAMESPACE" not in headings:
        headings.insert(0, "NAMESPACE")
    if kind.name == "Node" and "ASN" in headings:
        from dataclasses import replace

        from calico_ipam.ctl.kinds import asn_cell

        kind = replace(kind, cells={**kind.cells, "ASN": asn_cell(_default_asn(session))})
    if not session.for_people:
        click.echo(columns_table(kind, headings, found.resources), nl=False)
        return
    rows = [[kind.cells[heading](completed(each)) for heading in headings] for each in found.resources]
    session.table([Column(heading) for heading in headings], rows)
    if not rows:
        session.note(f"there is no {kind.name}.")
