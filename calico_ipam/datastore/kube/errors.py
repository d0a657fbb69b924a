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
VERBS = {"GET": "get or list", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Expired(StoreError):
    """The revision asked for is compacted (410): list again."""


def error_of(request: Request, status: int, body: bytes, source: str) -> IPAMError:
    """Return the error for an answer with ``status``; ``source`` says where the credentials come from."""
    answer = _status(body)
    reason, text = str(answer.get("reason") or ""), _text(answer, status, body)
    if reason == "AlreadyExists":
        return AlreadyExists(request.path, text)
    if status == 404 or reason == "NotFound":
        return NotFound(request.path, text)
    if status in (401, 403):
        return _unauthorized(request, status, text, source)
    if status == 409:
        return NotFound(request.path, text) if "UID in precondition" in text else Conflict(request.path, text)
    if status == 410 or reason in ("Expired", "Gone"):
        return Expired(text, subject=request.path)
    invalid = _invalid_fields(answer)
    if invalid and invalid <= {"metadata.uid", "metadata.resourceVersion"}:
        return NotFound(request.path, text) if "metadata.uid" in invalid else Conflict(request.path, text)
    if status == 429 or status >= 500:
        if status in (500, 504) and not request.reading:
            return OutcomeUnknown(f"{request}: {text}", subject=request.path, reason=text)
        return StoreUnavailable(
            text, subject=request.path, hint="The API server is overloaded or restarting; try again."
        )
    return StoreError(text, subject=request.path)


def _unauthorized(request: Request, status: int, text: str, source: str) -> Unauthorized:
    if status == 401:
        hint = f"The credentials in {source} are expired or wrong: renew them."
    else:
        hint = f"The account in {source} may not {VERBS[request.method]} {request.path}: grant it that right."
    return Unauthorized(text, hint=hint)


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(body))
    except ValueError:
        return {}


def _text(answer: Mapping[str, Any], status: int, body: bytes) -> str:
    message = answer.get("message")
    if isinstance(message, str) and message:
        return message
    shown = body[:120].decode(errors="replace").strip()
    return f"the API server answers {status}" + (f": {shown!r}" if shown else "")


def _invalid_fields(answer: Mapping[str, Any]) -> set[str]:
    causes = mapping(answer.get("details")).get("causes")
    if not isinstance(causes, list):
        return set()
    return {str(mapping(cause).get("field")) for cause in causes}
