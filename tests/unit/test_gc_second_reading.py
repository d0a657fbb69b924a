"""A second reading of gc §6 to §8: the rules as the text has them, word for word, against what the collector releases.

Random clusters at rest: holders of every kind, pods in every state, nodes that are there, gone, foreign or called
otherwise by Calico. Limits U16 and U17 are read with it, as they narrow what is released.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from calico_gc.decide import Rules
from calico_gc.facts import NETWORKS, VirtualMachines
from calico_gc.options import Options

from calico_ipam.model.handle_names import TUNNEL_HANDLES
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import NODE, Resource
from tests.gc_things import add_block, calico_node, put, running_pod, stored_block
from tests.gc_world import World

NODES = ("n0", "n1", "n2", "n3")
TUNNELS = tuple(TUNNEL_HANDLES)
FINISHED = ("Failed", "Succeeded", "Completed")
CLEARED = ("cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips")
KINDS = (*["pod"] * 8, "vm", "tunnel", "tunnel-of-pod", "foreign", "service", "half", "without-node")
#: seconds in which everything with a grace period of one second comes to rest, and no machine's five minutes end
REST = 12.0


@dataclass(frozen=True, eq=False)
class Held:
    block: str
    ordinal: int
    ip: str
    handle: str
    attrs: Mapping[str, str]

    @property
    def node(self) -> str:
        return self.attrs.get("node", "")

    @property
    def of_pod(self) -> bool:
        return bool(self.attrs.get("pod") and self.attrs.get("namespace"))

    @property
    def of_tunnel(self) -> bool:
        return self.attrs.get("type", "") in TUNNELS


@dataclass
class Cluster:
    """A cluster made by chance, and the text's answer to what is released in it."""

    chance: random.Random
    etcd: bool
    grace: float | None
    held: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(kubernetes=not self.etcd, options=Options(rules=Rules(leak_grace=self.grace)))
        self.knodes = {n: n if not self.etcd or self.chance.random() < 0.6 else f"k-{n}" for n in NODES}
        self.foreign: set[str] = set()
        self.linked: set[str] = set()  # Calico names a Kubernetes node for them
        for node in NODES:
            self._node(node)
        for number in range(6):
            self._block(number)
        self.machines = VirtualMachines(frozenset({("d", "v0")}), {("d", "v1"): True, ("d", "v2"): False})
        self.kubevirt = self.chance.random() < 0.5
        self.world.kube.machines = self.machines if self.kubevirt else None

    def _node(self, node: str) -> None:
        there = self.chance.random() < 0.65
        if there:
            self.world.node(self.knodes[node])
        if not self.etcd:
            self.linked |= {node} if there else set()
        elif self.chance.random() < (0.75 if there else 0.3):
            self.linked.add(node)
            calico_node(self.world, node, self.knodes[node])
        elif self.chance.random() < 0.3:
            self.foreign.add(node)
            other = [{"orchestrator": "openstack", "nodeName": node}, {"orchestrator": "k8s"}][
                : self.chance.randint(0, 2)
            ]
            put(self.world, ResourceKey(NODE, node), Resource.new(NODE, node, {"orchRefs": other}))

    def _block(self, number: int) -> None:
        cidr, host = f"10.0.0.{number * 8}/29", self.chance.choice((*NODES, None))
        mine: dict[int, tuple[str, Mapping[str, str]]] = {}
        for ordinal in self.chance.sample(range(8), self.chance.randint(0, 4)):
            ip = f"10.0.0.{number * 8 + ordinal}"
            node = host if host is not None and self.chance.random() < 0.6 else self.chance.choice(NODES)
            handle, attrs = self._holder(ip, node)
            mine[ordinal] = handle, attrs
            self.held.append(Held(cidr, ordinal, ip, handle, attrs))
        add_block(self.world, cidr, host, mine)

    def _holder(self, ip: str, node: str) -> tuple[str, dict[str, str]]:
        number = len(self.held)
        handle = f"net.{self.chance.randrange(8)}" if self.chance.random() < 0.3 else f"net.u{number}"
        handle += "\r\neth0" if self.chance.random() < 0.05 else ""
        match self.chance.choice(KINDS):
            case "vm":
                machine = self.chance.choice(("v0", "v1", "v2", "v3", ""))
                return f"net.vmi.d.{machine}", {"node": node, "pod": "p", "namespace": "d", "vmi-name": machine}
            case "tunnel":
                return f"tunnel-{number}", {"node": node, "type": self.chance.choice(TUNNELS)}
            case "foreign":
                return handle, {"node": node, "made-by": "hand"}
            case "service":
                return "lb-1", {"service": "s", "namespace": "d", "type": "LoadBalancer"}
            case kind:
                pod = f"p{self.chance.randrange(10)}" if self.chance.random() < 0.3 else f"q{number}"
                if self.chance.random() < 0.6 and ("d", pod) not in self.world.kube.pods:
                    self._pod(pod, ip, node)
                attrs = {"node": node, "pod": pod, "namespace": "d"}
                attrs |= {"type": TUNNELS[0]} if kind == "tunnel-of-pod" else {}
                attrs |= {self.chance.choice(("pod", "namespace")): ""} if kind == "half" else {}
                return handle, {k: v for k, v in attrs.items() if k != "node" or kind != "without-node"}

    def _pod(self, name: str, ip: str, node: str) -> None:
        elsewhere = self.knodes[self.chance.choice(NODES)]
        where = self.chance.choice((*[self.knodes[node]] * 6, "", elsewhere))
        ips = self.chance.choice((*[(ip,)] * 5, ("10.9.9.9",), (ip, "fd00::1"), ("fd00::1", "10.9.9.9"), ("odd",), ()))
        more: dict[str, Any] = {"phase": self.chance.choice((*["Running"] * 5, "Pending", "Unknown", *FINISHED))}
        more |= {"reason": "Evicted"} if self.chance.random() < 0.1 else {}
        more |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.chance.random() < 0.2 else {}
        more["annotations"] = {self.chance.choice((*CLEARED, NETWORKS)): self.chance.choice(("", ip))}
        running_pod(self.world, name, where, *ips, namespace="d", **more)

    # --- the text ------------------------------------------------------------------------------------------------

    def knode(self, node: str) -> str:
        return self.knodes[node] if node in self.linked else ""

    def valid(self, held: Held, *, live: bool) -> bool:
        """Gc §7, in its order."""
        if held.of_tunnel:
            return bool(self.knode(held.node))
        if "vmi-name" in held.attrs:
            key = ("d", held.attrs["vmi-name"])
            return not self.kubevirt or not key[1] or key in self.machines.machines or key == ("d", "v2")
        if not held.of_pod:
            return True
        pod = self.world.kube.pods.get(("d", held.attrs["pod"]))
        if pod is None:
            return False
        status, where = pod["status"], pod["spec"]["nodeName"]
        annotations = pod["metadata"]["annotations"]
        ips = [each["ip"] for each in status.get("podIPs", ())]
        cleared = "deletionTimestamp" in pod["metadata"] and any(annotations.get(name) == "" for name in CLEARED)
        finished = status["phase"] in FINISHED or (live and cleared)
        uses_it = bool({held.ip, "odd"} & {*ips} or (ips and annotations.get(NETWORKS))) and not finished  # U17
        if where and self.knode(held.node) and where != self.knode(held.node):
            return uses_it  # U16
        if not ips:
            return True
        if live and status["phase"] == "Failed" and status.get("reason") == "Evicted":
            return False
        return not where or "odd" in ips or uses_it

    def confirmed(self, node: str) -> set[Held]:
        """Gc §6: what a look at a node condemns."""
        if node in self.foreign:
            return set()
        exists = self.knode(node) in self.world.kube.nodes
        found, tunnels, deletable = set(), set(), True
        for held in (each for each in self.held if each.node == node):
            if not held.of_pod and not held.of_tunnel:
                deletable = False
            elif held.of_tunnel:
                tunnels.add(held)
            elif self.valid(held, live=False):
                deletable = False
            elif not exists or (self.grace and "vmi-name" not in held.attrs):
                found.add(held)
        return found | (tunnels if deletable and not exists else set())

    def released(self) -> set[str]:
        """Gc §8: what of it is released, all of a handle or nothing."""
        condemned = set().union(*(self.confirmed(node) for node in NODES))
        final = {h for h in condemned if not self.valid(h, live=bool(self.knode(h.node)))}
        spared = {each.handle.partition("\r")[0] for each in self.held if each not in final}
        return {each.ip for each in final if each.handle.partition("\r")[0] not in spared}

    def gone(self) -> set[str]:
        """Return what the collector has released."""
        self.world.start()
        self.world.run(REST)
        left = set()
        for held in self.held:
            block = stored_block(self.world, held.block)
            left |= {held.ip} if block is not None and block.attribute(held.ordinal) is not None else set()
        return {held.ip for held in self.held} - left


@pytest.mark.parametrize("etcd", [False, True])
@pytest.mark.parametrize("grace", [1.0, 0.0, None])
def test_what_is_released_is_what_the_text_releases(etcd: bool, grace: float | None) -> None:
    for seed in range(20 if grace else 6):
        cluster = Cluster(random.Random(seed), etcd, grace)
        expected = cluster.released()
        differs = cluster.gone() ^ expected
        assert not differs, (seed, sorted(differs), [held for held in cluster.held if held.ip in differs])
