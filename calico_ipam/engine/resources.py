"""Creating, replacing and deleting v3 resources by the rules of their kind (cli §8.3, §9, §10).

An IPAMConfiguration is kept where the IPAM code reads it (limit 18.16): callers that must do as calicoctl does on
etcd, where nothing reads it, ask for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore.api import Create, Delete, Entry, Update, Write
from calico_ipam.engine import pools
from calico_ipam.engine.initialise import stamped
from calico_ipam.engine.world import CONFIG, POOLS, Engine
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound, NotSupported, RefusedError
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import Blocks, ResourceKey
from calico_ipam.model.other_rules import check_new_name, check_resource, completed_spec
from calico_ipam.model.pool import parse_pools
from calico_ipam.model.pool_rules import PoolRequest, check_changed_pool, check_existing_blocks, check_new_pool
from calico_ipam.model.resource import (
    CLUSTER_INFORMATION,
    IP_POOL,
    IPAM_CONFIGURATION,
    KUBE_CONTROLLERS_CONFIGURATION,
    NODE,
    Resource,
    mapping,
)

CONFIG_FIELDS = (
    ("strictAffinity", "strict_affinity"),
    ("maxBlocksPerHost", "max_blocks_per_host"),
    ("autoAllocateBlocks", "auto_allocate_blocks"),
    ("kubeVirtVMAddressPersistence", "kubevirt_persistence"),
    ("ipCooldownSeconds", "cooldown_seconds"),
)
_ALWAYS = ("strictAffinity", "autoAllocateBlocks")

#: attempts of a replace that names no revision (cli §8.3)
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Resources:
    """The operations on one datastore. ``stored_configuration``: an IPAMConfiguration is a document of its own."""

    engine: Engine
    stored_configuration: bool = False
    server_rules: bool = False  #: what the API server checks is left to it, and told in its words

    # --- reading ---------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str, namespace: str = "") -> Resource:
        """Return one resource. Raises NotFound."""
        if self._is_settings(kind):
            entry = self._settings()
            if entry is None or name != "default":
                raise NotFound(f"{kind}({name})")
            return settings_resource(entry)
        found: Resource = self._entry(kind, name, namespace).value
        return found

    def list(self, kind: str, namespace: str | None = None) -> tuple[tuple[Resource, ...], str]:
        """Return the resources of a kind and the revision of the list."""
        from calico_ipam.model.keys import Resources as Scope

        if self._is_settings(kind):
            entry = self._settings()
            return (
                (settings_resource(entry),) if entry is not None else ()
            ), entry.revision if entry is not None else ""
        listing = self.engine.store.list(Scope(kind, namespace))
        return tuple(entry.value for entry in listing), listing.revision

    def _entry(self, kind: str, name: str, namespace: str = "") -> Entry:
        return self.engine.store.get(ResourceKey(kind, name, namespace))

    def _is_settings(self, kind: str) -> bool:
        return kind == IPAM_CONFIGURATION and not self.stored_configuration

    def _settings(self) -> Entry | None:
        return self.engine.store.read(CONFIG).entry(CONFIG)

    # --- writing ---------------------------------------------------------------------------------------------

    def create(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Resource:
        """Create a resource. Raises InvalidInput, AlreadyExists, NotSupported."""
        kind, name, namespace = identity(document)
        metadata = mapping(document.get("metadata"))
        if kind == CLUSTER_INFORMATION:
            raise NotSupported("create or apply", CLUSTER_INFORMATION)
        if metadata.get("resourceVersion"):
            raise InvalidInput(
                f"error with field Metadata.ResourceVersion = '{metadata['resourceVersion']}' "
                "(field must not be set for a Create request)",
                subject=f"{kind}({name})",
                hint="Remove metadata.resourceVersion from the file.",
            )
        resource = self._new(kind, document)
        if dry_run:
            self._refuse_existing(kind, name, namespace)
            return resource
        if self._is_settings(kind):
            self.engine.store.commit(Create(CONFIG, settings_of(resource.spec)))
            return resource
        try:
            (created,) = self.engine.store.commit(
                Create(ResourceKey(kind, name, namespace), stamped(self.engine, resource))
            )
        except AlreadyExists as error:
            raise AlreadyExists(
                str(ResourceKey(kind, name, namespace)), error.reason, hint="'ipamctl apply' or 'replace' changes it."
            ) from None
        if kind == IP_POOL:
            pools.keep_apart(self.engine, created, PoolRequest.from_document(document))
        return resource

    def _refuse_existing(self, kind: str, name: str, namespace: str) -> None:
        with suppress(NotFound):
            self.get(kind, name, namespace)
            raise AlreadyExists(str(ResourceKey(kind, name, namespace)))

    def _new(self, kind: str, document: Mapping[str, Any]) -> Resource:
        """Return a new resource as it is stored, its rules kept."""
        metadata = mapping(document.get("metadata"))
        kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if metadata.get(key)}
        if kind == IP_POOL:
            request = PoolRequest.from_document(document)
            snapshot = self.engine.store.read(POOLS, Blocks())
            existing, _ = parse_pools(entry.value for entry in snapshot.listing(POOLS))
            cidr = check_new_pool(request, existing, schema=not self.server_rules)
            with suppress(NotSupported):
                check_existing_blocks(request, cidr, pools.block_cidrs(snapshot.listing(Blocks())))
            return request.resource(cidr)
        spec = completed_spec(kind, mapping(document.get("spec")))
        check_resource(kind, {**document, "spec": spec}, schema=not self.server_rules)
        check_new_name(kind, str(kept.get("name") or ""))
        content = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": kept, "spec": spec}
        if kind in (NODE, KUBE_CONTROLLERS_CONFIGURATION):
            content["status"] = document.get("status") or {}
        return Resource(kind, str(kept.get("name") or ""), content, str(kept.get("namespace") or ""))

    def replace(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Resource:
        """Replace a resource that exists. Raises NotFound, Conflict for a revision that is not the stored one."""
        kind, name, namespace = identity(document)
        wanted = str(mapping(document.get("metadata")).get("resourceVersion") or "")
        for attempt in range(ATTEMPTS):
            entry = self._settings() if self._is_settings(kind) else self._entry(kind, name, namespace)
            if entry is None:
                raise NotFound(f"{kind}({name})")
            if wanted and wanted != entry.revision:
                raise Conflict(str(ResourceKey(kind, name, namespace)))
            if kind == CLUSTER_INFORMATION:
                raise NotSupported("apply or replace", CLUSTER_INFORMATION)
            before = settings_resource(entry) if self._is_settings(kind) else entry.value
            after = self._changed(kind, before, document)
            if dry_run:
                return after
            write: Write = Update(entry, settings_of(after.spec, entry.value) if self._is_settings(kind) else after)
            if attempt and write == Update(entry, entry.value):
                return after
            try:
                self.engine.store.commit(write)
            except Conflict:
                if wanted or attempt == ATTEMPTS - 1:
                    raise
                self.engine.clock.sleep(1.0)
                continue
            return after
        raise AssertionError("the last attempt returns or raises")

    def _changed(self, kind: str, before: Resource, document: Mapping[str, Any]) -> Resource:
        """Return the stored resource with labels, annotations and spec of a document."""
        given = mapping(document.get("metadata"))
        metadata = {key: value for key, value in before.metadata.items() if key not in ("labels", "annotations")}
        metadata |= {key: given[key] for key in ("labels", "annotations") if given.get(key)}
        if kind == IP_POOL:
            request = PoolRequest.from_document(document)
            cidr = check_changed_pool(request, before, schema=not self.server_rules)
            spec: Mapping[str, Any] = request.resource(cidr).spec
        else:
            spec = completed_spec(kind, mapping(document.get("spec")))
            check_resource(kind, {**document, "spec": spec}, schema=not self.server_rules)
        return Resource(
            kind, before.name, {**before.document, "metadata": metadata, "spec": dict(spec)}, before.namespace
        )

    def apply(self, document: Mapping[str, Any], *, dry_run: bool = False, merge_fixed: bool = True) -> Resource:
        """Create a resource, or replace the one that exists. ``merge_fixed``: what cannot change need not be given
        (limit 18.18)."""
        kind, name, namespace = identity(document)
        if kind == CLUSTER_INFORMATION:
            raise NotSupported("apply", CLUSTER_INFORMATION, "resource is readonly")
        if merge_fixed:
            try:
                before = self.get(kind, name, namespace)
            except NotFound:
                return self.create(document, dry_run=dry_run)
            return self.replace(_with_fixed_fields(kind, before, document), dry_run=dry_run)
        try:
            return self.create(_without_revision(document), dry_run=dry_run)
        except (AlreadyExists, NotSupported):
            return self.replace(document, dry_run=dry_run)

    def update(self, before: Resource, document: Mapping[str, Any]) -> Resource:
        """Write a changed document over the resource it was made from; one attempt."""
        given = mapping(document.get("metadata"))
        metadata = {**given, "resourceVersion": given.get("resourceVersion") or before.metadata.get("resourceVersion")}
        return self.replace({**document, "metadata": metadata})

    # --- deleting --------------------------------------------------------------------------------------------

    def delete(self, kind: str, name: str, namespace: str = "", revision: str = "") -> None:
        """Delete a resource. Raises NotFound, Conflict for another revision, NotSupported."""
        if kind == CLUSTER_INFORMATION:
            raise NotSupported("delete", CLUSTER_INFORMATION)
        if kind == NODE:
            from calico_ipam.engine.nodes import delete_node

            delete_node(self.engine, name)
            return
        if self._is_settings(kind):
            entry = self._settings()
            if entry is None or name != "default":
                raise NotFound(f"{kind}({name})")
        else:
            entry = self._entry(kind, name, namespace)
        if revision and entry.revision != revision and not self._ignores_revision(kind, entry):
            raise Conflict(str(ResourceKey(kind, name, namespace)))
        if kind == IP_POOL:
            from calico_ipam.engine.admin import release_pool_affinities

            pools.delete_used_pool(self.engine, name, lambda cidr: release_pool_affinities(self.engine, cidr))
            return
        self.engine.store.commit(Delete(entry))

    def _ignores_revision(self, kind: str, entry: Entry) -> bool:
        """On the Kubernetes API a disabled pool goes whatever revision was given (cli §9.3)."""
        return (
            kind == IP_POOL and entry.value.spec.get("disabled") is True and not self.engine.store.capabilities.atomic
        )


def identity(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return kind, name and namespace of a document."""
    metadata = mapping(document.get("metadata"))
    return str(document.get("kind")), str(metadata.get("name") or ""), str(metadata.get("namespace") or "")


