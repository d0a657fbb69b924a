"""The formats of routing netlink messages, from pyroute2, at the price of the formats only.

``import pyroute2`` loads all of that package (about 340 modules, 150 to 200 ms of processor time: its object database,
SQLite, DHCP, asyncio …), and importing any module inside it does the same first. Every ADD is a fresh process, and of
all that it needs four message classes (about 40 ms). So they are imported below a stand-in for the package's
``__init__``, which is taken away again at once: whoever says ``import pyroute2`` afterwards gets the whole package, in
the same process.

Importing this module does that, so it is imported where the formats are needed: Python has a process do it once, and
other threads wait until it is done. Raises DataplaneError where pyroute2 is not installed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from typing import Any

from .api import DataplaneError


@dataclass(frozen=True, slots=True)
class Formats:
    """pyroute2's message classes; calling one makes an empty message."""

    link: Any
    address: Any
    route: Any
    namespace_id: Any


def _load() -> Formats:
    if "pyroute2" in sys.modules:
        return _import_formats()
    spec = find_spec("pyroute2")
    if spec is None:
        raise DataplaneError(
            "pyroute2 is not installed", hint="Install this package with its dependencies: pip install calico-ipam."
        )
    stand_in = module_from_spec(spec)
    sys.modules["pyroute2"] = stand_in
    try:
        return _import_formats()
    finally:
        if sys.modules.get("pyroute2") is stand_in:
            del sys.modules["pyroute2"]


def _import_formats() -> Formats:
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    return Formats(link=ifinfmsg, address=ifaddrmsg, route=rtmsg, namespace_id=nsidmsg)


FORMATS = _load()
