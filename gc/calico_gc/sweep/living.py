"""Who lives on this node: pods, endpoints, sandboxes of the runtime, and what IPAM holds for them (gc §18.5).

Each source answers or does not. What a source that did not answer might have known counts as alive: the kinds of
leftovers that need it are then not judged at all.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from calico_gc.facts import PodKey
from calico_gc.kube import REQUEST_SECONDS, pages, segment
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.errors import InvalidInput, IPAMError
from calico_ipam.model.addresses import Address
from calico_ipam.model.block import Block
from calico_ipam.model.endpoint_names import veth_name_for_container, veth_name_for_workload
from calico_ipam.model.keys import Blocks, Resources
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, mapping
from calico_ipam.model.timestamps import SECOND, parse_time

log = logging.getLogger(__name__)
T = TypeVar("T")

#: longest time the runtime's command may take, seconds
RUNTIME_SECONDS = 20.0
#: a node that became ready more recently is left alone: its kubelet is still making itself at home (seconds)
SETTLED = 300.0
PODS, NODE, ENDPOINTS, SANDBOXES, RESULTS, BLOCKS = "pods", "node", "endpoints", "sandboxes", "results", "blocks"
#: where the kubelet notes the name of the folder of a static pod
STATIC_POD = "kubernetes.io/config.hash"


class NoAnswer(Exception):
    """A source could not be asked; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class PodHere:
    """A pod of this node. ``folders``: the names its folder below the kubelet's may have."""

    key: PodKey
    uid: str
    ips: tuple[str, ...] = ()
    host_network: bool = False
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod sandbox that the runtime knows."""

    id: str
    key: PodKey


@dataclass(frozen=True, slots=True)
class Result:
    """What libcni remembers of one ADD. ``netns``: paths of namespaces that it names."""

    file: str
    container: str
    netns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Living:
    """Answers by source; a source that is not configured on this node is empty and not ``unknown``."""

    node: str
    pods: Mapping[PodKey, PodHere] = field(default_factory=dict)
    interfaces: frozenset[str] = frozenset()  #: host links of this node's endpoints
    sandboxes: Mapping[str, Sandbox] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    blocks: tuple[Block, ...] = ()
    configured: frozenset[str] = frozenset()  #: sources there are
    unknown: Mapping[str, str] = field(default_factory=dict)  #: source -> why it did not answer
    prefixes: str = "cali"

    def wanted_links(self) -> frozenset[str]:
        """Return the names that host links of everything alive have, or would have."""
        keys = {*self.pods, *(s.key for s in self.sandboxes.values())}
        containers = {*self.sandboxes, *(result.container for result in self.results)}
        return frozenset(
            {
                *self.interfaces,
                *(veth_name_for_workload(*key, self.prefixes) for key in keys),
                *(veth_name_for_container(container) for container in containers),
            }
        )


# --- asking -------------------------------------------------------------------------------------------------


def ask_pods(api: KubeApi, node: str) -> dict[PodKey, PodHere]:
    """Return the pods of a node, read afresh."""
    found: dict[PodKey, PodHere] = {}
    for items, _ in pages(api, "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}):
        for item in items:
            pod = _pod(mapping(item))
            found[pod.key] = pod
    return found


def _pod(document: Mapping[str, Any]) -> PodHere:
    metadata, spec, status = (mapping(document.get(name)) for name in ("metadata", "spec", "status"))
    uid = str(metadata.get("uid") or "")
    listed = status.get("podIPs")
    ips = [str(mapping(item).get("ip") or "") for item in listed] if isinstance(listed, list) else []
    static = str(mapping(metadata.get("annotations")).get(STATIC_POD) or "")
    return PodHere(
        (str(metadata.get("namespace") or ""), str(metadata.get("name") or "")),
        uid,
        tuple(ip for ip in (str(status.get("podIP") or ""), *ips) if ip),
        bool(spec.get("hostNetwork")),
        frozenset({uid, static} - {""}),
    )


def ask_settled(api: KubeApi, node: str, now: int) -> str:
    """Return why the node is not settled, or nothing. ``now``: Unix nanoseconds."""
    path = f"/api/v1/nodes/{segment(node)}"
    document = api.call(Request("GET", path), Deadline.after(REQUEST_SECONDS))
    conditions = mapping(document.get("status")).get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if mapping(condition).get("type") != "Ready":
            continue
        if condition.get("status") != "True":
            return f"node {node} is not ready"
        try:
            since = (now - parse_time(str(condition.get("lastTransitionTime") or ""))) / SECOND
        except InvalidInput:
            return f"nobody knows how long node {node} has been ready"
        return f"node {node} has been ready for {since:.0f} s only" if since < SETTLED else ""
    return f"node {node} does not say whether it is ready"


def ask_slices(api: KubeApi, node: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield (namespace, slice, its UID, endpoint) of the EndpointSlice entries that name this node."""
    for items, _ in pages(api, "/apis/discovery.k8s.io/v1/endpointslices"):
        for item in items:
            metadata = mapping(mapping(item).get("metadata"))
            endpoints = mapping(item).get("endpoints")
            for endpoint in endpoints if isinstance(endpoints, list) else ():
                if mapping(endpoint).get("nodeName") == node:
                    namespace, name, uid = (str(metadata.get(key) or "") for key in ("namespace", "name", "uid"))
                    yield namespace, name, uid, endpoint


