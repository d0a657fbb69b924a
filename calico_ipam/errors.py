"""Every error that calico_ipam raises, in one tree.

::

    IPAMError
    ├── TransientError               the same call may succeed; retried inside, surfaces when patience ends
    │   ├── StoreUnavailable         the datastore did not answer
    │   ├── DeadlineExceeded         the caller's time is over
    │   ├── RetriesExhausted         100 lost races in a row
    │   └── Conflict                 a compare-and-swap lost: read again, decide again
    ├── RefusedError                 told to the user: the object, the rule and the way out
    │   ├── NotFound
    │   ├── AlreadyExists
    │   ├── InvalidInput
    │   │   └── InvalidSize          a CIDR smaller than a block
    │   ├── NotSupported
    │   ├── Unauthorized
    │   ├── StoreError               the datastore answered with an error of its own
    │   │   └── StoreDamaged         a store, or a document in it, that cannot be read
    │   ├── NotConfigured            no datastore, or one that this installation lacks
    │   ├── NoQualifiedPool
    │   ├── BlockLimitReached
    │   ├── MaxAllocReached
    │   ├── NameTaken                another object has the name that this one would be stored under
    │   ├── BlockNotEmpty
    │   ├── AddressInCooldown
    │   ├── AlternateOwnerEmpty, AlternateOwnerMismatch
    │   └── (internal steering) NoFreeBlocks, BlockClaimConflict, StaleAffinity,
    │                              BlockOwnerMismatch
    ├── StaleError                   what the caller knew is no longer true: look again before deciding again
    │   ├── BadSequenceNumber
    │   ├── BadHandle
    │   └── OwnerMismatch
    └── OutcomeUnknown               a write may have happened; only reading tells

``str(error)`` is upstream's text where upstream has one, because scripts and kubelet's logs know it.
``error.hint`` is one sentence that says what to do; it is shown beside the text, never instead of it.
"""

from __future__ import annotations

from typing import Any


