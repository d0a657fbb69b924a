"""What an error of a request means: that etcd did not get it, that it may have been done, or that it was refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from calico_ipam.errors import IPAMError, StoreError, Unauthorized

FULL = "database space exceeded"
COMPACTED = "required revision has been compacted"
FUTURE = "required revision is a future revision"


class StoreFull(StoreError):
    """etcd is at its quota. The write that first finds that out while it is applied is refused and yet done."""


class Meaning(Enum):
    """What is known about a request that failed."""

    UNSENT = auto()  #: no server took it: another one may be asked, also to write
    UNSURE = auto()  #: a server may have done it
    TOKEN = auto()  #: not done, because our token is not valid any more
    GONE = auto()  #: not done: the revision asked for is no longer, or not yet, kept
    REFUSED = auto()  #: not done, and asking again will not help


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed try. ``text`` is etcd's or gRPC's own; ``short`` says it for people, after the endpoint's name.

    ``unreachable``: nothing there to talk to. ``tls``: the handshake failed, which no repetition heals.
    """

    meaning: Meaning
    text: str
    short: str
    unreachable: bool = False
    tls: bool = False

    @property
    def anonymous(self) -> bool:
        """Whether etcd wants a user, and this request came from none."""
        return _WHO in self.text


#: beginnings of gRPC's words for calls that never had a connection
_NO_CONNECTION = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "empty address list",
)
#: words of members that turn a request away before they do anything with it
_TURNED_AWAY = (
    "etcdserver: no leader",
    "rpc not supported for learner",
    "etcdserver: not capable",
    "too many requests",
)
_TLS = ("andshake failed", "erification", "Unwrap failed", "CERTIFICATE_VERIFY", "Handshake read failed")
#: in gRPC's words -> in ours
_SHORT = (
    ("Connection refused", "refuses connections"),
    ("Connection reset", "closed the connection"),
    ("No route to host", "cannot be routed to"),
    ("Network is unreachable", "cannot be routed to"),
    ("errors resolving", "is a name that does not resolve"),
    ("DNS resolution failed", "is a name that does not resolve"),
    ("Socket closed", "closed the connection"),
)
_AUTH_OFF = "authentication is not enabled"
_WHO = "user name is empty"


def failure_of(error: Any) -> Failure:
    """Return the meaning of a ``grpc.RpcError``."""
    code, text = str(error.code().name), str(error.details() or "")
    if code == "UNAVAILABLE":
        return _unavailable(text)
    if code == "UNAUTHENTICATED" or "revision of auth store is old" in text:
        return Failure(Meaning.TOKEN, text, "does not know our token any more")
    if any(words in text for words in _TURNED_AWAY):
        return Failure(Meaning.UNSENT, text, f"takes no requests ({_plain(text)})")
    if COMPACTED in text or FUTURE in text:
        return Failure(Meaning.GONE, text, _plain(text))
    if code == "DEADLINE_EXCEEDED" or "context deadline exceeded" in text:  # the member may be the first to notice
        return Failure(Meaning.UNSURE, text, "did not answer in time")
    if code in ("CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"):
        return Failure(Meaning.UNSURE, text, f"failed ({_plain(text)})")
    return Failure(Meaning.REFUSED, text or code, _plain(text or code))


def _unavailable(text: str) -> Failure:
    unsent = text.startswith(_NO_CONNECTION)
    if unsent or "refused" in text:
        tls = any(words in text for words in _TLS)
        short = next((ours for theirs, ours in _SHORT if theirs in text), f"cannot be connected to ({_plain(text)})")
        return Failure(Meaning.UNSENT if unsent else Meaning.UNSURE, text, short, unreachable=True, tls=tls)
    if any(words in text for words in _TURNED_AWAY):
        return Failure(Meaning.UNSENT, text, f"takes no requests ({_plain(text)})")
    if text.startswith("etcdserver: "):  # timed out, leader changed, stopped: the request may be in the log by then
        return Failure(Meaning.UNSURE, text, f"failed ({_plain(text)})")
    short = next((ours for theirs, ours in _SHORT if theirs in text), f"broke the connection ({_plain(text)})")
    return Failure(Meaning.UNSURE, text, short)


def authentication_is_off(error: Any) -> bool:
    """Tell whether a login failed because the cluster asks nobody for one; upstream goes on without, too."""
    return _AUTH_OFF in str(error.details() or "")


def refusal_of(failure: Failure, where: str, user: str, doing: str) -> IPAMError:
    """Return the error for a request that etcd refused. ``where``: the datastore's name; ``user``: ours, or empty."""
    text = failure.text
    if "invalid user ID or password" in text:
        return Unauthorized(
            f"{where} does not accept the password of user {user!r}: {text}",
            hint="Check ETCD_USERNAME and ETCD_PASSWORD.",
        )
    if _WHO in text:
        return Unauthorized(
            f"{where} wants a user and none is configured: {text}", hint="Set ETCD_USERNAME and ETCD_PASSWORD."
        )
    if "permission denied" in text:
        who = f"user {user!r}" if user else "our client certificate's user"
        right = "readwrite" if doing == "write to" else "read"
        return Unauthorized(
            f"{who} may not {doing} {where}: {text}",
            hint=f"Grant a role with it: etcdctl role grant-permission --prefix=true ROLE {right} /calico/.",
        )
    subject = where
    if FULL in text:
        return StoreFull(
            f"{where} is full and takes no writes: {text}",
            subject=subject,
            hint="Compact and defragment it, then disarm the alarm: "
            "etcdctl compact REVISION, etcdctl defrag, etcdctl alarm disarm.",
        )
    if "request is too large" in text or "larger than max" in text:
        return StoreError(
            f"{where} does not take a request of this size: {text}",
            subject=subject,
            hint="Use smaller blocks, or raise --max-request-bytes of etcd.",
        )
    if "too many operations" in text:
        return StoreError(
            f"{where} does not take as many changes at once: {text}",
            subject=subject,
            hint="Raise --max-txn-ops of etcd to its default, 128.",
        )
    if text == "UNIMPLEMENTED" or "unknown service" in text or "404" in text:
        return StoreError(
            f"what answers at {where} is no etcd of version 3: {text}", subject=subject, hint="Check ETCD_ENDPOINTS."
        )
    return StoreError(f"{where} refused to {doing.partition(' ')[0]}: {text}", subject=subject)


def _plain(text: str) -> str:
    """Return the last and most telling part of gRPC's nested words, on one line."""
    return " ".join(text.rpartition("last error: ")[2].split())[:200] or "no reason given"
