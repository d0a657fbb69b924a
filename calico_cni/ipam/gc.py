"""``calico-ipam`` GC: release what belongs to attachments that are no more (cni.md §2.7, rulings 6)."""

from __future__ import annotations

from collections.abc import Iterator

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.errors import joined
from calico_cni.ipam.lock import host_lock
from calico_cni.netconf import valid_attachments
from calico_cni.node import node_name
from calico_ipam.datastore.api import Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import IPAMError, StaleError
from calico_ipam.model.block import Attribute, Block, ReleaseOption
from calico_ipam.model.keys import Blocks
from calico_ipam.model.owner import NODE, POD, TIMESTAMP
from calico_ipam.model.timestamps import SECOND, parse_attribute_time


def collect(call: Call) -> Answer:
    """Release stale addresses of this network and node, each guarded by its handle and sequence number.

    All blocks are looked at, since an address may be borrowed from another node's block. Errors are gathered.
    """
    valid = valid_attachments(call.conf.document)
    if valid is None:
        call.log.info("No list of valid attachments was given; nothing is released")
        return Answer()
    judge = _Judge(call, frozenset(attachment.container_id for attachment in valid))
    errors: list[Exception] = []
    with call.store() as store, host_lock(call.conf.ipam_lock_file, call.log, call.context.stop.heed):
        deadline = Deadline.after(timers.ALLOCATION)
        ipam = IPAM(store, hostname=judge.node, clock=call.context.clock).within(deadline)
        for entry in store.within(deadline).list(Blocks()):
            for option in judge.stale(entry.value):
                try:
                    ipam.release_ips([option])
                    call.log.info("Released a stale address", address=option.address, handle=option.handle)
                except StaleError as error:
                    call.log.info("An address changed hands meanwhile and is kept", address=option.address, error=error)
                except IPAMError as error:
                    errors.append(error)
    if errors:
        raise joined(errors)
    return Answer()


class _Judge:
    """Says which addresses belong to attachments of this network and node that nobody lists any more."""

    def __init__(self, call: Call, valid: frozenset[str]) -> None:
        self.node = node_name(call.conf, call.context.hostname, call.log)
        self._prefix = f"{call.conf.name}."
        self._valid = valid
        self._pods_only = call.conf.for_kubernetes
        self._oldest_young = call.context.clock.now() - int(timers.COLLECT_AGE) * SECOND

    def stale(self, block: Block) -> Iterator[ReleaseOption]:
        for ordinal, attribute in block.taken():
            if not attribute.cold and self._is_stale(attribute):
                yield ReleaseOption(block.address(ordinal), attribute.clean_handle, block.sequence_of(ordinal))

    def _is_stale(self, attribute: Attribute) -> bool:
        handle = attribute.clean_handle
        container = handle.removeprefix(self._prefix)
        if not handle.startswith(self._prefix) or not container or "." in container or container in self._valid:
            return False  # another network's, a virtual machine's, or alive
        owner = attribute.active
        assigned = parse_attribute_time(owner.get(TIMESTAMP, ""))
        return (
            owner.get(NODE) == self.node
            and assigned is not None
            and assigned <= self._oldest_young
            and (not self._pods_only or bool(owner.get(POD)))
        )
