"""CNI error objects, and which code an error of the library gets (cni.md §2.4).

The table below is the only place where a class of error becomes a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calico_ipam import errors as library

INCOMPATIBLE_VERSION = 1
BAD_ENVIRONMENT = 4
IO_FAILURE = 5
UNDECODABLE = 6
BAD_NETCONF = 7
BAD_NETNS = 8
TRY_AGAIN_LATER = 11
NOT_AVAILABLE = 50
LIMITED_CONNECTIVITY = 51
CONNECTION_TEST = 100
INTERNAL = 999

#: Classes of the library's errors, most specific first, and their code. Whatever is not listed is 999, upstream's code
#: for every ordinary failure; 11 tells the runtime that the same call may succeed later (cni.md §15.10).
CODES: tuple[tuple[type[library.IPAMError], int], ...] = (
    (library.StoreUnavailable, TRY_AGAIN_LATER),
    (library.DeadlineExceeded, TRY_AGAIN_LATER),
    (library.OutcomeUnknown, TRY_AGAIN_LATER),
    (library.RetriesExhausted, INTERNAL),
    (library.IPAMError, INTERNAL),
)


class CNIError(Exception):
    """What a plugin tells the runtime: ``code``, ``msg``, and ``details`` that are left out when empty."""

    def __init__(self, message: str, details: str = "", *, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def document(self) -> dict[str, Any]:
        """Return the error object as it is printed."""
        found: dict[str, Any] = {"code": self.code, "msg": self.message}
        if self.details:
            found["details"] = self.details
        return found

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CNIError:
        """Return the error that another plugin printed; absent and odd fields read as Go's zero values."""
        code, message, details = document.get("code"), document.get("msg"), document.get("details")
        return cls(
            message if isinstance(message, str) else "",
            details if isinstance(details, str) else "",
            code=code if isinstance(code, int) else 0,
        )


def code_of(error: BaseException) -> int:
    """Return the CNI code of any error."""
    if isinstance(error, CNIError):
        return error.code
    return next((code for kind, code in CODES if isinstance(error, kind)), INTERNAL)


def cni_error(error: Exception, prefix: str = "") -> CNIError:
    """Return ``error`` as an error object; its hint becomes the details.

    ``prefix`` goes before the text, as upstream wraps some causes; a wrapped CNI error keeps its code.
    """
    hint = str(getattr(error, "hint", "") or "")
    details = error.details if isinstance(error, CNIError) else hint
    if isinstance(error, CNIError) and not prefix:
        return error
    return CNIError(prefix + str(error), details, code=code_of(error))


def joined(errors: list[Exception]) -> CNIError:
    """Return several errors as one that tells them all; a code that they share is kept."""
    found = [cni_error(error) for error in errors]
    if len(found) == 1:
        return found[0]
    codes = {error.code for error in found}
    details = "; ".join(error.details for error in found if error.details)
    return CNIError(
        "; ".join(error.message for error in found), details, code=codes.pop() if len(codes) == 1 else INTERNAL
    )