def ask_endpoints(store: Datastore, node: str) -> frozenset[str]:
    """Return the host links of the workload endpoints of a node; none where endpoints are pods."""
    if store.capabilities.endpoints_are_pods:
        return frozenset()
    entries = store.list(Resources(WORKLOAD_ENDPOINT))
    if entries.damaged:
        raise NoAnswer(f"{entries.damaged[0].path} cannot be read: {entries.damaged[0].reason}")
    return frozenset(str(e.value.spec.get("interfaceName") or "") for e in entries if e.value.spec.get("node") == node)


def ask_blocks(store: Datastore) -> tuple[Block, ...]:
    """Return all blocks; a damaged one might hold anything, so that then nothing is known."""
    listing = store.list(Blocks())
    if listing.damaged:
        raise NoAnswer(f"{listing.damaged[0].path} cannot be read: {listing.damaged[0].reason}")
    return tuple(entry.value for entry in listing)


def ask_runtime(command: str) -> dict[str, Sandbox]:
    """Return the sandboxes that a command in the manner of ``crictl pods -o json`` lists."""
    try:
        done = subprocess.run(  # noqa: S603  # the operator names the command
            shlex.split(command), capture_output=True, text=True, timeout=RUNTIME_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"the runtime's command {command!r} does not answer: {error}") from None
    if done.returncode:
        raise NoAnswer(f"the runtime's command {command!r} fails: {' '.join(done.stderr.split())[:200]}")
    try:
        items = json.loads(done.stdout)["items"]
        found = [
            Sandbox(str(i["id"]), (str(i["metadata"]["namespace"]), str(i["metadata"]["name"]))) for i in items or ()
        ]
    except (ValueError, KeyError, TypeError):
        raise NoAnswer(
            f"the runtime's command {command!r} prints no list of sandboxes as `crictl pods -o json` does"
        ) from None
    return {sandbox.id: sandbox for sandbox in found}


def ask_results(folder: Path) -> tuple[Result, ...]:
    """Return what libcni remembers; one file that cannot be understood makes the whole unknown."""
    found = []
    try:
        files = sorted(folder.iterdir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NoAnswer(f"{folder} cannot be read: {error.strerror}") from None
    for file in files:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            result = mapping(document.get("result"))
            interfaces = result.get("interfaces")
            named = {str(mapping(i).get("sandbox") or "") for i in (interfaces if isinstance(interfaces, list) else ())}
            netns = frozenset({*named, str(document.get("netns") or "")} - {""})
            found.append(Result(file.name, str(document["containerId"]), netns))
        except FileNotFoundError:
            continue  # its container was removed this moment
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise NoAnswer(f"{file} cannot be understood: {error}") from None
    return tuple(found)


@dataclass
class Asking:
    """Collects answers; what raises is noted as unknown."""

    configured: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)

    def ask(self, source: str, question: Callable[[], T]) -> T | None:
        self.configured.add(source)
        try:
            return question()
        except (IPAMError, NoAnswer) as error:
            self.unknown[source] = str(error)
            log.warning("%s of this node are not known: %s", source, error)
            return None


def held_addresses(blocks: Collection[Block]) -> frozenset[Address]:
    """Return every address that somebody holds."""
    return frozenset(
        block.address(ordinal) for block in blocks for ordinal, attribute in block.taken() if not attribute.cold
    )
