"""Asking the IPAM plugin: our own in this process, a foreign one by running it (cni.md §2.5).

Either way a call is a Request and its outcome a document or an error object, so that the texts a user sees do not
depend on which of the two it was.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calico_cni import gojson
from calico_cni.context import Call, Context, Finished
from calico_cni.errors import NOT_AVAILABLE, TRY_AGAIN_LATER, CNIError
from calico_cni.protocol import (
    ADD,
    CALICO,
    CALICO_IPAM,
    CHECK,
    DEL,
    GC,
    NEWEST,
    STATUS,
    VERSION,
    Request,
    declared_version,
    go_quote,
)
from calico_cni.stopping import not_undone

if TYPE_CHECKING:
    from calico_cni.results import Result
    from calico_ipam.datastore.api import Datastore

#: Seconds that another plugin may take; longer than calico-ipam's lock and deadline together.
TIMEOUT = 200.0
#: Seconds for questions that must be answered quickly.
QUICK = 10.0

_BUSY_TRIES = 6
_BUSY_PAUSE = 1.0  # seconds


class PluginStoppedError(CNIError):
    """A foreign plugin took too long and was killed; nobody knows how far it had come."""


class IPAMDelegate:
    """The IPAM plugin that a configuration names. ``store``: what our own one uses instead of opening another."""

    def __init__(self, call: Call, store: Datastore | None = None) -> None:
        self._call = call
        self._type = call.conf.ipam.type
        self._store = store

    @property
    def type(self) -> str:
        return self._type

    @property
    def ours(self) -> bool:
        """Is it calico-ipam, which runs in this process?"""
        return self._type == CALICO_IPAM

    def ask_for_addresses(self) -> str:
        """Run ADD and return what the plugin printed. Raises CNIError, the plugin's own where it told one."""
        try:
            return self._ask(self._call.request.as_verb(ADD), TIMEOUT)
        except BaseException as error:
            # It was killed half way, because it took too long or because this call was stopped.
            if not self.ours and (isinstance(error, PluginStoppedError) or not isinstance(error, Exception)):
                self.give_back(error)
            raise

    def give_back(self, cause: BaseException) -> None:
        """Let the plugin give back what it may have taken in an ADD that ``cause`` ended; a failure is a warning."""
        try:
            with self._call.context.stop.undoing():
                self.delete()
        except CNIError as error:
            self._call.log.warning("Could not give back what the IPAM plugin may have taken", error=error)
            not_undone(cause)

    def result_of(self, text: str) -> Result:
        """Return the result that the plugin printed. Raises CNIError."""
        from calico_cni.results import parse_result

        return parse_result(_document(text), declared_version(self._call.conf.document))

    def delete(self) -> None:
        """Give the addresses back; those that are gone already are fine."""
        self._ask(self._call.request.as_verb(DEL), TIMEOUT)

    def check(self) -> None:
        """Let the plugin look whether it still knows the addresses of ``prevResult``."""
        self._ask(self._call.request.as_verb(CHECK), TIMEOUT)

    def status(self) -> None:
        """Raise CNIError when the plugin could not serve an ADD now."""
        if self.ours or self._knows_newest():
            self._ask(self._call.request.as_verb(STATUS), QUICK)
            return
        raise CNIError(
            f"the IPAM plugin {go_quote(self._type)} does not support CNI {NEWEST}, so its status cannot be asked",
            f"Use a release of {self._type} that knows STATUS, or a cniVersion below {NEWEST}.",
            code=NOT_AVAILABLE,
        )

    def collect(self, document: Mapping[str, Any]) -> None:
        """Forward GC with its list of valid attachments; a plugin that does not know the verb is left out."""
        if not self.ours and not self._knows_newest():
            self._call.log.warning("The IPAM plugin does not know GC and is left out", plugin=self._type)
            return
        request = self._call.request.as_verb(GC)
        stdin = gojson.dump_compact(document).encode("utf-8", "surrogateescape")
        self._ask(Request(request.program, request.environ, stdin), TIMEOUT)

    def _knows_newest(self) -> bool:
        """Ask a foreign plugin for its versions; one that cannot answer knows none (rulings 34).

        Raises CNIError 50 when there is no such plugin.
        """
        try:
            find_plugin(self._type, self._call.request.path)
        except CNIError as error:
            raise CNIError(error.message, error.details, code=NOT_AVAILABLE) from None
        try:
            document = _document(self._ask(self._call.request.as_verb(VERSION), QUICK))
        except CNIError:
            return False
        supported = document.get("supportedVersions")
        return isinstance(supported, list) and NEWEST in supported

    def _ask(self, request: Request, timeout: float) -> str:
        """Return what the plugin printed. Raises CNIError."""
        if self.ours:
            return self._ask_ourselves(request)
        path = find_plugin(self._type, request.path)
        finished = _run(self._call.context, path, request, timeout)
        if finished.exit_code != 0:
            raise error_of(finished)
        self._call.context.note(finished.stderr)
        return finished.stdout.decode("utf-8", "replace")

    def _ask_ourselves(self, request: Request) -> str:
        from calico_cni.dispatch import handle

        context = self._call.context
        if self._store is not None:
            context = context.sharing(self._store)
        response = handle(Request(CALICO_IPAM, request.environ, request.stdin), context)
        if response.exit_code != 0:
            raise CNIError.from_document(gojson.load(response.stdout.encode()))
        return response.stdout


