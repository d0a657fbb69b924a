"""What goes wrong on a dataplane. Alone, because verbs that touch no link must tell these errors from defects."""

from __future__ import annotations


class DataplaneError(Exception):
    """A link, address, route or sysctl could not be had as asked. ``str()`` is upstream's text where it has one.

    ``hint``: one sentence that says what to do. ``left_behind``: a link of this request still stands although it was
    to be undone, so its address must not be given to anybody else (rulings 5).
    """

    def __init__(self, message: str, *, hint: str = "", left_behind: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.left_behind = left_behind


class AddressInUse(DataplaneError):
    """The host routes ``address`` to another link that may be alive (``projectcalico/calico#8180``).

    ``device``: the link that was to have the route; ``holder``: the one that has it, from which the caller can tell
    whose it is. The route was not touched.
    """

    def __init__(self, message: str, *, address: str, device: str, holder: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.address = address
        self.device = device
        self.holder = holder
