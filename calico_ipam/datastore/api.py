"""The contract every datastore keeps (design §4, rulings 14).

One consistent ``read``, one all-or-nothing ``commit`` (where ``capabilities.atomic`` says so), one ``watch``.
Values are the frozen values of :mod:`calico_ipam.model`; a value that was read is never changed in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, TypeVar

from calico_ipam.errors import AlreadyExists, Conflict, DeadlineExceeded, IPAMError, NotFound, StoreDamaged
from calico_ipam.model.addresses import Network
from calico_ipam.model.keys import AffinityKey, BlockKey, Key, Scope

if TYPE_CHECKING:
    # A verb pays for the kinds of value that it reads; making their classes takes longer than reading them.
    from calico_ipam.model.affinity import Affinity
    from calico_ipam.model.block import Block
    from calico_ipam.model.config import IPAMConfig
    from calico_ipam.model.handle import Handle
    from calico_ipam.model.resource import Resource

Value: TypeAlias = "Block | Affinity | Handle | IPAMConfig | Resource"
Revision = str


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock (seconds) after which nobody waits any more."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self, doing: str) -> None:
        """Raise DeadlineExceeded when the time is over."""
        if self.remaining() <= 0:
            raise DeadlineExceeded(f"out of time while {doing}", hint="Try again; the datastore may be slow or busy.")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it was read: what, which value, at which revision.

    ``origin`` belongs to the backend (the whole custom resource, the exact stored text); it lets a rewrite keep what
    this library does not know. Nobody else looks at it.
    """

    key: Key
    value: Any
    revision: Revision
    uid: str = ""
    origin: Any = field(default=None, repr=False, compare=False)

    @property
    def cidr(self) -> Network:
        """The CIDR of a block or of an affinity row. Raises TypeError for other objects."""
        if isinstance(self.key, BlockKey | AffinityKey):
            return self.key.cidr
        raise TypeError(f"{self.key} has no CIDR")

    @property
    def affinity(self) -> str | None:
        """Who a block belongs to, as the block says it: ``host:node-1``. In a recent list None may mean: not told."""
        found: str | None = self.value.affinity
        return found


@dataclass(frozen=True, slots=True)
class Damaged:
    """An object that exists but cannot be understood: its place is taken, its content is nobody's to guess."""

    key: Key | None
    path: str
    reason: str
    text: str = field(default="", repr=False)
    revision: Revision = ""  #: lets a repair remove exactly what was seen


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries of a scope in the backend's key order, what could not be understood, and a revision to watch from."""

    entries: tuple[Entry, ...]
    revision: Revision
    damaged: tuple[Damaged, ...] = ()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Snapshot:
    """The answers of one consistent ``read``, looked up by the key or scope that was asked for."""

    __slots__ = ("_answers", "_words", "revision")

    def __init__(
        self,
        answers: dict[Key | Scope, Entry | Damaged | Listing | None],
        revision: Revision,
        words: Callable[[Key], NotFound] | None = None,
    ) -> None:
        self._answers = answers
        self._words = words
        self.revision = revision

    def entry(self, key: Key) -> Entry | None:
        """Return the entry, or None when the object does not exist. Raises StoreDamaged for one that cannot be read."""
        answer = self._answers[key]
        if isinstance(answer, Damaged):
            raise damaged_error(answer)
        assert answer is None or isinstance(answer, Entry)  # noqa: S101  # a key answers with an entry, by construction
        return answer

    def __contains__(self, asked: Key | Scope) -> bool:
        """Tell whether this read asked for it."""
        return asked in self._answers

    def with_more(self, more: Snapshot) -> Snapshot:
        """Return the answers of both reads; not of one moment any more."""
        return Snapshot({**self._answers, **more._answers}, self.revision, self._words)

    def missing(self, key: Key) -> NotFound:
        """Return the error for an object that this read did not find, in the words of the backend."""
        return NotFound(str(key)) if self._words is None else self._words(key)

    def listing(self, scope: Scope) -> Listing:
        answer = self._answers[scope]
        assert isinstance(answer, Listing)  # noqa: S101  # a scope answers with a listing, by construction
        return answer


@dataclass(frozen=True, slots=True)
class Create:
    """Write ``value`` if nothing is stored under ``key``."""

    key: Key
    value: Value