def find_plugin(name: str, path: list[str]) -> Path:
    """Return the first regular file of that exact name. Raises CNIError with upstream's texts."""
    if not name:
        raise CNIError("no plugin name provided", 'Set "type" in the "ipam" section of the network configuration.')
    if "/" in name:
        raise CNIError(f"invalid plugin name: {name}")
    if name == CALICO:
        # It would ask itself, and the next one itself again, until the machine has no memory left.
        raise CNIError(
            f"{go_quote(name)} wires sandboxes and is no IPAM plugin",
            f'Set "type" in the "ipam" section of the network configuration to "{CALICO_IPAM}".',
        )
    if not path:
        raise CNIError("no paths provided")
    for folder in path:
        found = Path(folder) / name
        try:
            if stat.S_ISREG(found.stat().st_mode):
                return found
        except (OSError, ValueError):
            continue
    raise CNIError(f"failed to find plugin {go_quote(name)} in path [{' '.join(path)}]")


def _run(context: Context, path: Path, request: Request, timeout: float) -> Finished:
    """Run the plugin; one that is just being replaced on disk is tried again (§2.5)."""
    for attempt in range(1, _BUSY_TRIES + 1):
        try:
            return context.run_program(path, request.environ, request.stdin, timeout)
        except TimeoutError:
            raise PluginStoppedError(
                f"netplugin failed: {path.name} did not answer within {timeout:g} s and was stopped",
                code=TRY_AGAIN_LATER,
            ) from None
        except OSError as error:
            if error.errno != errno.ETXTBSY or attempt == _BUSY_TRIES:
                text = (error.strerror or str(error)).lower()
                raise CNIError(f"netplugin failed with no error message: fork/exec {path}: {text}") from None
            context.clock.sleep(_BUSY_PAUSE)
    raise AssertionError("unreachable")


def error_of(finished: Finished) -> CNIError:
    """Return the error that a plugin printed, or one that tells how it ended."""
    stdout = finished.stdout
    if not stdout:
        ended = _ending(finished.exit_code)
        stderr = finished.stderr.decode("utf-8", "replace")
        if stderr:
            return CNIError(f"netplugin failed: {go_quote(stderr)}: {ended}")
        return CNIError(f"netplugin failed with no error message: {ended}")
    try:
        document = gojson.load(stdout)
        if document is not None and not isinstance(document, Mapping):
            raise gojson.cannot(document, "value", "types.Error")
    except gojson.GoJSONError as error:
        shown = go_quote(stdout.decode("utf-8", "replace"))
        return CNIError(f"netplugin failed but error parsing its diagnostic message {shown}: {error}", code=0)
    return CNIError.from_document(document or {})


def _ending(exit_code: int) -> str:
    """Return how a program ended, in Go's words."""
    if exit_code >= 0:
        return f"exit status {exit_code}"
    import signal

    try:
        text = (signal.strsignal(-exit_code) or "").lower()
    except ValueError:
        text = ""
    return f"signal: {text or -exit_code}"


def _document(text: str) -> Mapping[str, Any]:
    """Return the object that a plugin printed; ``null`` counts as an empty one."""
    try:
        document = gojson.load(text.encode())
        if document is not None and not isinstance(document, Mapping):
            raise gojson.cannot(document, "value", 'struct { CNIVersion string "json:\\"cniVersion\\"" }')
    except gojson.GoJSONError as error:
        raise CNIError(f"decoding version from network config: {error}") from None
    return document or {}
