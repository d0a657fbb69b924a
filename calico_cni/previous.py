"""``prevResult``: what ADD had answered, sent back by the runtime (cni.md §2.5)."""

from __future__ import annotations

from collections.abc import Mapping

from calico_cni import gojson
from calico_cni.errors import CNIError
from calico_cni.netconf import NetConf
from calico_cni.protocol import go_quote
from calico_cni.results import Result, family_of_versions, parse_result

_HINT = "CHECK needs the result of the sandbox's ADD; the runtime sends it as prevResult."


def previous_result(conf: NetConf) -> Result:
    """Return the result of the ADD. Raises CNIError when there is none or it has another shape than it should."""
    if conf.previous is None:
        raise CNIError("the network configuration has no prevResult", _HINT)
    if not isinstance(conf.previous, Mapping):
        raise CNIError(f"prevResult is no object but {gojson.kind_of(conf.previous)}", _HINT)
    version = str(conf.previous.get("cniVersion") or conf.version)
    if version not in family_of_versions(conf.version):
        raise CNIError(
            f"prevResult is of CNI {go_quote(version)}, the network configuration of {go_quote(conf.version)}"
        )
    return parse_result(conf.previous, conf.version)