def _without_revision(document: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in mapping(document.get("metadata")).items() if k != "resourceVersion"}
    return {**document, "metadata": metadata}


def _with_fixed_fields(kind: str, before: Resource, document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = mapping(document.get("spec"))
    if kind != IP_POOL or spec.get("blockSize"):
        return document
    return {**document, "spec": {**spec, "blockSize": before.spec.get("blockSize") or 0}}


# --- the settings as a resource ------------------------------------------------------------------------------


def settings_resource(entry: Entry) -> Resource:
    """Return the IPAM settings as an IPAMConfiguration."""
    config: IPAMConfig = entry.value
    spec: dict[str, Any] = {}
    for name, field in CONFIG_FIELDS:
        value = getattr(config, field)
        if value or name in _ALWAYS:
            spec[name] = value
    made = Resource.new(IPAM_CONFIGURATION, "default", spec)
    metadata = {**made.metadata, "resourceVersion": entry.revision}
    return Resource(IPAM_CONFIGURATION, "default", {**made.document, "metadata": metadata})


def settings_of(spec: Mapping[str, Any], before: IPAMConfig | None = None) -> IPAMConfig:
    """Return the settings that an IPAMConfiguration means: what is left out is off (cli §10). Raises InvalidInput."""
    config = IPAMConfig(
        strict_affinity=spec.get("strictAffinity") is True,
        auto_allocate_blocks=spec.get("autoAllocateBlocks") is True,
        max_blocks_per_host=int(spec.get("maxBlocksPerHost") or 0),
        kubevirt_persistence=spec.get("kubeVirtVMAddressPersistence") or None,
        cooldown_seconds=int(spec.get("ipCooldownSeconds") or 0),
        extra=before.extra if before is not None else {},
    )
    config.check()
    return config


def in_use(engine: Engine, name: str) -> str:
    """Return who uses a pool, for people; empty when nobody does."""
    try:
        _, use = pools.look_at_pool(engine, name)
    except RefusedError:
        return ""
    return str(use) if use.any else ""
