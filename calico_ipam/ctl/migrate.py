"""``ipamctl datastore migrate export | import``: from etcd to the Kubernetes API (cli §11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.locking import cluster_when_locked
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, pass_session
from calico_ipam.errors import AlreadyExists, InvalidInput, IPAMError, NotSupported

if TYPE_CHECKING:
    from calico_ipam.engine.world import Engine
    from calico_ipam.model.keys import Key


@click.command(cls=Mirrored)
@common_options
@pass_session
def export(session: Session, /) -> None:
    """Write what an etcd datastore holds, in the form that 'datastore migrate import' reads. It must be locked."""
    from calico_ipam.ctl import formats
    from calico_ipam.ctl.version import check_version
    from calico_ipam.engine import migration

    check_version(session, writes=False)
    engine = session.engine
    cluster = cluster_when_locked(session, "to begin migration")
    kind_of_store = session.settings.datastore_type
    if kind_of_store == "kubernetes":
        raise Told(
            f"invalid datastore type: {kind_of_store} to export from for datastore migration. "
            "Datastore type must be etcdv3"
        )
    for kind in migration.KINDS:
        resources, revision = migration.exported(engine, kind)
        content = formats.list_document(kind, resources, revision)
        content["apiVersion"] = "projectcalico.org/v3"
        content["items"] = [_exported(each) for each in resources]
        click.echo(formats.as_yaml(content) + "---")
    click.echo(migration.SEPARATOR)
    click.echo(formats.as_json(formats.document(cluster)))
    click.echo(migration.SEPARATOR)
    click.echo(formats.as_json(migration.ipam_data(engine, migration.node_names(engine))))


def _exported(resource: Any) -> dict[str, Any]:
    from calico_ipam.ctl import formats

    found = formats.document(resource)
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {name: resource.metadata[name] for name in kept if resource.metadata.get(name)}
    if resource.kind in ("Tier", "Node"):
        found["status"] = found.get("status") or {}
    ordered = {
        "apiVersion": "projectcalico.org/v3",
        "kind": resource.kind,
        "metadata": metadata,
        "spec": found.get("spec"),
    }
    return ordered | ({"status": found["status"]} if "status" in found else {})


@click.command(cls=Mirrored)
@click.option(
    "-f", "--filename", "path", metavar="FILE", help="What 'datastore migrate export' wrote; - for standard input."
)
@click.option("--dry-run", is_flag=True, help="Check the file and the datastore, and write nothing.")
@common_options
@pass_session
def import_(session: Session, /, path: str | None, dry_run: bool) -> None:
    """Read an export into an empty Kubernetes datastore, which is locked afterwards."""
    from calico_ipam.engine import migration
    from calico_ipam.engine.initialise import initialise
    from calico_ipam.engine.lock import lock

    kind_of_store = session.settings.datastore_type
    if kind_of_store != "kubernetes":
        raise Told(
            f"invalid datastore type: {kind_of_store} to import to for datastore migration. "
            "Datastore type must be kubernetes",
            hint="Between etcd and SQLite: 'ipamctl datastore copy'.",
        )
    engine = session.engine
    migration.refuse_unless_empty(engine)
    # The file is looked at before anything is made: a bad one must not leave a datastore that refuses the next try.
    documents, cluster, items = _read(path)
    if dry_run:
        say(f"Would import {len(documents)} resources and {len(items)} IPAM objects.")
        return
    initialise(engine, kubernetes=True)
    lock(engine)
    say("Datastore locked.")
    _apply(session, engine, documents)
    migration.adopt_identity(engine, cluster)
    say("Importing IPAM resources")
    errors = list(migration.write_ipam(engine, items))
    if errors:
        raise Told(f"failed to import IPAM resources: {' '.join(str(error) for error in errors)}", hint=errors[0].hint)
    say(f"Successfully applied {len(items)} IPAM resource(s)")
    say(
        "Datastore information successfully imported. Please refer to the datastore migration documentation for "
        "next steps."
    )


def _read(path: str | None) -> tuple[list[Mapping[str, Any]], Mapping[str, Any], tuple[tuple[Key, Any], ...]]:
    import json

    import yaml

    from calico_ipam.ctl.files import standard_input
    from calico_ipam.engine import migration

    if not path:
        raise Told("no file was given", hint="Name it: -f FILE, or -f - for standard input.")
    if path == "-":
        text = standard_input().read()
    else:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  # pathlib is not needed otherwise, and costs 7 ms
            text = file.read()
    first, second, third = migration.parse_export(text, path)
    try:
        lists = [each for each in yaml.safe_load_all(first) if isinstance(each, Mapping)]
        cluster = json.loads(second)
    except (yaml.YAMLError, ValueError) as error:
        raise Told(f"error while reading migration file: {path}: {' '.join(str(error).split())}") from None
    items = migration.parse_ipam(third, path)
    if not items:
        raise InvalidInput(
            "no IPAM resources specified in file", subject=path, hint="The third part of the file is empty."
        )
    return [item for each in lists for item in each.get("items") or ()], cluster, items


def _apply(session: Session, engine: Engine, documents: list[Mapping[str, Any]]) -> None:
    """Create the resources of an export; nodes are Kubernetes' own, and only named when one is missing."""
    from calico_ipam.datastore.api import Create, Update
    from calico_ipam.engine.migration import resource_key
    from calico_ipam.model.resource import NODE, Resource

    counts: dict[str, int] = {}
    for document in documents:
        key = resource_key(document)
        resource = Resource(key.kind, key.name, dict(document), key.namespace)
        try:
            if key.kind == NODE:
                stored = engine.store.read(key).entry(key)
                if stored is None:
                    session.note(f"node {key.name} does not exist in Kubernetes and is left out.", label="warning")
                    continue
                engine.store.commit(
                    Update(stored, Resource(NODE, key.name, {**stored.value.document, "spec": resource.spec}))
                )
            else:
                engine.store.commit(Create(key, resource))
        except (AlreadyExists, NotSupported) as error:
            if key.kind != "Tier":
                session.note(f"{key} is left out: {error}", label="warning")
            continue
        except IPAMError as error:
            raise Told(f"failed to import {key}: {error}", hint=error.hint) from error
        counts[key.kind] = counts.get(key.kind, 0) + 1
    for kind, number in counts.items():
        say(f"Successfully applied {number} '{kind}' resource(s)")
