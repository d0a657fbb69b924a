"""The phases of a run: fill, disturb, take away, wait, judge (gc §20)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

from calico_gc.hammer.collectors import Collectors
from calico_gc.hammer.plan import Outcome, Plan
from calico_gc.hammer.world import PodOf, World, node_name, shares
from calico_ipam.errors import AlreadyExists, IPAMError

log = logging.getLogger(__name__)

#: seconds between two looks at all blocks
LOOK_EVERY = 0.25


class Hammer:
    """One run."""

    def __init__(self, world: World, collectors: Collectors) -> None:
        self._world = world
        self._collectors = collectors
        self.plan: Plan = world.plan
        self._chance = random.Random(world.plan.seed)
        self._lock = threading.Lock()
        self._pods: dict[str, PodOf] = {}
        self._names = count()
        self._done: Counter[str] = Counter()
        self._ended = threading.Event()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run all phases; the outcome has whatever was found, also when the run could not be finished."""
        outcome = self.outcome
        self._world.prepare()
        watcher = threading.Thread(target=self._watch, name="verifier", daemon=True)
        watcher.start()
        self._collectors.start()
        try:
            with self._timed("fill"):
                self._fill()
            with self._timed("churn"):
                self._churn()
            outcome.violations += self._settled_counts()
            self._collectors.calm()
            with self._timed("remove"):
                self._remove()
            with self._timed("clean"):
                outcome.unfinished = not self._clean()
        finally:
            self._ended.set()
            watcher.join()
            self._collectors.stop()
        outcome.violations += self._world.ledger.violations
        outcome.counts = {**self._done, "looks": self._world.ledger.looks, "restarts": self._collectors.restarts}
        outcome.left = self._world.left()
        outcome.calls = self._world.calls.numbers()
        return outcome

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        log.info("phase %s", phase)
        yield
        self.outcome.seconds[phase] = round(time.monotonic() - began, 2)

    def _watch(self) -> None:
        """Look at all blocks again and again: everything that lives must have what it has."""
        ledger = self._world.ledger
        while not self._ended.wait(LOOK_EVERY):
            before = ledger.living()
            try:
                blocks = self._world.blocks()
            except IPAMError as error:
                log.info("the verifier could not look: %s", error)
                continue
            for text in ledger.compare(before, blocks):
                log.error("VIOLATION: %s", text)

    def _abreast(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Do something for each item, many at once; what the store refuses for a moment is tried again."""
        with ThreadPoolExecutor(self.plan.parallel) as pool:
            list(pool.map(lambda item: self._patiently(work, item), items))

    def _patiently(self, work: Callable[[Any], None], item: Any) -> None:
        for attempt in range(5):
            try:
                work(item)
                return
            except AlreadyExists:
                return
            except IPAMError as error:
                self._count("retries")
                log.info("try %d: %s", attempt + 1, error)
                time.sleep(0.2 * 2**attempt)
        self._count("given-up")

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._done[name] += number

    # --- fill ------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        plan, world = self.plan, self._world
        nodes = [node_name(number) for number in range(plan.nodes)]
        self._abreast(world.add_node, nodes)
        self._count("nodes", len(nodes))
        fates = shares(plan, self._chance)
        self._abreast(self._born, [(node, next(fates)) for node in nodes for _ in range(plan.pods_per_node)])
        self._abreast(lambda _: world.crash_after_handle(), range(plan.orphans))
        self._count("orphans", plan.orphans)
        with self._lock:
            living = list(self._pods.values())
        chosen = self._chance.sample(living, min(len(living), plan.skew + plan.missing))
        self._abreast(world.skew, chosen[: plan.skew])
        self._abreast(world.lose_handle, chosen[plan.skew :])

    def _born(self, task: tuple[str, str]) -> None:
        node, fate = task
        with self._lock:
            name = f"pod-{next(self._names)}"
        if fate == "leak":
            self._world.leak(node, name)
        elif fate == "crash":
            self._world.crash_after_handle()
        else:
            pod = self._world.add_pod(node, name)
            with self._lock:
                self._pods[name] = pod
        self._count({"leak": "leaked", "crash": "crashed", "live": "added"}[fate])

    # --- churn -----------------------------------------------------------------------------------------------

    def _churn(self) -> None:
        """ADD and DEL on all nodes, some of which leak or crash, while the collector works and is killed."""
        until = time.monotonic() + self.plan.churn
        seeds = [self._chance.getrandbits(32) for _ in range(self.plan.parallel)]
        self._abreast(lambda seed: self._churn_one(random.Random(seed), until), seeds)

    def _churn_one(self, chance: random.Random, until: float) -> None:
        fates = shares(self.plan, chance)
        while time.monotonic() < until:
            fate = next(fates)
            node = node_name(chance.randrange(self.plan.nodes))
            self._patiently(self._born, (node, fate))
            gone = self._picked(chance)
            if gone is not None:
                self._patiently(lambda pod: self._dies(pod, next(fates)), gone)

    def _picked(self, chance: random.Random) -> PodOf | None:
        with self._lock:
            if len(self._pods) <= self.plan.nodes:
                return None
            name = chance.choice(list(self._pods))
            return self._pods.pop(name)

    def _dies(self, pod: PodOf, fate: str) -> None:
        if fate == "crash":
            self._world.crash_in_release(pod)
        else:
            self._world.remove_pod(pod, with_del=fate == "live")
        self._count({"leak": "leaked", "crash": "crashed", "live": "removed"}[fate])

    def _settled_counts(self) -> list[str]:
        """Handles of what lives must count what blocks hold; broken on purpose, they may still be in repair."""
        if self.plan.skew or self.plan.missing:
            return []
        return self._world.miscounted()

    # --- take away, wait ---------------------------------------------------------------------------------------

    def _remove(self) -> None:
        with self._lock:
            pods = dict(self._pods)
            self._pods.clear()
        nodes = [node_name(number) for number in range(self.plan.nodes)]
        self._abreast(lambda node: self._world.remove_node(node, pods), nodes)
        self._world.remove_stray_pods()

    def _clean(self) -> bool:
        """Wait until nothing of the hammer is left in IPAM."""
        until = time.monotonic() + self.plan.timeout
        while True:
            left = self._world.left()
            wanted = left if self.plan.handles else {k: n for k, n in left.items() if k != "handles"}
            if not any(wanted.values()):
                return True
            if time.monotonic() > until:
                log.error("still there after %.0f s: %s", self.plan.timeout, left)
                return False
            time.sleep(0.5)
