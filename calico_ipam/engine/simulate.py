"""What would happen if: the real operations on a copy of the data, in a store of its own that is thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from calico_ipam.datastore.api import Create, Datastore
from calico_ipam.datastore.documents import DocumentStore
from calico_ipam.datastore.dump import read_all, write_all
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine import pools
from calico_ipam.engine.assign import auto_assign
from calico_ipam.engine.nodes import delete_node
from calico_ipam.engine.policy import Clock
from calico_ipam.engine.request import Request
from calico_ipam.engine.resources import Resources
from calico_ipam.engine.survey import BLOCKS, CLUSTER, ENDPOINTS, HANDLES, NODES, ROWS
from calico_ipam.engine.utilization import Utilization, get_utilization
from calico_ipam.engine.world import CONFIG, POOLS, RESERVATIONS, Engine
from calico_ipam.errors import InvalidInput, IPAMError, NotSupported
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.pool import WORKLOAD
from calico_ipam.model.pool_rules import PoolRequest
from calico_ipam.model.resource import IP_POOL


@dataclass(slots=True)
class Story:
    """What a simulation did, step by step, and how full the pools were before and after."""

    steps: list[tuple[str, bool]] = field(default_factory=list)  #: a sentence, and whether it went well
    before: Utilization | None = None
    after: Utilization | None = None

    @property
    def ok(self) -> bool:
        return all(good for _, good in self.steps)


@contextmanager
def copied(engine: Engine, dump: Mapping[str, str] | None = None) -> Iterator[Engine]:
    """Yield an engine on a copy of a datastore, or of a dump; the copy is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="calico-ipam-") as folder:
        store = SQLiteStore(Path(folder) / "copy" / "ipam.db")
        try:
            if dump is not None:
                write_all(store, dump, merge=False)
            elif isinstance(engine.store, DocumentStore):
                write_all(store, read_all(engine.store), merge=False)
            else:
                _copy(engine.store, store)
            yield Engine(store, engine.clock, engine.retry)
        finally:
            store.close()


def _copy(source: Datastore, target: Datastore) -> None:
    """Copy what IPAM works with from a store that holds no texts."""
    for key in (CONFIG, CLUSTER):
        entry = source.read(key).entry(key)
        if entry is not None:
            target.commit(Create(key, entry.value))
    for scope in (POOLS, RESERVATIONS, NODES, ENDPOINTS, BLOCKS, ROWS, HANDLES):
        for entry in source.list(scope):
            target.commit(Create(entry.key, entry.value))


def lose_nodes(engine: Engine, story: Story, names: Sequence[str]) -> None:
    for name in names:
        try:
            plan = delete_node(engine, name)
        except IPAMError as error:
            story.steps.append((f"node {name} cannot be lost: {error}", False))
            continue
        story.steps.append(
            (f"node {name} is lost: {len(plan.addresses)} addresses come back, its blocks are given up", True)
        )


def add_pool(engine: Engine, story: Story, cidr: str, block_size: int, name: str = "simulated") -> None:
    try:
        pool = pools.create_pool(engine, PoolRequest(name, cidr, block_size))
    except IPAMError as error:
        story.steps.append((f"pool {cidr} cannot be made: {error}", False))
        return
    story.steps.append((f"pool {pool.cidr} is made, blocks of /{pool.block_size}", True))


def change_pool(engine: Engine, story: Story, name: str, *, disabled: bool) -> None:
    key = ResourceKey(IP_POOL, name)
    try:
        resource = engine.store.get(key).value
        document = {**resource.document, "spec": {**resource.spec, "disabled": disabled}}
        Resources(engine).replace({**document, "metadata": {**resource.metadata, "resourceVersion": ""}})
    except IPAMError as error:
        story.steps.append((f"pool {name} cannot be {'disabled' if disabled else 'enabled'}: {error}", False))
        return
    story.steps.append((f"pool {name} is {'disabled' if disabled else 'enabled'}", True))


def resize_pool(engine: Engine, story: Story, name: str, block_size: int) -> None:
    """Begin a change of block size, and say whether it would end at once or what it would wait for."""
    from calico_ipam.engine.resize import carry_on

    still = replace(engine, clock=_Still(engine.clock))
    try:
        state = carry_on(still, name, block_size)
    except IPAMError as error:
        story.steps.append((f"pool {name} cannot get blocks of /{block_size}: {error}", False))
        return
    gave = f"empty blocks of the old size given up: {len(state.given_up)}"
    if state.done:
        story.steps.append((f"pool {name} has blocks of /{block_size}; {gave}", True))
        return
    where = ", ".join(f"{number} on {node}" for node, number in sorted(state.left.items())[:5])
    first = f"blocks that must empty first: {len(state.blocks)}, with addresses: {where}"
    story.steps.append((f"pool {name} stays disabled; {first}; {gave}", False))


@dataclass(frozen=True, slots=True)
class _Still:
    """A clock whose waits cost nothing: nobody else uses the copy."""

    clock: Clock

    def now(self) -> int:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        """Return at once."""


def add_pods(engine: Engine, story: Story, number: int, nodes: Sequence[str], *, version: int = 4) -> None:
    """Start pods, in turn on the nodes, and say how many got an address."""
    if not nodes:
        raise InvalidInput("there is no node to start pods on", hint="Name one with --on NODE.")
    got = 0
    failures: dict[str, int] = {}
    for index in range(number):
        node = nodes[index % len(nodes)]
        request = Request(
            use=WORKLOAD,
            host=node,
            numbers={4: int(version == 4), 6: int(version == 6)},
            handle=f"simulated.{index}",
            attrs={"node": node, "pod": f"simulated-{index}", "namespace": "simulated"},
            pools={4: (), 6: ()},
            max_blocks=0,
            host_reserved={4: None, 6: None},
            cap=0,
            namespace=None,
        )
        try:
            result = auto_assign(engine, request)
        except (IPAMError, NotSupported) as error:
            failures[f"{node}: {error}"] = failures.get(f"{node}: {error}", 0) + 1
            continue
        made = result.ipv4 if version == 4 else result.ipv6
        if made is not None and made.addresses:
            got += 1
        else:
            why = (made.shortfall if made is not None else None) or "no address is free"
            failures[f"{node}: {why}"] = failures.get(f"{node}: {why}", 0) + 1
    story.steps.append((f"{got} of {number} pods get an address", got == number))
    for why, times in sorted(failures.items(), key=lambda item: -item[1])[:5]:
        story.steps.append((f"{times} on {why}", False))


def measure(engine: Engine) -> Utilization:
    return get_utilization(engine)
