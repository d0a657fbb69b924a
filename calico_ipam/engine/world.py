"""What an operation needs to know of the cluster, read in one go (limit L16)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from calico_ipam.datastore.api import Datastore, Deadline, Snapshot
from calico_ipam.engine.familiar import Familiar
from calico_ipam.engine.policy import Clock, Retry
from calico_ipam.errors import IPAMError, RefusedError
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import ConfigKey, Key, ResourceKey, Resources, Scope
from calico_ipam.model.pool import Pool, parse_pools
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION, NODE

log = logging.getLogger(__name__)

#: an undo may take this many seconds, even when the caller's own time is over (ipam-library §3)
UNDO_SECONDS = 30.0

POOLS = Resources(IP_POOL)
RESERVATIONS = Resources(IP_RESERVATION)
CONFIG = ConfigKey()


@dataclass(frozen=True, slots=True)
class Engine:
    """What every operation works with: the store, time, patience, and where pools and reservations come from."""

    store: Datastore
    clock: Clock
    retry: Retry
    hostname: str | None = None
    pools: Callable[[], Sequence[Pool]] | None = None
    reservations: Callable[[], Reservations] | None = None
    familiar: Familiar = field(default_factory=Familiar)

    def host(self, given: str | None) -> str:
        """Return the host that acts: the one given, ours, or the OS host name trimmed and in lower case (§4)."""
        return given or self.hostname or own_hostname()

    def within(self, deadline: Deadline | None) -> Engine:
        return replace(self, store=self.store.within(deadline), retry=replace(self.retry, deadline=deadline))

    def undoing(self) -> Engine:
        """Return the engine with the time that an undo may take, the caller's deadline or not."""
        deadline = self.retry.deadline
        if deadline is None or deadline.remaining() >= UNDO_SECONDS:
            return self
        return self.within(Deadline.after(UNDO_SECONDS))

    def fresh(self, block: Block, config: IPAMConfig) -> Block:
        """Return a block that was read as it is now: addresses whose cooldown is over are free (§8.2)."""
        return block.mature(config.cooldown_seconds, self.clock.now())

    def look(self, *more: Key | Scope, reservations: bool = False, pools: bool = True) -> World:
        """Read settings and pools, ``more`` beside them, and the reservations where they matter, in one read.

        Without ``pools`` these are left out where they would cost a request of their own (World.shows_pools).
        """
        wanted: list[Key | Scope] = [CONFIG, *more]
        pools = pools or self.store.capabilities.snapshot_reads
        if pools and self.pools is None:
            wanted.append(POOLS)
        if reservations and self.reservations is None:
            wanted.append(RESERVATIONS)
        snapshot = self.store.read(*wanted)
        config = IPAMConfig()
        stored = snapshot.entry(CONFIG)
        if stored is not None:
            config = stored.value
            for problem in config.problems():
                log.warning("the stored IPAM configuration breaks a rule and is used as it is: %s", problem)
        known = self.pools_of(snapshot) if pools else ()
        return World(config, known, self._reservations(snapshot, reservations), snapshot, shows_pools=pools)

    def pools_of(self, snapshot: Snapshot) -> tuple[Pool, ...]:
        """Return the pools that a read of POOLS shows, or those of the caller; bad ones are left out."""
        if self.pools is not None:
            return tuple(self.pools())
        pools, bad = parse_pools(entry.value for entry in snapshot.listing(POOLS))
        for name, reason in bad:
            log.warning("pool %s cannot be used: %s", name, reason)
        return tuple(pools)

    def _reservations(self, snapshot: Snapshot, wanted: bool) -> Reservations:
        if not wanted:
            return Reservations()
        if self.reservations is not None:
            return self.reservations()
        found = Reservations.from_resources(entry.value for entry in snapshot.listing(RESERVATIONS))
        for entry in found.ignored:
            log.warning("reservation entry %r is neither a CIDR nor an address and is ignored", entry)
        return found


@dataclass(frozen=True, slots=True)
class World:
    """One consistent look at the cluster."""

    config: IPAMConfig
    pools: tuple[Pool, ...]
    reservations: Reservations
    snapshot: Snapshot
    shows_pools: bool = True

    def with_more(self, more: Snapshot) -> World:
        """Return the same world with what another read found."""
        return replace(self, snapshot=self.snapshot.with_more(more))

    def with_pools(self, engine: Engine) -> World:
        """Return the same world with the pools as they are now."""
        snapshot = self.snapshot if engine.pools is not None else engine.store.read(POOLS)
        return replace(self, pools=engine.pools_of(snapshot), shows_pools=True)

    @property
    def enabled(self) -> list[Pool]:
        """Pools that new addresses may come from, both families."""
        return [pool for pool in self.pools if pool.enabled]


def node_key(host: str) -> ResourceKey:
    return ResourceKey(NODE, host)


def own_hostname() -> str:
    """Return the OS host name, trimmed and in lower case. Raises RefusedError when there is none."""
    import socket  # 3 ms, and most calls are told their host

    try:
        name = socket.gethostname().strip().lower()
    except OSError as error:
        raise RefusedError(f"Failed to acquire hostname: {error}") from error
    if not name:
        raise RefusedError("Failed to acquire hostname: it is empty", hint="Set the host's name, or give one.")
    return name


def concerns(error: IPAMError, what: Key | Scope, *places: str) -> bool:
    """Tell whether an error is about an object: it names it, or its place in the store (``places``: parts of paths)."""
    return error.subject == str(what) or any(place in error.subject for place in places)


def explain(error: IPAMError, text: str) -> IPAMError:
    """Put context in front of an error's text and return it; its class and everything else stay."""
    error.message = f"{text}: {error.message}"
    return error
