"""Where etcd is: endpoint texts, their schemes, and discovery by DNS (datastore §4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import InvalidInput, NotConfigured

DEFAULT_PORT = 2379
_HINT = "Write http://host:2379 or https://host:2379, several with commas."

#: service record name -> (host, port) of each record, in the order to try them
Resolver = Callable[[str], Sequence[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of the cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """All members, and whether to speak TLS with them: what the first endpoint says holds for all, as upstream."""

    endpoints: tuple[Endpoint, ...]
    secure: bool

    def __str__(self) -> str:
        return f"{'etcds' if self.secure else 'etcd'}://{','.join(map(str, self.endpoints))}"


def cluster_of(settings: Settings, resolve: Resolver | None = None) -> Cluster:
    """Return the cluster that settings name. Raises InvalidInput, NotConfigured."""
    texts = settings.etcd_endpoints
    if texts and settings.etcd_discovery_srv:
        raise InvalidInput(
            "etcd endpoints and etcd SRV discovery are both set",
            subject="ETCD_DISCOVERY_SRV",
            hint="Remove ETCD_ENDPOINTS or ETCD_DISCOVERY_SRV.",
        )
    if settings.etcd_discovery_srv:
        texts = discovered(settings.etcd_discovery_srv, resolve or _service_records)
    if not texts:
        raise NotConfigured("no etcd endpoints specified", subject="ETCD_ENDPOINTS", hint=_HINT)
    parsed = [parse_endpoint(text) for text in texts]
    # No scheme means TLS: etcd's own client library does so with the TLS settings that upstream always hands to it.
    return Cluster(tuple(dict.fromkeys(endpoint for _, endpoint in parsed)), parsed[0][0] != "http")


def parse_endpoint(text: str) -> tuple[str, Endpoint]:
    """Return scheme (may be empty) and place of an endpoint. Raises InvalidInput, never with a secret in it."""
    scheme, separator, rest = text.strip().rpartition("://")
    if scheme not in ("", "http", "https") or (separator and not scheme):
        raise InvalidInput(f"unknown scheme {scheme!r} of an etcd endpoint", subject=scheme, hint=_HINT)
    if "@" in rest:
        raise InvalidInput(
            "an etcd endpoint must not hold user or password",
            subject="ETCD_ENDPOINTS",
            hint="They go into ETCD_USERNAME and ETCD_PASSWORD.",
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
        excess = parts.path.strip("/") or parts.query or parts.fragment
    except ValueError:
        host, port, excess = None, None, ""
    if not host or excess or port == 0 or any(c.isspace() for c in host):
        raise InvalidInput(f"{text!r} is no etcd endpoint", subject=text, hint=_HINT)
    return scheme, Endpoint(host, port if port is not None else DEFAULT_PORT)


def discovered(domain: str, resolve: Resolver) -> tuple[str, ...]:
    """Return endpoints by service records, those with TLS first. Raises NotConfigured when there is none."""
    found: list[str] = []
    reasons: list[str] = []
    for scheme, service in (("https", "_etcd-client-ssl._tcp"), ("http", "_etcd-client._tcp")):
        name = f"{service}.{domain}"
        try:
            found += [f"{scheme}://{Endpoint(host, port)}" for host, port in resolve(name)]
        except LookupError as error:
            reasons.append(f"{name}: {error}")
    if not found:
        raise NotConfigured(
            f"failed to discover etcd endpoints through SRV discovery: {'; '.join(reasons) or 'no records'}",
            subject=domain,
            hint="Check ETCD_DISCOVERY_SRV and the DNS servers, or name the endpoints in ETCD_ENDPOINTS.",
        )
    return tuple(found)


def _service_records(name: str) -> Sequence[tuple[str, int]]:
    """Ask the DNS servers of this host. Raises LookupError."""
    try:
        import dns.exception
        import dns.resolver
    except ModuleNotFoundError:
        raise NotConfigured(
            "etcd SRV discovery needs the package dnspython, which is not installed",
            hint="Install it: pip install 'calico-ipam[etcd]'.",
        ) from None
    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=10.0)
    except dns.exception.DNSException as error:
        raise LookupError(str(error)) from None
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    return [(record.target.to_text(omit_final_dot=True), record.port) for record in records]
