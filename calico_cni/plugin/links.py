"""Whose is a link of the host? The rules that keep ADD and DEL from harming what lives (rulings 1 and 2)."""

from __future__ import annotations

from collections.abc import Collection

from calico_cni import gojson
from calico_cni.context import Call
from calico_cni.dataplane.api import ContainerLink, Dataplane, DataplaneError, HostLink, Peer
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin.endpoint import Records, container_of
from calico_cni.plugin.wiring import INTERFACE_PREFIX
from calico_cni.protocol import Request
from calico_ipam.datastore.api import Entry
from calico_ipam.model.endpoint_names import DEFAULT_INTERFACE_PREFIX

DEVICE_TYPES = ("", "veth", "netkit")


def dataplane_of(call: Call) -> Dataplane:
    """Return the dataplane that the configuration asks for. Raises CNIError for one that there is not."""
    kind = call.conf.dataplane_options.get("type")
    if kind is None:
        return call.context.dataplane()
    if kind != "grpc":
        raise CNIError(
            f"invalid dataplane type: {gojson.shown(kind)}",
            "Remove dataplane_options.type; the Linux dataplane is used then.",
        )
    if not call.conf.dataplane_options.get("socket"):
        raise CNIError("GRPC dataplane socket not configured", "Set dataplane_options.socket.")
    raise CNIError(
        "the grpc dataplane is not part of this release",
        "Remove dataplane_options.type; the Linux dataplane is used then.",
    )


def device_type(call: Call) -> str:
    """Return the kind of link to make. Raises CNIError for one that is unknown."""
    kind = call.conf.device_type
    if kind not in DEVICE_TYPES:
        raise CNIError(f'unknown device_type "{kind}" in CNI config (supported: "veth", "netkit")')
    return kind or "veth"


def may_replace(link: HostLink | None, records: Records, identity: Identity) -> bool:
    """Tell whether ADD may delete the host's link that has the name it wants; False: there is none.

    Raises CNIError, naming both sides, for a link that may be somebody else's.
    """
    if records.siblings:
        raise second_interface(identity, str(records.siblings[0].value.spec.get("endpoint") or ""))
    if link is None:
        return False
    if records.sharing:
        raise _shared(link, records.sharing[0], identity)
    if link.peer is Peer.OURS:
        if link.peer_name not in (None, identity.ifname):
            raise second_interface(identity, str(link.peer_name))
        return True
    if records.own is not None or not link.alive:
        return True
    raise CNIError(
        f"host interface {link.name} exists and may be in use; container {identity.container_id} cannot have it",
        "Delete the sandbox that it belongs to, or the link itself if it is a leftover.",
    )


def _shared(link: HostLink, other: Entry, identity: Identity) -> CNIError:
    return CNIError(
        f"host interface {link.name} belongs to container {container_of(other)}; container {identity.container_id} "
        "cannot have it too",
        "The first 11 characters of their IDs are the same, and the name is made of them; use another container ID.",
    )


def second_interface(identity: Identity, other: str) -> CNIError:
    """Return the refusal of a second interface, which outside Kubernetes would take the first one's host link."""
    return CNIError(
        f"container {identity.container_id} is connected by interface {other} already; a second interface "
        f"{identity.ifname} is not possible outside Kubernetes",
        "Both would have one host interface; use another plugin for the second network.",
    )


def remove_inside(call: Call, dataplane: Dataplane, host_names: Collection[str]) -> None:
    """Remove the link inside the sandbox, unless it is not of this attachment. Raises DataplaneError.

    ``host_names``: what its other end may be called. A runtime that mixes up its sandboxes, or uses the path of one for
    the next, would otherwise cut off whoever lives there.
    """
    request = call.request
    link = dataplane.container_link(request.netns, request.ifname) if request.netns else None
    if link is not None and not link.is_pair:
        call.log.warning("The link in the sandbox is left alone: this plugin makes no such device", kind=link.kind)
    elif link is not None and _is_of_another(call, link, host_names):
        call.log.warning(
            "The link in the sandbox is left alone: it is of another attachment",
            link=link.host_name,
            expected=" ".join(sorted(host_names)),
        )
    else:
        dataplane.remove(request.netns, request.ifname, None)


def _is_of_another(call: Call, link: ContainerLink, host_names: Collection[str]) -> bool:
    """Tell whether a link is one of ours, and yet not of this attachment; what others have made, DEL may remove."""
    name = link.host_name
    first = call.request.environ.get(INTERFACE_PREFIX, "").partition(",")[0]
    prefixes = (first or DEFAULT_INTERFACE_PREFIX, DEFAULT_INTERFACE_PREFIX)
    return name is not None and name not in host_names and name.startswith(prefixes)


def remove_link(call: Call, dataplane: Dataplane, host_name: str, records: Records) -> None:
    """Remove the sandbox's link, and the host's end if it is left and known to be ours (rulings 1).

    Raises DataplaneError when a link of ours still stands. Raises StaleNamespaceError when the sandbox could not be
    worked in but no link of ours is left.
    """
    request = call.request
    problem: DataplaneError | None = None
    own = (
        records.own.value.spec if records.own is not None and container_of(records.own) == request.container_id else {}
    )
    try:
        remove_inside(call, dataplane, {host_name, str(own.get("interfaceName") or host_name)})
    except DataplaneError as error:
        problem = error
    link = dataplane.host_link(host_name, request.netns)
    if link is not None:
        if _is_ours(link, records, request):
            dataplane.remove("", request.ifname, host_name)
        else:
            call.log.warning(
                "The host's link of this name is left alone: it is not known to be of this attachment",
                link=host_name,
                peer=link.peer.value,
                records=" ".join(entry.value.name for entry in _all(records)),
            )
    if problem is not None:
        raise StaleNamespaceError(problem)


def _is_ours(link: HostLink, records: Records, request: Request) -> bool:
    if records.own is not None:
        return container_of(records.own) == request.container_id
    if _all(records):
        return False  # another record has this link
    if link.peer is Peer.OURS:
        return link.peer_name in (None, request.ifname)
    return link.peer is Peer.EMPTY


def _all(records: Records) -> tuple[Entry, ...]:
    own = (records.own,) if records.own is not None else ()
    return own + records.siblings + records.sharing


class StaleNamespaceError(Exception):
    """The sandbox's namespace could not be worked in, but no link of ours is left, so everything else may go."""

    def __init__(self, cause: DataplaneError) -> None:
        super().__init__(str(cause))
        self.cause = cause
