"""``calico`` GC: what is left of attachments that are no more (cni.md §2.7, rulings 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import Dataplane, DataplaneError
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError, joined
from calico_cni.netconf import Attachment, valid_attachments
from calico_cni.node import node_name
from calico_cni.plugin.endpoint import container_of, delete_endpoint
from calico_cni.plugin.links import dataplane_of
from calico_cni.plugin.wiring import CLIENT_FAILED
from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.errors import InvalidInput, IPAMError
from calico_ipam.model.endpoint_names import CNI, EndpointIds
from calico_ipam.model.keys import Resources
from calico_ipam.model.resource import WORKLOAD_ENDPOINT
from calico_ipam.model.timestamps import SECOND, parse_time


def collect(call: Call) -> Answer:
    """Remove links and records of stale attachments, then let the IPAM plugin free their addresses.

    Goes on past errors and tells them all. Without a list of valid attachments nothing is done, and nothing forwarded:
    a plugin that reads "no list" as "nothing is valid" would release what lives.
    """
    valid = valid_attachments(call.conf.document)
    if valid is None:
        call.log.info("No list of valid attachments was given; nothing is collected")
        return Answer()
    errors: list[Exception] = []
    with call.store(CLIENT_FAILED) as store:
        kept = _Collector(call, store, valid).run(errors)
        try:
            IPAMDelegate(call, store).collect(_with_kept(call.conf.document, kept))
        except CNIError as error:
            errors.append(error)
    if errors:
        raise joined(errors)
    return Answer()


def _with_kept(document: Mapping[str, Any], kept: Iterable[Attachment]) -> Mapping[str, Any]:
    """Return the configuration to forward: as it came, but attachments that had to be kept count as valid.

    The address of a link that still stands must stay assigned, whatever the runtime believes (rulings 5).
    """
    extra = [{"containerID": attachment.container_id, "ifname": attachment.ifname} for attachment in kept]
    if not extra:
        return document
    keys = [key for key in ("cni.dev/valid-attachments", "cni.dev/attachments") if document.get(key) is not None]
    return {**document, **{key: [*document[key], *extra] for key in keys}}


class _Collector:
    """Looks through the records of this node that belong to this network and to no Kubernetes pod."""

    def __init__(self, call: Call, store: Datastore, valid: frozenset[Attachment]) -> None:
        self._call = call
        self._store = store
        self._valid = valid
        self._node = node_name(call.conf, call.context.hostname, call.log)
        self._oldest_young = call.context.clock.now() - int(timers.COLLECT_AGE) * SECOND

    def run(self, errors: list[Exception]) -> list[Attachment]:
        """Remove what is stale; return the stale attachments whose link had to be left. Adds to ``errors``."""
        try:
            stale = [entry for entry in self._records() if self._is_stale(entry)]
            dataplane = dataplane_of(self._call) if stale else None
        except (IPAMError, CNIError) as error:
            errors.append(error)
            return []
        kept = []
        for entry in stale:
            try:
                if dataplane is not None and not self._remove(dataplane, entry):
                    kept.append(_attachment(entry))
            except (IPAMError, CNIError, DataplaneError) as error:
                errors.append(error)
                kept.append(_attachment(entry))
        return kept

    def _records(self) -> list[Entry]:
        if self._store.capabilities.endpoints_are_pods:
            return []  # there are none but pods, which the plugin may not list
        prefix = EndpointIds(node=self._node, orchestrator=CNI).prefix()
        bound = self._store.within(Deadline.after(timers.RECORDS))
        return list(bound.list(Resources(WORKLOAD_ENDPOINT, None, prefix)))

    def _is_stale(self, entry: Entry) -> bool:
        spec = entry.value.spec
        return (
            spec.get("orchestrator") == CNI
            and spec.get("node") == self._node
            # One that other networks have joined may be valid for them; only its own network alone can judge it.
            and spec.get("profiles") == [self._call.conf.name]
            and _attachment(entry) not in self._valid
            and self._is_old(entry)
        )

    def _is_old(self, entry: Entry) -> bool:
        try:
            return parse_time(str(entry.value.metadata.get("creationTimestamp") or "")) <= self._oldest_young
        except InvalidInput:
            return False

    def _remove(self, dataplane: Dataplane, entry: Entry) -> bool:
        """Remove link and record; False when somebody may still live behind the link."""
        host_name = str(entry.value.spec.get("interfaceName") or "")
        link = dataplane.host_link(host_name, "") if host_name else None
        if link is not None:
            if link.alive:
                self._call.log.warning(
                    "A stale attachment is kept: its link may be in use", endpoint=entry.value.name, link=host_name
                )
                return False
            dataplane.remove("", str(entry.value.spec.get("endpoint") or ""), host_name)
        delete_endpoint(self._store, entry, container_of(entry))
        self._call.log.info("Removed a stale attachment", endpoint=entry.value.name, link=host_name)
        return True


def _attachment(entry: Entry) -> Attachment:
    return Attachment(container_of(entry), str(entry.value.spec.get("endpoint") or ""))