class IPAMError(Exception):
    """Root of the tree.

    ``subject`` names the object concerned (a key, an address, a pool), ``reason`` the rule, ``hint`` the way out.
    ``partial``: what a call about several addresses had done before it failed, in the type that it returns; else None.
    """

    partial: Any = None

    def __init__(self, message: str, *, subject: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return self.message


# --- transient ---------------------------------------------------------------------------------------------


class TransientError(IPAMError):
    """The same call may succeed a moment later."""


class StoreUnavailable(TransientError):
    """The datastore did not answer."""


class DeadlineExceeded(TransientError):
    """The caller's time is over. Nothing is known to be half done."""


class RetriesExhausted(TransientError):
    """One hundred compare-and-swap attempts lost in a row (ipam-library §3)."""

    def __init__(self, message: str = "Max retries hit - excessive concurrent IPAM requests") -> None:
        super().__init__(
            message, hint="Try again; if it persists, look for a program that rewrites this object in a loop."
        )


class Conflict(TransientError):
    """A compare-and-swap lost: the stored revision is not the one that was read (datastore §6)."""

    def __init__(self, subject: str, reason: str = "") -> None:
        super().__init__(f"update conflict: {subject}", subject=subject, reason=reason)


# --- refused -----------------------------------------------------------------------------------------------


class RefusedError(IPAMError):
    """The request cannot be done as asked."""


class NotFound(RefusedError):
    """The object does not exist (datastore §6 not-exist)."""

    def __init__(self, subject: str, reason: str = "", *, hint: str = "") -> None:
        super().__init__(
            f"resource does not exist: {subject} with error: {reason or '<nil>'}",
            subject=subject,
            reason=reason,
            hint=hint,
        )


class AlreadyExists(RefusedError):
    """The object, or the allocation of an address, is already there (datastore §6 already-exists)."""

    def __init__(self, subject: str, reason: str = "", *, hint: str = "") -> None:
        super().__init__(
            f"resource already exists: {subject} with error: {reason or '<nil>'}",
            subject=subject,
            reason=reason,
            hint=hint,
        )


class InvalidInput(RefusedError):
    """An argument, setting or document breaks a rule. Nothing was written."""


class InvalidSize(InvalidInput):
    """A CIDR is smaller than one block of its pool."""


class NotSupported(RefusedError):
    """The datastore does not offer the operation."""

    def __init__(self, operation: str, subject: str, reason: str = "", *, hint: str = "") -> None:
        tail = f": {reason}" if reason else ""
        text = f"operation {operation} is not supported on {subject}{tail}"
        super().__init__(text, subject=subject, reason=reason, hint=hint)


class Unauthorized(RefusedError):
    """The datastore refuses our credentials, or they lack a right."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(f"connection is unauthorized: {reason}", reason=reason, hint=hint)


class StoreError(RefusedError):
    """The datastore answered with an error of its own; repeating the call will not help."""


class StoreDamaged(StoreError):
    """A store file, or a document in it, cannot be read. It is never overwritten."""


class NotConfigured(RefusedError):
    """No datastore is configured, or the one asked for is not part of this installation."""


class NameTaken(RefusedError):
    """Another object already has the name that this one would be stored under in the Kubernetes API.

    Names of handles lose the difference of upper and lower case, names of affinities the kind of owner
    (datastore §14.6, §14.8).
    """

    def __init__(self, subject: str, holder: str, name: str) -> None:
        super().__init__(
            f"{subject} cannot be stored: {holder} has the same object name {name}",
            subject=subject,
            reason="two objects cannot share a name",
            hint=f"Release {holder} first, or use a name that differs in more than upper and lower case.",
        )
        self.holder = holder


class NoQualifiedPool(RefusedError):
    """No enabled pool of the family, or none for the intended use (ipam-library §6.3, §11.2)."""

    def __init__(self, detail: str = "", *, hint: str = "") -> None:
        tail = f", {detail}" if detail else ""
        super().__init__(f"cannot find a qualified ippool{tail}", reason=detail, hint=hint)


class BlockLimitReached(RefusedError):
    """The host owns as many blocks as it may (ipam-library §11.3)."""

    def __init__(self, *, hint: str = "") -> None:
        super().__init__("cannot allocate new block due to per host block limit", hint=hint)


class MaxAllocReached(RefusedError):
    """The handle holds as many addresses as its cap allows (ipam-library §9)."""

    def __init__(self, handle: str, current: int, cap: int) -> None:
        super().__init__(
            f"handle {handle} already has {current} allocation(s), cannot allocate more (maxAlloc={cap})",
            subject=handle,
        )
        self.handle = handle
        self.current = current
        self.cap = cap


class BlockNotEmpty(RefusedError):
    """The block still holds addresses and the caller asked for an empty one."""

    def __init__(self, cidr: str) -> None:
        super().__init__(f"block '{cidr}' is not empty", subject=cidr, hint="Release its addresses first.")


class AddressInCooldown(RefusedError):
    """The address was released a moment ago and is neither owned nor free yet (ipam-library §8.2)."""

    def __init__(self, address: str) -> None:
        super().__init__(f"address {address} is in cooldown", subject=address)


class AlternateOwnerEmpty(RefusedError):
    """A migration target was to be promoted, but no alternate owner is recorded (ipam-library §15.3)."""

    def __init__(self, detail: str = "", *, subject: str = "") -> None:
        super().__init__(f"AlternateOwnerAttrs is empty{detail}", subject=subject, reason=detail)


class AlternateOwnerMismatch(RefusedError):
    """A migration target was to be promoted, but the alternate owner is another pod (ipam-library §15.3)."""

    def __init__(self, detail: str = "", *, subject: str = "") -> None:
        text = f"AlternateOwnerAttrs doesn't match expected target owner{detail}"
        super().__init__(text, subject=subject, reason=detail)


class NoFreeBlocks(RefusedError):
    """Internal steering: every pool was searched and no block is free or reclaimable."""

    def __init__(self) -> None:
        super().__init__("No Free Blocks")


class BlockClaimConflict(RefusedError):
    """Internal steering: somebody else owns the block. ``block``: its entry in the store, where it was read."""

    def __init__(self, cidr: str, affinity: str | None, block: Any = None) -> None:
        tail = f" by {affinity}" if affinity else ""
        super().__init__(f"{cidr} already claimed{tail}", subject=cidr)
        self.affinity = affinity
        self.block = block


class StaleAffinity(RefusedError):
    """Internal steering: an affinity row names a block that belongs to somebody else."""


class BlockOwnerMismatch(RefusedError):
    """Internal steering: under strict affinity, the block is not the host's own."""


# --- stale -------------------------------------------------------------------------------------------------


class StaleError(IPAMError):
    """What the caller knew is no longer true. Look again before you decide again; never force."""


class BadSequenceNumber(StaleError):
    """The allocation was made again since the caller looked (ipam-library §8.7)."""

    def __init__(self, requested: int, expected: int, *, subject: str = "") -> None:
        super().__init__(
            f"the given sequence number ({requested}) does not match ({expected}) when attempting to release IP",
            subject=subject,
            hint="The address was released or assigned again since you looked: read its holder again.",
        )
        self.requested = requested
        self.expected = expected


class BadHandle(StaleError):
    """The address belongs to another handle than the caller believes (ipam-library §8.7)."""

    def __init__(self, requested: str, expected: str, *, subject: str = "") -> None:
        super().__init__(
            f"the given handle ({requested}) does not match ({expected}) when attempting to release IP",
            subject=subject,
            hint="The address has another holder now: read it again before you release it.",
        )
        self.requested = requested
        self.expected = expected


class OwnerMismatch(StaleError):
    """A precondition on the owner attributes of an address failed (ipam-library §15.2)."""


# --- unknown -----------------------------------------------------------------------------------------------


class OutcomeUnknown(IPAMError):
    """The answer to a write was lost: it may have happened. Neither retry nor undo before a re-read tells."""
