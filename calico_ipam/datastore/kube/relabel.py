"""Affinity rows that older releases wrote: today's labels and type for them (datastore §3.3, §14.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from calico_ipam.datastore.api import Damaged, Update
from calico_ipam.datastore.kube.objects import marked_deleted, within_scope
from calico_ipam.datastore.kube.pages import Call, all_items
from calico_ipam.datastore.kube.paths import unlabelled
from calico_ipam.errors import IPAMError, NotFound
from calico_ipam.model.affinity import HOST
from calico_ipam.model.keys import Affinities

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.store import KubernetesStore

log = logging.getLogger(__name__)


def relabel(store: KubernetesStore, call: Call, host: str) -> None:
    """Rewrite the rows of a host that have no type among their labels. Each is tried; the first error is raised."""
    failure: IPAMError | None = None
    for item in all_items(call, unlabelled(store.group))[0]:
        found = store.entry_of("BlockAffinity", item)
        if isinstance(found, Damaged) or marked_deleted(found) or not within_scope(Affinities(HOST, host), found):
            continue
        try:
            store.commit(Update(found, found.value))
        except NotFound:
            continue  # it went away meanwhile
        except IPAMError as error:
            log.info("%s keeps its old form for now: %s", found.key, error)
            failure = failure or error
    if failure is not None:
        raise failure
