"""Puts a collector together: datastore, Kubernetes, loop, election, server; and takes it apart again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calico_gc import report
from calico_gc.controller import Controller
from calico_gc.events import Events
from calico_gc.feed import Source, sources
from calico_gc.gate import GatedStore, NotAllowed, refuse_all
from calico_gc.handle_work import ListMarked
from calico_gc.host import HostLive, HostSource, Sources
from calico_gc.inbox import Inbox
from calico_gc.intake import Intake
from calico_gc.kcc import Told, ensure, read
from calico_gc.kube import Cluster, list_marked
from calico_gc.leader import Election, Forbidden, Leases
from calico_gc.loop import Loop
from calico_gc.metrics import Metrics
from calico_gc.settings import Settings
from calico_gc.state import State
from calico_gc.timing import Bucket, Clock
from calico_gc.view import View
from calico_gc.work import Worker
from calico_ipam.datastore.api import Datastore
from calico_ipam.datastore.kube.api import KubeApi
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.settings import get_config
from calico_ipam.engine.world import Engine
from calico_ipam.errors import IPAMError
from calico_ipam.model.resource import Resource

if TYPE_CHECKING:
    from calico_gc.act import Live

log = logging.getLogger(__name__)


#: seconds after which it is tried again whether leases can be used
WITHOUT_LEASE = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the collector works. ``api``: Kubernetes, None on a host without it. ``host``: this host's name.

    ``instance``: what this process is called among others. ``drop_in``: started in the place of upstream's controller,
    with ``environ`` as its environment.
    """

    store: Datastore
    api: KubeApi | None
    host: str
    instance: str
    namespace: str = "kube-system"
    drop_in: bool = False
    environ: Mapping[str, str] | None = None

    @property
    def kubernetes_store(self) -> KubernetesStore | None:
        return self.store if isinstance(self.store, KubernetesStore) else None


