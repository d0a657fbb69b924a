"""Where our plugins differ from the recorded CNI cases with pods of Kubernetes on purpose (ruling 26).

The table goes on from :mod:`tests.golden.cni_exceptions`, whose rules hold here too.
"""

from __future__ import annotations

import re
from typing import Any

from tests.golden.cni_exceptions import (
    SUCCESS,
    UNTOUCHED,
    CNIDeviation,
    _any_text,
    _error,
    _networked,
    _nothing,
)
from tests.golden.cni_host import Outcome
from tests.golden.cni_match import ANY
from tests.golden.cni_replay import Moment, Step, needs_kubernetes

LOCK, MARKER = "{LOCK_FILE}", "{UPGRADE_MARKER}"


def _args(moment: Moment) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in moment.step["env"].get("CNI_ARGS", "").split(";")]
    return {key: value for key, _, value in pairs}


def _upto(moment: Moment) -> list[Moment]:
    return [*moment.earlier(), moment]


def _files(step: Step) -> dict[str, Any]:
    return dict(step.get("files", {}))


def _on_kubernetes(moment: Moment) -> bool:
    return bool(moment.case["backend"] == "kubernetes")


def _pods_changed(step: Step) -> dict[str, Any]:
    """Return what a run changed, with pods' annotations left open."""
    changed = step["datastore_changed"]
    return {key: ANY if "/pods/" in key else value for key, value in changed.items()}


# --- refused earlier than upstream -------------------------------------------------------------------------


def _no_policy(moment: Moment) -> bool:
    return moment.verb == "ADD" and moment.message.startswith("Invalid name ") and _on_kubernetes(moment)


def _after_no_policy(moment: Moment) -> bool:
    return moment.verb == "DEL" and any(_no_policy(other) for other in moment.earlier())


def _other_uid(moment: Moment) -> bool:
    """Tell whether the runtime told a UID, which in a recording can be no pod's: the API server makes them."""
    told = re.search(r";K8S_POD_UID=[0-9a-f-]{36}(;|$)", moment.step["env"].get("CNI_ARGS", "")) is not None
    return moment.verb == "ADD" and told and "kubernetes.io/config.mirror" not in str(moment.case)


_EXPECT_UID, _CHECK_UID = _any_text(999, "has UID", "but the sandbox is for UID ")


def _negative(moment: Moment) -> bool:
    return moment.message.startswith("invalid pod startup delay")


def _feature_off(moment: Moment) -> bool:
    """Tell whether an annotation was refused that upstream reads only when address or link are made already."""
    off = moment.message == "requested feature is not enabled: floating_ips"
    return off or " provided via cni.projectcalico.org/hwAddr: " in moment.message


def _refused_early(moment: Moment) -> bool:
    """Tell whether ours refuses an ADD before it asks the datastore for an address."""
    return any(refused(moment) for refused in (_no_policy, _other_uid, _negative, _feature_off, _second))


# --- 15.13: affinities are upgraded before blocks are searched too -----------------------------------------


def _makes_marker(moment: Moment) -> bool:
    """Tell whether ours gets to the datastore's blocks in this run."""
    nothing_to_search = moment.message.startswith("migration target pod but no IP allocated")
    return moment.verb == "ADD" and LOCK in _files(moment.step) and not (_refused_early(moment) or nothing_to_search)


def _marker(moment: Moment) -> bool:
    made = any(_makes_marker(other) for other in _upto(moment))
    return _on_kubernetes(moment) and made and MARKER not in _files(moment.step)


# --- 15.3: addresses of an annotation have a route on the host ---------------------------------------------


def _fixed(moment: Moment) -> bool:
    """Tell whether a run networked a pod whose annotations name its addresses."""
    networked = moment.verb == "ADD" and moment.step["exit_code"] == 0 and moment.answer.get("interfaces")
    ours = moment.netconf.get("ipam", {}).get("type") == "calico-ipam"
    migrating = "K8S_POD_NAME=virt-launcher-" in moment.step["env"].get("CNI_ARGS", "")
    return bool(networked and ours and not moment.answer.get("routes") and not migrating)


def _shows_fixed(moment: Moment) -> bool:
    return needs_kubernetes(moment.case) and bool(_standing(moment))


def _standing(moment: Moment) -> dict[str, list[str]]:
    """Return host link -> addresses of annotations, of the links that stand after a run."""
    found = {}
    for other in _upto(moment):
        if _fixed(other):
            ips = [entry["address"].partition("/")[0] for entry in other.answer["ips"]]
            found[other.answer["interfaces"][0]["name"]] = ips
    return {name: ips for name, ips in found.items() if name in moment.step.get("host", {})}


