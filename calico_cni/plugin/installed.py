"""A DEL whose configuration lost its datastore on the way: the installed one fills the gap (P27).

Meta-plugins rebuild configurations from caches. A DEL that then looked into another datastore, or none, would leak the
address; so what is missing is taken from the environment, or else from the configuration that is installed on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from calico_cni import gojson, netconf
from calico_cni.context import Call
from calico_cni.protocol import CALICO, Request

#: variables any of which says where the datastore is; each also with CALICO_ in front
_TELLING = ("DATASTORE_TYPE", "ETCD_ENDPOINTS", "ETCD_DISCOVERY_SRV", "KUBECONFIG", "K8S_API_ENDPOINT")
#: what a stripped configuration keeps as its own
_OWN = frozenset({"cniversion", "name", "type", "prevresult", "runtimeconfig", "args"})


def is_stripped(call: Call) -> bool:
    """Tell whether neither the configuration nor the environment says where the datastore is."""
    environ = call.request.environ
    names = [name for plain in _TELLING for name in (plain, f"CALICO_{plain}")]
    return not call.conf.store_settings and not any(environ.get(name) for name in (*names, "KUBERNETES_SERVICE_HOST"))


def completed(call: Call) -> Call:
    """Return the call with the installed configuration under its own; unchanged where nothing is missing or found."""
    if not is_stripped(call):
        return call
    file = call.context.paths.installed_netconf
    installed = _plugin_of(file)
    if installed is None:
        return call
    call.log.warning("The configuration names no datastore; the installed one is used", file=file)
    document = _under(call.conf.document, installed)
    conf = replace(netconf.load(document), version=call.conf.version)
    stdin = gojson.dump_compact(document).encode("utf-8", "surrogateescape")
    return replace(call, conf=conf, request=Request(call.request.program, call.request.environ, stdin))


def _under(given: Mapping[str, Any], installed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given, with the installed values where it has none; the ipam section is merged key by key."""
    lower = {key.lower() for key in given}
    filled = {key: value for key, value in installed.items() if key.lower() not in lower and key.lower() not in _OWN}
    merged = {**filled, **given}
    ours, theirs = given.get("ipam"), installed.get("ipam")
    same = isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("type") == theirs.get("type")
    if same:
        merged["ipam"] = {**dict(theirs or {}), **dict(ours or {})}
    return merged


def _plugin_of(file: Path) -> Mapping[str, Any] | None:
    """Return the configuration of ``calico`` in an installed file, or None."""
    try:
        document = gojson.load(file.read_bytes())
    except (OSError, gojson.GoJSONError):
        return None
    if not isinstance(document, Mapping):
        return None
    plugins = document.get("plugins")
    for plugin in plugins if isinstance(plugins, list) else [document]:
        if isinstance(plugin, Mapping) and plugin.get("type") == CALICO:
            return plugin
    return None
