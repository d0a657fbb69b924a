"""What is left of calls that fail: upstream leaves links and addresses to the runtime's DEL, ours nothing (§6.7).

The table goes on from :mod:`tests.golden.cni_exceptions` and :mod:`tests.golden.cni_exceptions_pods`. Some of its
entries are met by recordings that ``made_cni/`` holds, which were worked out from the specification.
"""

from __future__ import annotations

import re
from typing import Any

from calico_ipam.model.endpoint_names import veth_name_for_container, veth_name_for_workload
from tests.golden.cni_exceptions import (
    SUCCESS,
    CNIDeviation,
    _any_text,
    _bad_name,
    _networked,
    _no_dataplane,
    _same_netns,
)
from tests.golden.cni_exceptions_pods import _args, _feature_off, _negative, _no_policy, _second
from tests.golden.cni_host import Outcome
from tests.golden.cni_match import ANY
from tests.golden.cni_replay import Moment, Step

_TAKEN = re.compile(r"already exists for an interface other than '[^']+': route \(.*, Iface: (cali[^)]*)\)")


def _failed_add(moment: Moment) -> bool:
    """Tell whether an ADD failed that no other entry says is refused before anything is made."""
    if moment.verb != "ADD" or moment.step["exit_code"] != 1:
        return False
    early = (_bad_name, _feature_off, _negative, _no_dataplane, _no_policy, _same_netns, _second)
    return not any(refused(moment) for refused in early)


# --- addresses: 15.5 ---------------------------------------------------------------------------------------


def _is_handle(key: str) -> bool:
    return "/ipamhandles/" in key or "/ipam/v2/handle/" in key


def _leaks(moment: Moment) -> bool:
    changed = moment.step["datastore_changed"]
    return _failed_add(moment) and any(_is_handle(key) and value is not None for key, value in changed.items())


def _after_leak(moment: Moment) -> bool:
    container = moment.step["env"].get("CNI_CONTAINERID")
    same = [other for other in moment.earlier() if other.step["env"].get("CNI_CONTAINERID") == container]
    took = any("/ipam" in key for key in moment.step["datastore_changed"])
    return moment.verb == "DEL" and took and any(_leaks(other) or _negative(other) for other in same)


def _nothing_held(outcome: Outcome) -> str:
    for key, value in outcome.datastore_changed.items():
        if _is_handle(key) and value is not None:
            return f"{key} stays"
        if value and ("/ipamblocks/" in key or "/block/" in key) and value.get("spec", value).get("attributes"):
            return f"{key} still has holders"
    return ""


def _without_ipam(_moment: Moment, step: Step) -> Step:
    kept = {key: value for key, value in step["datastore_changed"].items() if "/ipam" not in key}
    return {**step, "datastore_changed": kept}


# --- links: 15.17 ------------------------------------------------------------------------------------------


def _pair(moment: Moment) -> tuple[str, str, str]:
    """Return the pair that a call is about: the sandbox, the name of the link in it, and the one on the host."""
    env, args = moment.step["env"], _args(moment)
    namespace, pod = args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", "")
    if namespace and pod:
        host = veth_name_for_workload(namespace, pod, env.get("FELIX_INTERFACEPREFIX", ""))
    else:
        host = veth_name_for_container(env.get("CNI_CONTAINERID", ""))
    return env.get("CNI_NETNS", ""), env.get("CNI_IFNAME", ""), host


def _left(moment: Moment) -> list[tuple[str, str, str]]:
    """Return the pairs that upstream's failed ADDs have left and that still stand after a run."""
    found: list[tuple[str, str, str]] = []
    stood: set[str] = set()
    for run in (*moment.earlier(), moment):
        host = set(run.step.get("host", {}))
        pair = _pair(run)
        if run.verb == "ADD":
            found = [other for other in found if other[2] != pair[2]]
            if _failed_add(run) and not _meets_leftover(run) and pair[2] in host - stood:
                found.append(pair)
        stood = host - {other[2] for other in found}
        found = [other for other in found if other[2] in host]
    return found


def _leaves_link(moment: Moment) -> bool:
    return bool(_left(moment))


def _without_left(moment: Moment, step: Step) -> Step:
    host, container = dict(step.get("host", {})), dict(step.get("container", {}))
    for netns, ifname, name in _left(moment):
        host.pop(name, None)
        links = container.get(netns, {}).get("links", [])
        if all(link["ifname"] == ifname for link in links):
            container.pop(netns, None)
    return {**step, "host": host, "container": container}


# --- rulings 1 and 2: leftovers that nobody lives behind make way ------------------------------------------


def _meets_leftover(moment: Moment) -> bool:
    """Tell whether an address's route was on a link that ours may remove; no process lives in a case's namespaces."""
    return moment.verb == "ADD" and _TAKEN.search(moment.message) is not None


def _after_leftover(moment: Moment) -> bool:
    found = [_TAKEN.search(other.message) for other in moment.earlier() if _meets_leftover(other)]
    return any(taken is not None and taken[1] in moment.step.get("host", {}) for taken in found)


# --- our own IPAM plugin, which nobody has to find ---------------------------------------------------------


def _own_not_found(moment: Moment) -> bool:
    return moment.message.startswith('failed to find plugin "calico-ipam" in path ')


def _found_all_the_same(moment: Moment, step: Step) -> Step:
    return {**step, **SUCCESS}


def _networked_if_added(outcome: Outcome) -> str:
    return _networked(outcome) if outcome.stdout else ""


# --- 15.7: floating addresses that the pod cannot have -----------------------------------------------------


def _floating_panic(moment: Moment) -> bool:
    return "panicked during ADD" in moment.message and "cni.projectcalico.org/floatingIPs" in str(moment.case["setup"])


_EXPECT_FLOATING, _CHECK_FLOATING = _any_text(999, "floating IP")


def _mapped(**fields: Any) -> Any:
    return lambda _moment, step: {**step, **fields}


FAILED_DEVIATIONS: tuple[CNIDeviation, ...] = (
    CNIDeviation(
        "15.5",
        "what an ADD had taken before it failed is free again",
        _leaks,
        _mapped(datastore_changed=ANY),
        _nothing_held,
    ),
    CNIDeviation("15.5", "after that, DEL finds nothing to release", _after_leak, _without_ipam),
    CNIDeviation("15.17", "a failed ADD removes the link that it made", _leaves_link, _without_left),
    CNIDeviation(
        "ruling-2",
        "a leftover link that still has the address's route, and that nobody lives behind, makes way",
        _meets_leftover,
        _mapped(**SUCCESS),
        _networked,
        resync=True,
    ),
    CNIDeviation("ruling-2", "the leftover is gone for good", _after_leftover, _mapped(host=ANY)),
    CNIDeviation(
        "design-6",
        "calico-ipam runs in the process of calico, wherever its program is",
        _own_not_found,
        _found_all_the_same,
        _networked_if_added,
        resync=True,
    ),
    CNIDeviation(
        "15.7",
        "a floating address that the pod cannot have is told instead of crashing",
        _floating_panic,
        _EXPECT_FLOATING,
        _CHECK_FLOATING,
    ),
)
