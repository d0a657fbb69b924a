"""Nodes, pods and addresses of the hammer on a real cluster, made and unmade as runtimes and crashes do it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from calico_gc.hammer.calls import Calls, CountedStore
from calico_gc.hammer.ledger import Holder, Ledger
from calico_gc.hammer.plan import NETWORK, PREFIX, TUNNEL_HANDLES, TUNNELS, Plan
from calico_gc.kube import everything
from calico_ipam.datastore.api import Create, Datastore, Delete, Entry, Update
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.results import AutoAssigned
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from calico_ipam.model.addresses import Address, contains, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Affinities, AffinityKey, Blocks, HandleKey, Handles, ResourceKey
from calico_ipam.model.owner import NAMESPACE, NODE, POD, TYPE
from calico_ipam.model.resource import IP_POOL, Resource
from calico_ipam.model.resource import NODE as NODE_KIND


def node_name(number: int) -> str:
    return f"{PREFIX}-node-{number}"


@dataclass(frozen=True, slots=True)
class PodOf:
    """A pod with its addresses."""

    name: str
    node: str
    handle: str
    addresses: tuple[Address, ...]


class World:
    """Makes and unmakes. Every method may be called from any thread."""

    def __init__(self, store: Datastore, api: KubeApi, plan: Plan, ledger: Ledger) -> None:
        self.calls = Calls()
        self.store = CountedStore(store, self.calls)
        self.api = api
        self.plan = plan
        self.ledger = ledger
        self._pool = parse_network(plan.cidr)
        self._calico_nodes = not isinstance(store, KubernetesStore)

    # --- nodes and what they need ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make namespace, account and pool."""
        self._create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": self.plan.namespace}})
        account = {"kind": "ServiceAccount", "metadata": {"name": "default"}}
        self._create(f"/api/v1/namespaces/{self.plan.namespace}/serviceaccounts", account)
        spec = {"cidr": self.plan.cidr, "blockSize": self.plan.block_size, "nodeSelector": f"has({PREFIX})"}
        try:
            self.store.commit(Create(ResourceKey(IP_POOL, NETWORK), Resource.new(IP_POOL, NETWORK, spec)))
        except AlreadyExists:
            known = self.store.get(ResourceKey(IP_POOL, NETWORK)).value
            if known.spec.get("cidr") != self.plan.cidr:
                raise InvalidInput(
                    f"pool {NETWORK} has another CIDR, {known.spec.get('cidr')}",
                    subject=NETWORK,
                    hint="Remove what an earlier run left: calico-gc hammer --cleanup.",
                ) from None

    def add_node(self, name: str) -> None:
        document = {"kind": "Node", "metadata": {"name": name, "labels": {PREFIX: "true"}}}
        self._create("/api/v1/nodes", document)
        if self._calico_nodes:
            spec = {"orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]}
            self.store.commit(Create(ResourceKey(NODE_KIND, name), Resource.new(NODE_KIND, name, spec)))
        for kind in self.plan.tunnels:
            self._add_tunnel(name, kind)

    def _add_tunnel(self, node: str, kind: str) -> None:
        handle = f"{TUNNEL_HANDLES[kind]}{node}"
        attrs = {NODE: node, TYPE: TUNNELS[kind]}
        got = self._ipam(node).auto_assign(use="Tunnel", num4=1, handle=handle, attrs=attrs, ipv4_pools=(self._pool,))
        self.ledger.enter(Holder(f"tunnel {kind} of {node}", handle, _addresses(got)))

    def remove_stray_pods(self) -> None:
        """Remove pods that no ADD finished with; they would keep their nodes for ever."""
        for pod in list(everything(self.api, f"/api/v1/namespaces/{self.plan.namespace}/pods")):
            self._delete(self._pod_path(pod["metadata"]["name"]))

    def remove_node(self, name: str, pods: Mapping[str, PodOf]) -> None:
        """Take a node away as a cluster does: its pods first, without any DEL."""
        for pod in pods.values():
            if pod.node == name:
                self.ledger.leave(pod.handle)
                self._delete(self._pod_path(pod.name))
        for kind in self.plan.tunnels:
            self.ledger.leave(f"{TUNNEL_HANDLES[kind]}{name}")
        self._delete(f"/api/v1/nodes/{name}")

    def _ipam(self, node: str) -> IPAM:
        return IPAM(self.store, hostname=node)

    # --- pods ----------------------------------------------------------------------------------------------

    def add_pod(self, node: str, name: str) -> PodOf:
        """ADD: the pod is there first, gets its address, and reports it a moment later, as the kubelet does."""
        self._make_pod(node, name)
        pod = self._assign(node, name)
        self.ledger.enter(Holder(f"pod {name}", pod.handle, pod.addresses))
        self._report(pod)
        return pod

    def leak(self, node: str, name: str) -> None:
        """An ADD whose pod was gone before anybody could say DEL."""
        self._assign(node, name)

    def _make_pod(self, node: str, name: str) -> None:
        body = {
            "kind": "Pod",
            "metadata": {"name": name, "labels": {PREFIX: "true"}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "none"}],
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
            },
        }
        self._create(f"/api/v1/namespaces/{self.plan.namespace}/pods", body)

    def _assign(self, node: str, name: str) -> PodOf:
        handle = f"{NETWORK}.{secrets.token_hex(32)}"
        attrs = {NODE: node, POD: name, NAMESPACE: self.plan.namespace}
        got = self._ipam(node).auto_assign(use="Workload", num4=1, handle=handle, attrs=attrs, ipv4_pools=(self._pool,))
        return PodOf(name, node, handle, _addresses(got))

    def _report(self, pod: PodOf) -> None:
        ips = [{"ip": str(address)} for address in pod.addresses]
        status = {"phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips} if ips else {"phase": "Running"}
        path = f"{self._pod_path(pod.name)}/status"
        merge = "application/merge-patch+json"
        self.api.call(Request("PATCH", path, body={"status": status}, content_type=merge), None)

    def remove_pod(self, pod: PodOf, *, with_del: bool) -> None:
        """Take a pod away; ``with_del`` False: DEL never came, and its address leaks."""
        self.ledger.leave(pod.handle)
        if with_del:
            # A handle that was lost on purpose, or that the collector has just removed, is no error of a DEL.
            with suppress(NotFound):
                self._ipam(pod.node).release_by_handle(pod.handle)
        self._delete(self._pod_path(pod.name))

    # --- crashes and broken handles --------------------------------------------------------------------------

    def crash_after_handle(self) -> None:
        """An ADD that ended after its first write: a handle without an address."""
        handle = f"{NETWORK}.{secrets.token_hex(32)}"
        block = next(iter(self._pool.subnets(new_prefix=self.plan.block_size)))
        self.store.commit(Create(HandleKey(handle), Handle(handle, {str(block): 1})))

    def crash_in_release(self, pod: PodOf) -> None:
        """A DEL that ended after its first write: the block is written, the handle still counts."""
        self.ledger.leave(pod.handle)
        for entry in self.store.list(Blocks()):
            block: Block = entry.value
            options = [
                ReleaseOption(block.address(o), pod.handle, block.sequence_of(o)) for o in block.held_by(pod.handle)
            ]
            if options:
                try:
                    self.store.commit(Update(entry, block.release(options, cooldown=0, now=0)[0].bumped()))
                except Conflict:
                    break  # somebody else wrote the block: then it is a DEL that ended before its first write
        self._delete(self._pod_path(pod.name))

    def skew(self, pod: PodOf) -> None:
        """Make a handle count more than its blocks hold."""
        entry = self.store.get(HandleKey(pod.handle))
        counts = {cidr: number + 1 for cidr, number in entry.value.blocks.items()}
        self.store.commit(Update(entry, Handle(pod.handle, counts)))

    def lose_handle(self, pod: PodOf) -> None:
        """Remove the handle of a pod that lives."""
        self.store.commit(Delete(self.store.get(HandleKey(pod.handle))))

    # --- looking ---------------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """Return the hammer's blocks. Raises the store's errors."""
        return [e.value for e in self.store.list(Blocks()) if contains(self._pool, e.value.cidr)]

    def left(self) -> dict[str, int]:
        """Return how much of the hammer is still in IPAM."""
        return {
            "blocks": len(self.blocks()),
            "affinities": len(self._hosts()),
            "handles": sum(1 for _ in self._handles()),
        }

    def _hosts(self) -> list[str]:
        """Return the host of each affinity of the hammer's nodes."""
        keys = [entry.key for entry in self.store.list(Affinities())]
        return [k.owner.host for k in keys if isinstance(k, AffinityKey) and k.owner.host.startswith(f"{PREFIX}-node-")]

    def _handles(self) -> Iterator[Entry]:
        for entry in self.store.list(Handles()):
            if entry.value.id.startswith(f"{NETWORK}.") or PREFIX in entry.value.id:
                yield entry

    def miscounted(self) -> list[str]:
        """Return the handles of living holders whose counts are not what blocks hold."""
        want: dict[str, dict[str, int]] = {}
        for block in self.blocks():
            for _, attribute in block.taken():
                if attribute.clean_handle and not attribute.cold:
                    counts = want.setdefault(attribute.clean_handle, {})
                    counts[str(block.cidr)] = counts.get(str(block.cidr), 0) + 1
        have = {entry.value.id: dict(entry.value.blocks) for entry in self._handles()}
        return [
            f"handle {handle} counts {have.get(handle)}, blocks hold {want.get(handle)}"
            for handle in self.ledger.living()
            if have.get(handle) != want.get(handle)
        ]

    # --- removing --------------------------------------------------------------------------------------------

    def cleanup(self) -> dict[str, int]:
        """Remove everything that any run of the hammer has made; returns how much of each."""
        removed = {"pods": 0, "nodes": 0, "blocks": 0, "handles": 0}
        for pod in everything(self.api, f"/api/v1/namespaces/{self.plan.namespace}/pods"):
            self._delete(self._pod_path(pod["metadata"]["name"]))
            removed["pods"] += 1
        names = [str(node["metadata"]["name"]) for node in everything(self.api, "/api/v1/nodes")]
        for name in names:
            if name.startswith(f"{PREFIX}-node-"):
                self._delete(f"/api/v1/nodes/{name}")
                removed["nodes"] += 1
        removed["blocks"] = self._clean_blocks()
        for entry in list(self._handles()):
            self._forget(entry)
            removed["handles"] += 1
        for key in [ResourceKey(IP_POOL, NETWORK), *(ResourceKey(NODE_KIND, name) for name in self._own_nodes(names))]:
            try:
                self._forget(self.store.get(key))
            except NotFound:
                continue
        self._delete(f"/api/v1/namespaces/{self.plan.namespace}")
        return removed

    def _own_nodes(self, names: list[str]) -> list[str]:
        return [n for n in names if n.startswith(f"{PREFIX}-node-")] if self._calico_nodes else []

    def _clean_blocks(self) -> int:
        hosts = set(self._hosts())
        number = 0
        for entry in self.store.list(Blocks()):
            block: Block = entry.value
            if not contains(self._pool, block.cidr):
                continue
            self._forget(entry)
            number += 1
        for host in sorted(hosts):
            self._ipam(host).release_host_affinities(BlockOwner(HOST, host), must_be_empty=False)
        return number

    def _forget(self, entry: Entry) -> None:
        try:
            self.store.commit(Delete(entry))
        except (NotFound, Conflict):
            return  # somebody else was quicker; what is left shows at the next clean-up

    # --- the API ---------------------------------------------------------------------------------------------

    def _pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.plan.namespace}/pods/{name}"

    def _create(self, path: str, body: Mapping[str, Any]) -> None:
        self.calls.count("create", path.rpartition("/")[2])
        try:
            self.api.call(Request("POST", path, body={"apiVersion": "v1", **body}), None)
        except (AlreadyExists, Conflict):
            return

    def _delete(self, path: str) -> None:
        self.calls.count("delete", path.split("/")[-2])
        try:
            self.api.call(Request("DELETE", path, body={"gracePeriodSeconds": 0}), None)
        except NotFound:
            return


def _addresses(got: AutoAssigned) -> tuple[Address, ...]:
    return tuple(assigned.address for assigned in got.addresses)


def shares(plan: Plan, chance: random.Random) -> Iterator[str]:
    """Yield for each pod whether it lives, leaks or crashes."""
    while True:
        drawn = chance.random()
        if drawn < plan.leak_ratio:
            yield "leak"
        elif drawn < plan.leak_ratio + plan.crash_ratio:
            yield "crash"
        else:
            yield "live"