@dataclass(frozen=True, slots=True)
class Update:
    """Replace what ``entry`` was read as by ``value`` if it is still at that revision."""

    entry: Entry
    value: Value

    @property
    def key(self) -> Key:
        return self.entry.key


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove what ``entry`` was read as if it is still at that revision."""

    entry: Entry

    @property
    def key(self) -> Key:
        return self.entry.key


Write = Create | Update | Delete


@dataclass(frozen=True, slots=True)
class Event:
    """A change seen by ``watch``. ``entry`` is the new state, or for a delete the last one known."""

    kind: Literal["added", "modified", "deleted", "bookmark", "damaged"]
    revision: Revision
    entry: Entry | None = None
    damaged: Damaged | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond the contract.

    ``atomic``: a commit of several writes happens as a whole or not at all. Elsewhere writes go one by one in the
    order given, and the error of a later one carries what was ``applied``. ``endpoints_are_pods``: workload endpoints
    are not stored but derived from the pods of Kubernetes, and writing one annotates its pod (datastore §9).
    ``snapshot_reads``: a read of many things is one request, and of one moment; elsewhere each thing costs a request of
    its own, so what is hardly ever needed is better read when it is.
    """

    atomic: bool
    endpoints_are_pods: bool = False
    snapshot_reads: bool = True


class Datastore(Protocol):
    """A store of Calico's data. Safe to share between threads; not across ``fork``.

    Any operation may raise StoreUnavailable, DeadlineExceeded, Unauthorized, StoreError. A write whose answer was lost
    raises OutcomeUnknown.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def name(self) -> str:
        """Where the data is, for people: ``sqlite:///var/lib/calico/ipam/ipam.db``. Never a secret."""

    def get(self, key: Key) -> Entry:
        """Return one object. Raises NotFound, StoreDamaged."""

    def list(self, scope: Scope) -> Listing:
        """Return the objects of a scope; an empty scope is no error."""

    def read(self, *wanted: Key | Scope) -> Snapshot:
        """Return many objects and scopes as they are at one moment (on the Kubernetes API: side by side)."""

    def commit(self, *writes: Write) -> Sequence[Entry]:
        """Do the writes; return each object with its new revision, for a delete the entry that was removed.

        Raises Conflict, AlreadyExists or NotFound; see :func:`lost` for which write lost.
        """

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        """Yield changes after ``since``, for ever: resumes after interruptions, lists again after compaction.

        Without a revision it begins with what is there, told as added, and a bookmark. What a list tells may have no
        revision: whoever goes on must begin with the list again, or behind the bookmark.

        What was missed is told from a new list, deletions included, and a bookmark ends it. Only a watch that *begins*
        at a revision the store no longer remembers cannot know what was deleted before: it tells every object as added.

        Closing the iterator ends the watch.
        """

    def within(self, deadline: Deadline | None) -> Datastore:
        """Return a view of the same store whose calls end by ``deadline``."""

    def upgrade(self, host: str) -> None:  # noqa: ARG002  # for the stores that have something to do
        """Bring what older releases stored for ``host`` into today's form; most stores have nothing to do."""
        return

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Loss:
    """Which write of a commit lost, and what had been done before it."""

    write: Write
    applied: tuple[Entry, ...] = ()
    existing: Entry | None = None  #: what is stored instead, where the backend knows


def lost(error: IPAMError) -> Loss | None:
    """Return the loss that a commit's error carries, or None when it did not come from a commit."""
    found = getattr(error, "loss", None)
    return found if isinstance(found, Loss) else None


ErrorT = TypeVar("ErrorT", bound=IPAMError)


def losing(error: ErrorT, loss: Loss) -> ErrorT:
    """Attach a loss to an error; for backends and store wrappers."""
    error.loss = loss  # type: ignore[attr-defined]  # carried for lost(); the tree itself does not know of stores
    return error


def damaged_error(damaged: Damaged) -> IPAMError:
    """Return the error that names a damaged object."""
    return StoreDamaged(
        f"failed to parse datastore entry key={damaged.path}; value={damaged.text}: {damaged.reason}",
        subject=damaged.path,
        reason=damaged.reason,
        hint="Repair or remove this object by hand; it is treated as in use until then.",
    )


def refusal(write: Write, stored: Entry | None) -> IPAMError:
    """Return the error for a write that lost against ``stored`` (None: nothing is stored)."""
    subject = str(write.key)
    if isinstance(write, Create):
        return AlreadyExists(subject)
    return NotFound(subject) if stored is None else Conflict(subject)