def _with_host_routes(moment: Moment, step: Step) -> Step:
    host = dict(step["host"])
    for name, ips in _standing(moment).items():
        routes = [_host_route(ip) for ip in ips] + list(host[name]["routes"])
        host[name] = {**host[name], "routes": routes}
    return {**step, "host": host}


def _host_route(ip: str) -> dict[str, Any]:
    route: dict[str, Any] = {"type": "unicast", "dst": ip, "protocol": "boot"}
    route |= {"scope": "global", "metric": 1024} if ":" in ip else {"scope": "link"}
    return {**route, "flags": []}


# --- 15.5: nothing stays of a failed ADD -------------------------------------------------------------------


def _dangling_route(moment: Moment) -> bool:
    return moment.verb == "ADD" and moment.message == "invalid CIDR address: <nil>"


def _given_back(_moment: Moment, step: Step) -> Step:
    taken = re.compile(r"/[0-9.]+$|/[0-9a-f:]+:[0-9a-f:]*$")  # host-local has a file for each address
    return {**step, "files": {key: value for key, value in _files(step).items() if not taken.search(key)}}


# --- ruling 2: a second interface would take the first one's link ------------------------------------------


def _connected(moment: Moment) -> list[Moment]:
    """Return the ADDs before a run whose interface is still in its sandbox."""
    netns, found = moment.step["env"].get("CNI_NETNS"), list[Moment]()
    for other in moment.earlier():
        env = other.step["env"]
        if env.get("CNI_NETNS") != netns:
            continue
        if other.verb == "ADD" and other.step["exit_code"] == 0:
            found.append(other)
        elif other.verb == "DEL":
            found = [add for add in found if add.step["env"].get("CNI_IFNAME") != env.get("CNI_IFNAME")]
    return found


def _second(moment: Moment) -> bool:
    """Tell whether a run adds another interface to a sandbox that has one."""
    name = moment.step["env"].get("CNI_IFNAME")
    others = [add for add in _connected(moment) if add.step["env"].get("CNI_IFNAME") != name]
    return needs_kubernetes(moment.case) and moment.verb == "ADD" and bool(name) and bool(others)


def _refused_second(moment: Moment, step: Step) -> Step:
    first = _connected(moment)[0].step
    args = _args(moment)
    pod = f"{args['K8S_POD_NAMESPACE']}/{args['K8S_POD_NAME']}"
    was, wanted = first["env"]["CNI_IFNAME"], step["env"]["CNI_IFNAME"]
    message = f"pod {pod} is connected by interface {was} already; a second interface {wanted} is not possible"
    state = {"datastore_changed": {}, "container": first["container"], "host": first["host"]}
    return {**step, **_error(999, message), **state}


def _of_second(moment: Moment) -> bool:
    return moment.verb == "DEL" and moment.index > 0 and any(_second(other) for other in moment.earlier())


def _delete_second(moment: Moment, step: Step) -> Step:
    first = moment.earlier()[0].step
    if step["env"]["CNI_IFNAME"] != first["env"]["CNI_IFNAME"]:
        return {**step, "datastore_changed": {}, "container": first["container"], "host": first["host"]}
    changed = {key: ANY if "block/" in key or "/ipamblocks/" in key else None for key in first["datastore_changed"]}
    rows = ("/blockaffinities/", "/ipam/v2/host/")
    kept = {key: value for key, value in changed.items() if not any(row in key for row in rows) and "/pods/" not in key}
    return {**step, "datastore_changed": {**kept, **step["datastore_changed"]}}


# --- the others ---------------------------------------------------------------------------------------------


def _stale_nat(moment: Moment) -> bool:
    return "(NAT is not in the endpoint networks)" in moment.message


def _bad_sources_at_delete(moment: Moment) -> bool:
    return moment.verb == "DEL" and re.match(r"failed to parse '.*' as (a CIDR|JSON): ", moment.message) is not None


def _deleted_all_the_same(moment: Moment, step: Step) -> Step:
    args = _args(moment)
    changed = {f"/api/v1/namespaces/{args['K8S_POD_NAMESPACE']}/pods/{args['K8S_POD_NAME']}": ANY}
    return {**step, **_nothing(), "datastore_changed": changed, "files": {**_files(step), LOCK: ""}}


def _no_pod_at_delete(moment: Moment) -> bool:
    return moment.verb == "DEL" and moment.message.startswith("insufficient identifiers, missing '")


