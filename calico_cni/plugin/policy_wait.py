"""Waiting until Felix has programmed a pod's policy: it writes a status file then (cni.md §6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calico_cni import gojson
from calico_cni.context import Call
from calico_cni.errors import CNIError
from calico_ipam.model.endpoint_names import status_file_name
from calico_ipam.model.resource import Resource

#: Seconds between two looks; a file appears once per pod, and a look costs microseconds.
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Expected:
    """What a status file must say of this very endpoint, as far as it says anything (§15.11)."""

    interface: str
    mac: str
    networks: Sequence[str]

    def differs(self, status: Mapping[str, Any]) -> str:
        """Return what shows that a file is of an earlier pod of this name; empty: nothing does."""
        if status.get("ifaceName") not in (None, "", self.interface):
            return f"interface {status['ifaceName']}"
        if str(status.get("mac") or self.mac).lower() != self.mac.lower():
            return f"hardware address {status['mac']}"
        listed = [status.get("ipv4Nets"), status.get("ipv6Nets")]
        told = {str(network) for networks in listed if isinstance(networks, list) for network in networks}
        return f"addresses {', '.join(sorted(told))}" if told and told != set(self.networks) else ""


def check_timeout(call: Call) -> None:
    """Raise CNIError for a time that cannot be waited; before anything is allocated."""
    if call.conf.policy_setup_timeout < 0:
        raise CNIError(
            f"invalid pod startup delay of {call.conf.policy_setup_timeout}",
            "policy_setup_timeout_seconds is 0 (no waiting) or more.",
        )


def wait_for_policy(call: Call, endpoint: Resource, mac: str) -> None:
    """Wait until the endpoint's status file is there, as long as the configuration says; then go on all the same."""
    patience = float(call.conf.policy_setup_timeout)
    if patience <= 0:
        return
    spec = endpoint.spec
    name = status_file_name("k8s", f"{endpoint.namespace}/{spec['pod']}", str(spec["endpoint"]))
    file = Path(call.conf.endpoint_status_dir) / name
    expected = Expected(str(spec.get("interfaceName") or ""), mac, spec["ipNetworks"])
    waited, problem = 0.0, ""
    while True:
        problem = _problem(file, expected)
        if not problem:
            call.log.info("The endpoint's policy is in place", file=file, waited=round(waited, 2))
            return
        if waited >= patience:
            break
        pause = min(_PAUSE, patience - waited)
        call.context.clock.sleep(pause)
        waited += pause
    call.log.warning(
        "The endpoint's policy was not in place in time; going on", file=file, seconds=patience, reason=problem
    )


def _problem(file: Path, expected: Expected) -> str:
    """Return why the file does not say that the endpoint is ready; empty: it does.

    Its mere existence says so, whatever it holds, unless it holds the beginning of what Felix writes, or that of
    another endpoint.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return str(error)
    if not content.lstrip().startswith(b"{"):
        return ""
    try:
        status = gojson.load(content)
    except gojson.GoJSONError as error:
        return f"it is being written: {error}"
    differs = expected.differs(status) if isinstance(status, Mapping) else ""
    return f"it is of an earlier pod: {differs}" if differs else ""
