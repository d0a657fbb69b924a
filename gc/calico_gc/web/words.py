"""What people read: durations, times, reasons in a sentence, states by name."""

from __future__ import annotations

from calico_gc import suspicion as reasons
from calico_ipam.model.timestamps import SECOND, format_time

#: why an address looks leaked -> the sentence for it (docs/gc.md explains each)
SENTENCES = {
    reasons.POD_NOT_FOUND: "the pod it was given to does not exist",
    reasons.POD_MOVED: "its pod runs on another node and does not report it",
    reasons.POD_FINISHED: "its pod has ended",
    reasons.IP_MISMATCH: "its pod exists and reports other addresses",
    reasons.VM_GONE: "neither the virtual machine nor a standalone instance exists",
    reasons.NODE_GONE: "node and pod are both gone",
    reasons.TUNNEL_NODE_GONE: "it is a tunnel address of a node that is gone",
    reasons.CONTAINER_GONE: "no runtime knows the container and no process uses the address",
}
#: kind of an action -> what was done, in words
DEEDS = {
    "release": "released address",
    "thaw": "freed cooled-down addresses of",
    "release-block": "released empty block",
    "release-node": "released all blocks of node",
    "delete-node": "deleted Calico node",
    "labels": "copied labels to",
    "handles": "work on handles:",
    "handles-deleted": "deleted",
    "handles-repaired": "repaired",
}
#: kind of an action that failed -> what was tried, in words
ATTEMPTS = {
    "release": "releasing addresses of block",
    "thaw": "freeing cooled-down addresses of block",
    "give-back": "releasing empty block",
    "node": "releasing all blocks of node",
    "delete-node": "deleting Calico node",
    "labels": "copying labels",
    "handles": "the work on handles:",
    "look": "asking about node",
}
#: kind of a finding -> what it means
REMARKS = {
    "node-mismatch": "used by a pod on another node than IPAM has noted; kept",
    "finished-without-address": "its pod ended without ever reporting an address; kept",
    "in-use-on-gone-node": "keeps a node that is gone from being cleaned up",
    "held": "looks leaked, but its handle has another address in use; kept",
    "nameless": "no handle or no node is noted for them; kept, unless --nameless-addresses proves them leaked",
    "machine-gone": "its virtual machine is gone; kept, and in the way of one of that name",
    "damaged": "cannot be read; all of it counts as in use",
    "failing": "tried again with growing pauses, after ten failures with the next full scan",
    "no-affinity-row": "block and affinity disagree; kept",
    "node-not-released": "a node that is gone could not be cleaned up yet",
}
#: longest identifier that is shown as it is
LONG = 40
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Return a time span as people say it, in at most two units: ``45 s``, ``7 min 30 s``, ``3 d 4 h``."""
    left = max(0, round(seconds))
    for position, (size, unit) in enumerate(_STEPS):
        if left >= size:
            text = f"{left // size} {unit}"
            if position + 1 < len(_STEPS):
                smaller, name = _STEPS[position + 1]
                rest = left % size // smaller
                return f"{text} {rest} {name}" if rest else text
            return text
    return "0 s"


def ago(then: int, now: int) -> str:
    """Return the age of a moment; both are Unix nanoseconds."""
    return duration((now - then) / SECOND)


def clock_time(wall: int) -> str:
    """Return a moment (Unix nanoseconds) for people, in UTC; whoever shows it says that it is UTC."""
    return format_time(wall).replace("T", " ").removesuffix("Z")


def short(text: str) -> str:
    """Return a long identifier by its beginning and its end."""
    return text if len(text) <= LONG else f"{text[:26]}\N{HORIZONTAL ELLIPSIS}{text[-8:]}"


def sentence(reason: str) -> str:
    return SENTENCES.get(reason, reason)


def deed(kind: str) -> str:
    return DEEDS.get(kind, kind.replace("-", " "))


def attempt(kind: str) -> str:
    return ATTEMPTS.get(kind, kind.replace("-", " "))


def remark(kind: str) -> str:
    return REMARKS.get(kind, kind.replace("-", " "))


def count(number: int) -> str:
    """Return a number with thin spaces between thousands; huge ones as a power of two."""
    if number >= 1 << 40 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return f"{number:,}".replace(",", "\N{THIN SPACE}")


def share(part: int, whole: int) -> str:
    """Return a share in percent; what is not nothing never reads as 0 %."""
    if not whole:
        return "\N{EN DASH}"
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"