class Collector:
    """A collector that is wired and not running yet. ``configured`` is told of upstream's settings when they change."""

    def __init__(
        self,
        place: Place,
        settings: Settings,
        clock: Clock,
        configured: Callable[[Told], None] = lambda *_: None,
    ) -> None:
        self.place = place
        self.settings = settings
        self._clock = clock
        self._configured = configured
        self._told: Told | None = None
        self.electing = settings.leader_elect and not settings.dry_run and place.api is not None
        self.election: Election | None = None
        self.unelected = False  #: leases are out of reach, and it runs all the same
        self.inbox = Inbox(clock)
        gated = GatedStore(place.store, self._permit, Bucket(clock, settings.write_qps))
        self.engine = Engine(gated, clock, Retry(clock=clock))
        self._status_store = GatedStore(place.store, self._permit_status, Bucket(clock, settings.write_qps))
        self.events = self._events()
        self.controller = self._controller()
        intake = Intake(
            self.controller,
            kubernetes_nodes=place.kubernetes_store is not None,
            configured=self._configuration_changed,
        )
        self.loop = Loop(self.controller, intake, self.inbox, clock, after_sync=self._after_sync)
        self.metrics = Metrics(self.loop.view, legacy=settings.legacy_metrics)
        self.loop.use(self._worker(), self._sources())
        self.loop.timed = self.metrics.timed
        self.loop.listed = self._listed

    # --- parts ---------------------------------------------------------------------------------------------

    def _controller(self) -> Controller:
        place, settings = self.place, self.settings
        state = State(windows_empty=settings.windows_empty, kubernetes=place.api is not None)
        controller = Controller(
            state,
            self._live(state),
            lambda action: self.loop.submit(action),
            partial(get_config, self.engine),
            self._clock,
            settings.options(None, etcd=self._etcd),
            notify=self.events if self.events is not None else lambda *_: None,
        )
        controller.folded_names = place.kubernetes_store is not None
        controller.active = not self.electing
        return controller

    @property
    def _etcd(self) -> bool:
        """Calico's nodes are its own, beside Kubernetes'."""
        return self.place.kubernetes_store is None and self.place.api is not None

    def _live(self, state: State) -> Live:
        place = self.place
        if place.api is None:
            return HostLive(place.host, self._host_sources())
        calico = None if place.kubernetes_store is not None else place.store
        return Cluster(place.api, self._clock, calico, lambda: state.machines)

    def _host_sources(self) -> Sources | None:
        chosen = self.settings
        return Sources(chosen.host_cache, chosen.host_netns, chosen.host_runtime) if chosen.host else None

    def _worker(self) -> Worker:
        store = self.place.kubernetes_store
        listing: ListMarked = partial(list_marked, store) if store is not None else self.place.store.list
        bucket = Bucket(self._clock, self.settings.handle_qps)
        return Worker(self.engine, self.controller.live, listing, self._clock, bucket, self.loop.progress)

    def _sources(self) -> list[Source]:
        store = self.place.kubernetes_store
        group, api = (store.group, store.api) if store is not None else (None, None)
        found = sources(self.place.store, group, api, self.place.api, self.inbox)
        host = self._host_sources()
        if self.place.api is None and host is not None:
            found.append(HostSource(host, self.inbox))
        return found

    def _events(self) -> Events | None:
        if self.place.api is None or not self.settings.events or self.settings.dry_run:
            return None
        return Events(self.place.api, self._clock, self.place.instance)

    # --- running -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until stopped. Raises what the loop raises."""
        if self.events is not None:
            self.events.start()
        election = self._elect()
        try:
            self.loop.run()
        finally:
            if election is not None and self.election is not None:
                self.election.stop()
                election.join(timeout=10.0)
            if self.events is not None:
                self.events.stop()

    def stop(self) -> None:
        self.loop.stop()

    def _elect(self) -> threading.Thread | None:
        if not self.electing or self.place.api is None:
            return None
        leases = Leases(self.place.api, self.place.namespace)
        self.election = Election(leases, self.place.instance, self._clock, self._won, self._lost)
        thread = threading.Thread(target=self._run_election, args=(self.election,), name="election", daemon=True)
        thread.start()
        return thread

    def _run_election(self, election: Election) -> None:
        while True:
            try:
                election.run(self._elected_again)
                return
            except Forbidden as error:
                if not self._may_go_without_lease(error) or election.stopped(WITHOUT_LEASE):
                    return
            except Exception as error:  # with the thread gone nobody would ever lead again
                self.loop.fail(error)
                return

    def _may_go_without_lease(self, error: Forbidden) -> bool:
        """In upstream's place there are no rights for leases; compare-and-swap keeps two from harm (ruling 19)."""
        if not self.place.drop_in:
            log.error("%s", error)
            self.loop.fail(error)
            return False
        if not self.unelected:
            self.unelected = True
            log.warning("running without election: %s", error)
            self._won()
        return True

    def _elected_again(self, election: Election) -> None:
        """Leases can be used: an API server that has just started may have refused what it grants."""
        if self.unelected:
            self.unelected = False
            log.warning("leases can be used again: from now on only the leader acts")
            if not election.leading:
                self._lost()

    def _won(self) -> None:
        self.inbox.call(self._lead)

    def _lead(self) -> None:
        self.controller.active = True
        self.controller.state.full_scan = True
        if self.writes_status and self._told is not None:
            self.loop.apart(self.write_status)

    def _lost(self) -> None:
        self.inbox.call(self.controller.step_down)

    def _permit(self) -> None:
        """Raise NotAllowed unless Calico's data may be written at this moment, whatever was decided before."""
        self._permit_status()
        if not self.controller.state.ready:
            raise NotAllowed("the datastore is locked: nothing is written", hint="Unlock it; it goes on by itself.")

    def _permit_status(self) -> None:
        """The lock is about Calico's data, not about what this program says of itself."""
        if self.settings.dry_run:
            refuse_all()
        if not self.electing or self.unelected:
            return
        if self.election is None:
            raise NotAllowed("this instance does not lead yet: nothing is written")
        self.election.check()

    # --- what happens on the way ----------------------------------------------------------------------------

    def _after_sync(self, loop: Loop, full: bool) -> None:
        if full and self.unelected:
            log.warning("running without election: a second instance would do the same work")
        if full and self.settings.report and not self.settings.once:
            view = loop.make_view()
            try:
                self.write_report(view)
            except OSError as error:
                log.warning("the report %s cannot be written: %s", self.settings.report, error.strerror)

    def write_report(self, view: View, errors: tuple[str, ...] = ()) -> None:
        """Write the report as asked. Raises OSError."""
        shape = self.settings.report_format
        document = report.calicoctl_report(view) if shape == "calicoctl" else report.report(view, errors)
        report.write(Path(self.settings.report), document)

    def _listed(self) -> None:
        """Where there is no configuration object, no change tells so."""
        if self._told is None:
            self._configuration_changed(None, "")

    def _configuration_changed(self, resource: Resource | None, revision: str) -> None:
        del revision
        told = read(resource, (self.place.environ or {}) if self.place.drop_in else {})
        if told != self._told:
            for complaint in told.complaints if self.settings.leak_grace is None else ():
                log.warning("%s", complaint)
            self._told = told
            self.controller.options = self.settings.options(told, etcd=self._etcd)
            self.loop.retime()
            self._configured(told)
        if self.writes_status:
            self.loop.apart(self.write_status)

    @property
    def writes_status(self) -> bool:
        return (self.settings.write_kcc_status or self.place.drop_in) and not self.settings.dry_run

    def write_status(self) -> None:
        """Keep upstream's configuration object as upstream would, as far as we may write at this moment."""
        store = self.place.kubernetes_store
        environ = dict(self.place.environ or {})
        if store is not None:
            environ["DATASTORE_TYPE"] = "kubernetes"
        try:
            self._permit_status()
            ensure(self._status_store, store.api if store is not None else None, environ)
        except IPAMError as error:
            log.warning("KubeControllersConfiguration default was not updated: %s", error)
