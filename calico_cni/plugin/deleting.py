"""What DEL does alike for pods and for other workloads (cni.md §9, §15.19, rulings 1 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import Dataplane, DataplaneError
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError, joined
from calico_cni.identity import identify
from calico_cni.plugin.endpoint import Records
from calico_cni.plugin.links import StaleNamespaceError, dataplane_of, remove_inside, remove_link
from calico_cni.plugin.wiring import host_interface
from calico_cni.protocol import HOST_LOCAL
from calico_ipam.datastore.api import Datastore

A = TypeVar("A")


def delete_attachment(
    call: Call, look_up: Callable[[Call, ExitStack], A], take_down: Callable[[A], list[Exception]]
) -> Answer:
    """Find out what there is to take down, and do it; tell all that went wrong on the way.

    Where the first fails, nobody knows whose record and address they would be: these wait for the next DEL. The link in
    the sandbox goes all the same.
    """
    with ExitStack() as stack:
        try:
            attachment = look_up(call, stack)
        except Exception:
            _remove_inside_alone(call)
            raise
        errors = take_down(attachment)
    if errors:
        raise joined(errors)
    call.log.info("Removed the sandbox from the network")
    return Answer()


def _remove_inside_alone(call: Call) -> None:
    try:
        remove_inside(call, dataplane_of(call), {host_interface(call, identify(call))})
    except (CNIError, DataplaneError) as error:
        call.log.warning("Could not remove the link inside the sandbox", netns=call.request.netns, error=error)


def take_link_down(call: Call, dataplane: Dataplane, host_name: str, records: Records) -> list[Exception]:
    """Remove the link; return what was wrong with the sandbox. Raises CNIError when a link of ours still stands."""
    try:
        remove_link(call, dataplane, host_name, records)
    except StaleNamespaceError as stale:
        return [stale.cause]
    except DataplaneError as error:
        # An address whose link still stands must not be given to anybody else (rulings 5).
        hint = "The link still stands, so its address stays assigned; repeat DEL when the link can be removed."
        raise CNIError(str(error), f"{error.hint} {hint}".strip()) from error
    return []


def release_addresses(call: Call, store: Datastore) -> list[Exception]:
    """Let the IPAM plugin release what the container holds; return what went wrong (§9 step 4)."""
    try:
        if call.conf.ipam.type == HOST_LOCAL:
            from calico_cni.plugin import podcidr
            from calico_cni.plugin.rewriting import with_stdin

            call = with_stdin(call, podcidr.for_delete(call.conf.document))
        IPAMDelegate(call, store).delete()
    except CNIError as error:
        return [error]
    return []
