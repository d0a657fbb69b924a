"""May the plugin work now? Cluster information and readiness gates (cni.md §4, §6.1 step 8)."""

from __future__ import annotations

from urllib.parse import urlsplit

from calico_cni import timers
from calico_cni.context import Call
from calico_cni.errors import TRY_AGAIN_LATER, CNIError, cni_error
from calico_cni.protocol import go_quote
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.errors import IPAMError
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION

#: How the error of a datastore that cannot be opened begins.
CLIENT_FAILED = "error creating calico client: "


def check_ready(store: Datastore, patience: float) -> None:
    """Raise CNIError unless the datastore answers within ``patience`` seconds and is not being upgraded.

    Only ``datastoreReady: false`` says so; null and absent mean ready (rulings 12).
    """
    try:
        found = store.within(Deadline.after(patience)).get(ResourceKey(CLUSTER_INFORMATION, "default"))
    except IPAMError as error:
        raise cni_error(error, "error getting ClusterInformation: ") from error
    if found.value.spec.get("datastoreReady") is False:
        raise CNIError(
            "Calico is currently not ready to process requests",
            "The datastore is marked as not ready, as it is during an upgrade.",
        )


def pass_gates(call: Call) -> None:
    """Wait until every readiness gate answers; each is tried at once and then every few seconds (§15.9)."""
    for url in call.conf.readiness_gates:
        wrong = _fault_of(url)
        if wrong:
            raise CNIError(
                f"invalid URL set for ReadinessGates:{url} Error:parse {go_quote(url)}: {wrong}",
                "A readiness gate is an absolute http or https URL.",
            )
        _wait_for(call, url)


def _fault_of(url: str) -> str:
    """Return why a text is no URL that can be asked; empty: it is one. What never can be is not waited for."""
    if not url:
        return "empty url"
    if any(char < " " or char == "\x7f" for char in url):
        return "net/url: invalid control character in URL"
    try:
        parts = urlsplit(url)
    except ValueError:  # half of the brackets of an IPv6 address, say
        return "invalid URI for request"
    try:
        parts.port  # noqa: B018  # raises for what is no port
    except ValueError:
        return f'invalid port ":{parts.netloc.rpartition(":")[2]}" after host'
    if " " in parts.netloc:
        return 'invalid character " " in host name'
    return "" if parts.scheme in ("http", "https") and parts.netloc else "invalid URI for request"


def _wait_for(call: Call, url: str) -> None:
    problem = ""
    for attempt in range(1 + int(timers.GATE_TOTAL / timers.GATE_PAUSE)):
        if attempt:
            call.context.clock.sleep(timers.GATE_PAUSE)
        try:
            status = call.context.fetch(url, timers.GATE_REQUEST)
            if 200 <= status < 400:
                return
            problem = f"it answers with status {status}"
        except (OSError, ValueError) as error:
            problem = str(error)
        call.log.info("A readiness gate is still closed", gate=url, reason=problem)
    raise CNIError(f"readiness gate {url} did not open within {timers.GATE_TOTAL:g} s: {problem}", code=TRY_AGAIN_LATER)