def _unreachable(moment: Moment) -> bool:
    text = str(moment.answer.get("details") or moment.message)
    return text.endswith(": connect: connection refused") and needs_kubernetes(moment.case)


_EXPECT_UNREACHABLE, _ = _any_text(11)


def _told_unreachable(outcome: Outcome) -> str:
    code = 100 if "data store connection failed" in outcome.stdout else 11
    return _any_text(code, "the Kubernetes API server ", " does not answer: ")[1](outcome)


def _name_refused(moment: Moment) -> bool:
    """Tell whether upstream asked an API server for ever that refuses the name of a handle (cni.md §7.3)."""
    return moment.step["exit_code"] == "timeout" and _on_kubernetes(moment) and "_" in moment.netconf.get("name", "")


_EXPECT_NAME, _CHECK_NAME = _any_text(999, "cannot be the name of a Kubernetes object")


def _name_told(moment: Moment, step: Step) -> Step:
    state = dict.fromkeys(("datastore_changed", "container", "host"), ANY)
    return {**_EXPECT_NAME(moment, step), **state}


def _left_link(moment: Moment) -> bool:
    """Tell whether a DEL without a namespace left the link that its own container had."""
    quiet = moment.verb == "DEL" and not moment.step["env"].get("CNI_NETNS")
    made = [other for other in moment.earlier() if other.verb == "ADD" and other.step["exit_code"] == 0]
    same = bool(made) and made[-1].step["env"]["CNI_CONTAINERID"] == moment.step["env"].get("CNI_CONTAINERID")
    return quiet and same and needs_kubernetes(moment.case) and bool(moment.step.get("host"))


def _mapped(**fields: Any) -> Any:
    return lambda _moment, step: {**step, **fields}


POD_DEVIATIONS: tuple[CNIDeviation, ...] = (
    CNIDeviation(
        "15.5", "a profile that cannot be is refused before anything is made", _no_policy, _mapped(**UNTOUCHED)
    ),
    CNIDeviation(
        "15.5",
        "a pod that was refused has no container ID on it",
        _after_no_policy,
        lambda _moment, step: {**step, "datastore_changed": _pods_changed(step)},
    ),
    CNIDeviation(
        "15.6",
        "a pod of another UID than the runtime's is refused",
        _other_uid,
        lambda moment, step: {**_EXPECT_UID(moment, step), **UNTOUCHED},
        _CHECK_UID,
    ),
    CNIDeviation(
        "15.5",
        "a negative waiting time is refused before anything is made",
        _negative,
        _mapped(datastore_changed={}, container={}, host={}),
    ),
    CNIDeviation(
        "15.5",
        "a feature that is off, or a bad hardware address, is refused before anything is made",
        _feature_off,
        _mapped(datastore_changed={}, container=ANY, host=ANY, files=ANY),
    ),
    CNIDeviation(
        "15.13",
        "affinities are upgraded before blocks are searched, not only before an address is taken",
        _marker,
        lambda _moment, step: {**step, "files": {**_files(step), MARKER: ""}},
    ),
    CNIDeviation("15.3", "addresses of annotations have a route on the host", _shows_fixed, _with_host_routes),
    CNIDeviation("15.5", "an answer that cannot be read gives its address back", _dangling_route, _given_back),
    CNIDeviation("ruling-2", "a second interface is refused before anything is made", _second, _refused_second),
    CNIDeviation("15.20", "DEL of a refused interface leaves the first one alone", _of_second, _delete_second),
    CNIDeviation(
        "15.7",
        "floating addresses are set anew when a pod is networked again",
        _stale_nat,
        _mapped(**SUCCESS),
        _networked,
        resync=True,
    ),
    CNIDeviation(
        "P21",
        "an annotation that cannot be read does not keep a pod from going",
        _bad_sources_at_delete,
        _deleted_all_the_same,
    ),
    CNIDeviation(
        "P21",
        "DEL of what the Kubernetes datastore cannot hold releases the address and is done",
        _no_pod_at_delete,
        _mapped(**_nothing()),
    ),
    CNIDeviation(
        "15.10",
        "an API server that does not answer is told with code 11",
        _unreachable,
        _EXPECT_UNREACHABLE,
        _told_unreachable,
    ),
    CNIDeviation(
        "7.3",
        "a network whose name the API server refuses is told at once",
        _name_refused,
        _name_told,
        _CHECK_NAME,
    ),
    CNIDeviation(
        "ruling-1",
        "the link of a container that is deleted goes even without its namespace",
        _left_link,
        _mapped(container={}, host={}),
    ),
)
