"""Names of workload endpoints, of their host interfaces, status files and profiles (datastore §9, cni.md §5)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from calico_ipam.errors import InvalidInput

KUBERNETES = "k8s"
CNI = "cni"
LIBNETWORK = "libnetwork"

DEFAULT_INTERFACE_PREFIX = "cali"
NAMESPACE_PROFILE = "kns."
SERVICE_ACCOUNT_PROFILE = "ksa."

_SEGMENTS = 4
_HASH_CHARACTERS = 11  # with "cali" 15 characters, the longest name that Linux gives an interface


@dataclass(frozen=True, slots=True)
class EndpointIds:
    """What a workload endpoint's name is made of. Which of the last four count depends on the orchestrator."""

    node: str = ""
    orchestrator: str = ""
    pod: str = ""  #: of Kubernetes
    container_id: str = ""  #: of CNI without Kubernetes
    workload: str = ""  #: of other orchestrators
    endpoint: str = ""  #: the interface in the container

    def name(self) -> str:
        """Return the endpoint's name. Raises InvalidInput for a field that is missing or begins or ends with ``-``."""
        if not self.node:
            raise invalid_field("node", None, "field should be assigned")
        return "-".join([_escaped(field, value) for field, value in self._fields()])

    def prefix(self) -> str:
        """Return what the names of all endpoints with these identifiers begin with, up to the first missing one.

        Names of others may begin so too: see :meth:`match`. Raises InvalidInput.
        """
        parts: list[str] = []
        for field, value in self._fields():
            if not value:
                if field == "node":
                    raise invalid_field(field, None, "field should be assigned")
                return "-".join([*parts, ""])
            parts.append(_escaped(field, value))
        return "-".join(parts)

    def match(self, name: str) -> bool:
        """Tell whether a name has exactly the parts of these identifiers; those that are missing here match any."""
        parts = split_name(name)
        return len(parts) == _SEGMENTS and all(
            not value or value == part for (_, value), part in zip(self._fields(), parts, strict=True)
        )

    def _fields(self) -> tuple[tuple[str, str], ...]:
        """Return the name's parts in order, each with the field that it comes from."""
        if self.orchestrator == KUBERNETES:
            third = "pod", self.pod
        elif self.orchestrator == CNI:
            third = "containerID", self.container_id
        else:
            third = "workload", LIBNETWORK if self.orchestrator == LIBNETWORK else self.workload
        return ("node", self.node), ("orchestrator", self.orchestrator), third, ("endpoint", self.endpoint)

    @classmethod
    def parse(cls, name: str) -> EndpointIds:
        """Return the identifiers in a name or a beginning of one. Raises InvalidInput."""
        if not name:
            raise InvalidInput("Cannot parse empty string")
        parts = split_name(name)
        if len(parts) > _SEGMENTS:
            raise InvalidInput(
                f"Error parsing {name}, verify that WorkloadEndpoint name is correct",
                subject=name,
                hint=f"It has {len(parts)} parts instead of {_SEGMENTS}; a '-' inside a part is written '--'.",
            )
        node, orchestrator, third, endpoint = parts + [""] * (_SEGMENTS - len(parts))
        return cls(
            node=node,
            orchestrator=orchestrator,
            pod=third if orchestrator == KUBERNETES else "",
            container_id=third if orchestrator == CNI else "",
            workload=third if orchestrator not in (KUBERNETES, CNI) else "",
            endpoint=endpoint,
        )


def split_name(name: str) -> list[str]:
    """Return the parts of a name: a single dash separates, a doubled one is a dash of the part."""
    parts = []
    start, place = 0, 1
    while place < len(name):
        if name[place] != "-":
            place += 1
        elif name.startswith("--", place):
            place += 2
        else:
            parts.append(name[start:place].replace("--", "-"))
            start = place + 1
            place += 1
    return [*parts, name[start:].replace("--", "-")]


def _escaped(field: str, value: str) -> str:
    if not value:
        raise invalid_field(field, value, "field should be assigned")
    if value.startswith("-"):
        raise invalid_field(field, value, "field must not begin with a '-'")
    if value.endswith("-"):
        raise invalid_field(field, value, "field must not end with a '-'")
    return value.replace("-", "--")


def invalid_field(field: str, value: str | None, reason: str) -> InvalidInput:
    """Return upstream's validation error for one field of an object; ``value`` None is not shown."""
    shown = field if value is None else f"{field} = '{value}'"
    return InvalidInput(f"error with field {shown} ({reason})", subject=field, reason=reason)


def veth_name_for_workload(namespace: str, pod: str, prefixes: str = DEFAULT_INTERFACE_PREFIX) -> str:
    """Return the host interface of a pod. ``prefixes`` is Felix's list, separated by commas; the first one counts."""
    from hashlib import sha1  # 4 ms, and only pods have such names

    # Names that came from the environment may hold bytes that are no UTF-8; they are hashed as they are.
    text = f"{namespace}.{pod}".encode("utf-8", "surrogateescape")
    digest = sha1(text, usedforsecurity=False).hexdigest()
    return (prefixes.partition(",")[0] or DEFAULT_INTERFACE_PREFIX) + digest[:_HASH_CHARACTERS]


def veth_name_for_container(container_id: str) -> str:
    """Return the host interface of a container outside Kubernetes. Two IDs with one beginning share it."""
    return DEFAULT_INTERFACE_PREFIX + container_id[:_HASH_CHARACTERS]


def status_file_name(orchestrator: str, workload: str, endpoint: str) -> str:
    """Return the file by which Felix says that an endpoint is ready; ``workload`` is ``namespace/pod``."""
    return " ".join(quote(part, safe="$&+=:@") for part in (orchestrator, workload, endpoint))


def namespace_profile(namespace: str) -> str:
    """Return the profile of a Kubernetes namespace."""
    return NAMESPACE_PROFILE + namespace


def service_account_profile(namespace: str, account: str) -> str:
    """Return the profile of a Kubernetes service account."""
    return f"{SERVICE_ACCOUNT_PROFILE}{namespace}.{account}"


def parse_profile(name: str) -> tuple[str, str]:
    """Return (namespace, service account or empty) of a Kubernetes profile. Raises InvalidInput for any other."""
    if name.startswith(NAMESPACE_PROFILE) and name != NAMESPACE_PROFILE:
        return name.removeprefix(NAMESPACE_PROFILE), ""
    namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_PROFILE).partition(".")
    if not (name.startswith(SERVICE_ACCOUNT_PROFILE) and namespace and account):
        raise InvalidInput(f"Profile {name} does not represent a Kubernetes namespace or service account", subject=name)
    return namespace, account
