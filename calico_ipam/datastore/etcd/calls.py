"""One request to etcd: within the deadline, on whichever member answers, with a valid token."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.etcd.diagnosis import diagnosed
from calico_ipam.datastore.etcd.endpoints import Endpoint
from calico_ipam.datastore.etcd.failures import Failure, Meaning, authentication_is_off, failure_of, refusal_of
from calico_ipam.datastore.etcd.identity import Identity
from calico_ipam.datastore.etcd.library import Library
from calico_ipam.datastore.etcd.links import Link, Links
from calico_ipam.datastore.etcd.patience import Patience
from calico_ipam.errors import DeadlineExceeded, IPAMError, OutcomeUnknown, StoreUnavailable

log = logging.getLogger(__name__)

#: (connection, seconds, metadata) -> answer; may raise grpc.RpcError
Work = Callable[[Link, float, Any], Any]

FIRST_PAUSE = 0.05  # seconds, after every member has been asked once; doubled from round to round
LONGEST_PAUSE = 0.5
SHORTEST_TRY = 0.5  # seconds that a member gets even when there are many, if the deadline allows
MOST_LOGINS = 3


class Gone(Exception):
    """The revision that was asked for has been compacted, or the store has not come to it."""


class Calls:
    """Requests on the connections of a store. ``user`` and ``password``: both or neither are used (datastore §4)."""

    def __init__(
        self, library: Library, links: Links, identity: Identity, patience: Patience, user: str, password: str
    ) -> None:
        self.links = links
        self.patience = patience
        self.user = user if password else ""
        self._password = password
        self._identity = identity
        self._library = library

    def ask(self, work: Work, deadline: Deadline | None, doing: str = "read from") -> Any:
        """Do a request that changes nothing; a member that fails or hangs is left for the next one.

        Raises Gone, StoreUnavailable, DeadlineExceeded, Unauthorized, StoreError.
        """
        tries = Tries(self, deadline, doing)
        while True:
            with self.links.link() as link:
                try:
                    return self._do(link, work, tries.share())
                except self._library.grpc.RpcError as error:
                    tries.failed(link, failure_of(error))
            tries.pause()

    def tell(self, work: Work, deadline: Deadline | None) -> Any:
        """Do a write: at most one member gets it. Raises OutcomeUnknown when it may have been done."""
        tries = Tries(self, deadline, "write to")
        while True:
            with self.links.link() as link:
                proven = time.monotonic() - link.answered < self.patience.keepalive
                if proven:
                    try:
                        return self._do(link, work, tries.remaining())
                    except self._library.grpc.RpcError as error:
                        failure = failure_of(error)
                        if failure.meaning is Meaning.UNSURE:
                            self.links.leave(link)
                            raise self._unknown(link, failure) from error
                        tries.failed(link, failure)
            if proven:
                tries.pause()
            else:
                # What hangs on a connection that does not work was probably never sent, but nobody can tell. So a
                # connection that is fresh or was long idle carries a harmless request first.
                self.ask(self._prove, deadline, "write to")

    def settle(self, deadline: Deadline | None) -> None:
        """Make sure that the preferred member answers us. Raises as :meth:`ask`."""
        self.ask(self._prove, deadline, "connect to")

    def _do(self, link: Link, work: Work, seconds: float) -> Any:
        until = Deadline.after(seconds)
        try:
            if self.user and link.token is None:
                self._log_in(link, until)
            answer = work(link, until.remaining(), link.metadata())
        except ValueError:
            self.links.check_open()  # gRPC's word for a channel that was closed in this moment
            raise
        link.answered = time.monotonic()
        return answer

    def _prove(self, link: Link, seconds: float, metadata: Any) -> None:
        try:
            link.status(self._library.message("StatusRequest")(), timeout=seconds, metadata=metadata)
        except self._library.grpc.RpcError as error:
            if failure_of(error).meaning in (Meaning.UNSENT, Meaning.UNSURE):
                raise
            # Refused is answered.

    def _log_in(self, link: Link, until: Deadline) -> None:
        """Get a token. It lives five minutes after its last use by default, and not beyond a restart of the member."""
        if not link.login.acquire(timeout=until.remaining()):
            return  # somebody else's login takes all our time, and the request has none left
        try:
            if link.token is not None:
                return
            request = self._library.message("AuthenticateRequest")(name=self.user, password=self._password)
            try:
                link.token = link.authenticate(request, timeout=until.remaining()).token
            except self._library.grpc.RpcError as error:
                if not authentication_is_off(error):
                    raise
                link.token = ""
        finally:
            link.login.release()

    def _unknown(self, link: Link, failure: Failure) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"cannot tell whether the last write to {self.links.cluster} was done: {link.endpoint} {failure.short}",
            subject=str(self.links.cluster),
            hint="Read again before you repeat or undo it.",
        )

    def refusal(self, failure: Failure, doing: str) -> IPAMError:
        return refusal_of(failure, str(self.links.cluster), self.user, doing)

    def explained(self, endpoint: Endpoint, failure: Failure, seconds: float) -> tuple[str, IPAMError | None]:
        """Return what is wrong with an endpoint, and the error if nothing but a change of settings will help."""
        return diagnosed(endpoint, self.links.cluster.secure, self._identity, failure, seconds)


class Tries:
    """The tries of one request, until one is answered or patience ends."""

    def __init__(self, calls: Calls, deadline: Deadline | None, doing: str) -> None:
        if deadline is not None:
            deadline.check(f"about to {doing} {calls.links.cluster}")
        self._calls = calls
        self._doing = doing
        self._callers = deadline
        patience = Deadline.after(calls.patience.request)
        self.deadline = patience if deadline is None or patience.at < deadline.at else deadline
        self._connecting = Deadline.after(calls.patience.connect)
        self._seen: dict[Endpoint, Failure] = {}
        self._asked = 0
        self._logins = 0
        self._wait = 0.0

    def remaining(self) -> float:
        return self.deadline.remaining()

    def share(self) -> float:
        """Return the seconds of the next try, so that each member, and the first one again, gets its turn."""
        left = self.remaining()
        turns = max(1, len(self._calls.links.cluster.endpoints) + 1 - self._asked)
        return min(left, max(SHORTEST_TRY, left / turns))

    def failed(self, link: Link, failure: Failure) -> None:
        """Note a failure; returns if another try is due. Raises the error of the request otherwise."""
        calls = self._calls
        if failure.meaning is Meaning.GONE:
            raise Gone(failure.text) from None
        if failure.meaning is Meaning.TOKEN or (calls.user and failure.anonymous):
            self._logins += 1
            if self._logins <= MOST_LOGINS:
                link.forget(link.token)
                self._wait = FIRST_PAUSE * (self._logins - 1)
                return
        if failure.meaning is not Meaning.UNSENT and failure.meaning is not Meaning.UNSURE:
            raise calls.refusal(failure, self._doing)
        calls.links.leave(link)
        if calls.links.closed.is_set():
            raise StoreUnavailable(f"the datastore {calls.links.cluster} was closed meanwhile") from None
        log.debug("etcd member %s %s", link.endpoint, failure.short)
        self._seen[link.endpoint] = failure
        self._asked += 1
        members = len(calls.links.cluster.endpoints)
        if self._over(members):
            raise self._final()
        rounds, position = divmod(self._asked, members)
        self._wait = 0.0 if position else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (rounds - 1))

    def pause(self) -> None:
        """Wait before the next try, if every member has been asked."""
        time.sleep(min(self._wait, self.remaining()))

    def _over(self, members: int) -> bool:
        if self.remaining() <= self._wait:
            return True
        all_seen = list(self._seen.values()) if len(self._seen) == members else []
        if all_seen and all(failure.tls for failure in all_seen):
            return True
        return (
            bool(all_seen)
            and all(failure.unreachable for failure in all_seen)
            and (self._connecting.remaining() <= 0 and self._asked >= 2 * members)
        )

    def _final(self) -> IPAMError:
        cluster = self._calls.links.cluster
        seconds = min(2.0, self.remaining()) if self._callers is None else min(2.0, self._callers.remaining())
        told: list[str] = []
        lasting: list[IPAMError] = []
        for endpoint, failure in self._seen.items():
            words, error = self._calls.explained(endpoint, failure, seconds / len(self._seen))
            told.append(words)
            if error is not None:
                lasting.append(error)
        if lasting and len(lasting) == len(self._seen):
            return lasting[0]
        text = f"cannot {self._doing} the datastore {cluster}: {'; '.join(told)}"
        hint = "Check that etcd runs and that ETCD_ENDPOINTS and the network lead to it: etcdctl endpoint health."
        if self._callers is not None and self._callers.remaining() <= 0:
            return DeadlineExceeded(f"out of time: {text}", subject=str(cluster), hint=hint)
        return StoreUnavailable(text, subject=str(cluster), hint=hint)
