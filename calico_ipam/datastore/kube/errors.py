"""Answers of the API server that say no, as errors of ours (datastore §6: the first rule that fits wins)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    IPAMError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Unauthorized,
)
from calico_ipam.model.resource import mapping

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.api import Request

#: HTTP method -> verb of a role
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


#: how the API server says that no definition serves a path; any other page that is not found is somebody else's, and
#: taking that for "nothing is stored" would hand out addresses twice
NO_SUCH_COLLECTION = b"404 page not found"


#: how the API server says that a revision is ahead of its history
TOO_LARGE = b"ResourceVersionTooLarge"


class NotServed(NotFound):
    """The server knows no such path. An object may be there all the same: some other program may have answered."""


class Expired(StoreError):
    """The revision asked for is compacted or not reached yet, or the token of a page is too old: list again."""


def error_of(request: Request, status: int, headers: Mapping[str, str], body: bytes, source: str) -> IPAMError:
    """Return the error for an answer with ``status``; ``source`` says where the credentials come from."""
    answer = _status(body)
    reason, text = str(answer.get("reason") or ""), _text(answer, status, body)
    if reason == "AlreadyExists":
        return AlreadyExists(request.path, text)
    if reason == "NotFound":
        return NotFound(request.path, text)
    if status == 404 and body.strip() == NO_SUCH_COLLECTION:
        return NotServed(request.path, text)
    if status in (401, 403):
        return _unauthorized(request, status, text, source)
    if status == 409:
        return NotFound(request.path, text) if "UID in precondition" in text else Conflict(request.path, text)
    if history_gone(answer) or status == 410:
        return Expired(text, subject=request.path)
    invalid = _invalid_fields(answer)
    if invalid and invalid <= {"metadata.uid", "metadata.resourceVersion"}:
        return NotFound(request.path, text) if "metadata.uid" in invalid else Conflict(request.path, text)
    if status == 429 or status >= 500:
        return _failing(request, status, headers, text)
    return StoreError(text, subject=request.path, reason=reason)


def worded(error: IPAMError, subject: str) -> IPAMError:
    """Return the error of a write that names the object by its key instead of by its path, as every backend does."""
    match error:
        case AlreadyExists(reason=reason):
            return AlreadyExists(subject, reason)
        case NotFound(reason=reason):
            return NotFound(subject, reason)
        case Conflict(reason=reason):
            return Conflict(subject, reason)
        case OutcomeUnknown():
            error.subject = subject
    return error


def _failing(request: Request, status: int, headers: Mapping[str, str], text: str) -> IPAMError:
    """A server that cannot: whether a write was begun is known only where it asks to be asked again."""
    refused = status == 429 or (status == 503 and "Retry-After" in headers)
    if request.reading or refused:
        hint = "The API server is overloaded or restarting; try again."
        return StoreUnavailable(text, subject=request.path, hint=hint)
    return OutcomeUnknown(
        f"{request}: {text}",
        subject=request.path,
        reason=text,
        hint="The write may have happened; reading tells.",
    )


def _unauthorized(request: Request, status: int, text: str, source: str) -> Unauthorized:
    verb, what = request.verb or VERBS[request.method], _resource(request.path)
    if status == 401:
        hint = f"The credentials in {source} are expired or wrong (asked to {verb} {what}): renew them."
    else:
        hint = f"The account in {source} lacks the right to {verb} {what}: add it to the account's role."
    return Unauthorized(text, hint=hint)


def _resource(path: str) -> str:
    """Return resource and API group of a path as a role writes them: ``pods/status in API group ""``."""
    parts = [part for part in path.split("/") if part]
    group, parts = (parts[1], parts[3:]) if parts[0] == "apis" and len(parts) > 3 else ("", parts[2:])
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    if not parts:
        return path
    name = "/".join([parts[0], *parts[2:3]])
    return f'{name} in API group "{group}"'


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(body))
    except ValueError:
        return {}


def _text(answer: Mapping[str, Any], status: int, body: bytes) -> str:
    message = answer.get("message")
    if isinstance(message, str) and message:
        return message
    shown = " ".join(body[:120].decode(errors="replace").split())
    return f"the API server answers {status}" + (f": {shown!r}" if shown else "")


def history_gone(answer: Mapping[str, Any]) -> bool:
    """Tell whether a Status says that the server has no history at the revision asked for (datastore §7).

    One that is too large is of another history: the server was restored from a backup.
    """
    expired = answer.get("code") == 410 or answer.get("reason") in ("Expired", "Gone")
    return expired or any(cause.get("reason") == TOO_LARGE.decode() for cause in _causes(answer))


def _invalid_fields(answer: Mapping[str, Any]) -> set[str]:
    return {str(cause.get("field")) for cause in _causes(answer)}


def _causes(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    causes = mapping(answer.get("details")).get("causes")
    return [mapping(cause) for cause in causes] if isinstance(causes, list) else []
