"""What makes a node's life hard: device managers that rewrite addresses, links that come and go, leaks to count."""

from __future__ import annotations

import gc
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from calico_cni.dataplane import pair
from calico_cni.dataplane.netlink import NetlinkRefused
from calico_cni.dataplane.rtnl import Rtnl
from tests.clock import SOON
from tests.link_requests import HOST_NAME
from tests.netns_tools import Node, inside, wait_for

#: the hardware address of every host end, and the link-local address that is made of it
WANTED = "ee:ee:ee:ee:ee:ee"
LINK_LOCAL = "fe80::ecee:eeff:feee:eeee"


class Rewriter:
    """A device manager that gives HOST_NAME another address, and the time of those who hold it against that.

    Time stands still until the next address is written: a busy machine may let either side stall, and still the one
    that waits for quiet meets every address. ``written``: the addresses; at most ``times``, each ``delay`` seconds
    after the right one was seen.
    """

    def __init__(self, node: Node, delay: float, times: int) -> None:
        self.written: list[str] = []
        self._node, self._delay, self._times = node, delay, times
        self._now = 0.0
        self._wrote = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._wrote:
            before = len(self.written)
            if _address_now() == WANTED:  # else one is there already that was not seen
                done = self._wrote.wait_for(lambda: len(self.written) > before or self._is_over(), SOON)
                assert done, "the rewriter stands still"
        self._now += seconds

    def _is_over(self) -> bool:
        return len(self.written) >= self._times or not self._thread.is_alive()

    def _work(self) -> None:
        with inside(self._node.path), Rtnl.open() as rtnl:
            while not self._stop.is_set() and len(self.written) < self._times:
                link = rtnl.link(HOST_NAME)
                if link is None or (self.written and link.mac != WANTED):
                    time.sleep(0.0005)
                    continue
                if self._delay:
                    self._stop.wait(self._delay)
                mac = f"02:00:00:00:00:{len(self.written) % 256:02x}"
                with self._wrote:
                    try:
                        rtnl.set_mac(link.index, mac)
                    except NetlinkRefused:
                        return
                    self.written.append(mac)
                    self._wrote.notify_all()

    def __enter__(self) -> Rewriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _address_now() -> str:
    with Rtnl.open() as rtnl:
        link = rtnl.link(HOST_NAME)
        return link.mac if link is not None else ""


@contextmanager
def rewriter(node: Node, *, delay: float, times: int) -> Iterator[list[str]]:
    """Rewrite the address of HOST_NAME, at most ``times`` times; the addresses are told as they are written."""
    with Rewriter(node, delay, times) as found, patch.object(pair, "time", found):
        yield found.written


@contextmanager
def noise(node: Node, pairs: int) -> Iterator[None]:
    """Make and remove pairs of links on the host, each with a route, until the body is over."""
    up = "".join(
        f"link add noise{n} type veth peer name esion{n}\nlink set noise{n} up\nroute add 10.77.{n}.1/32 dev noise{n}\n"
        for n in range(pairs)
    )
    down = "".join(f"link del noise{n}\n" for n in range(pairs))
    script = f"while :; do ip -batch - <<'A'\n{up}A\nip -batch - <<'B'\n{down}B\ndone"
    process = subprocess.Popen(["nsenter", f"--net={node.path}", "--", "sh", "-c", script], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: node.link("noise0") is not None, "the noise has begun")
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Fail when what is done inside leaves a descriptor open or a child running."""
    gc.collect()  # what earlier tests left goes now, not meanwhile
    descriptors, children = _descriptors(), _children()
    yield
    assert _children() <= children, "a child is still running"
    # A thread that an earlier test left may have opened one for a moment; what was kept stays.
    wait_for(lambda: _descriptors() <= descriptors, "every descriptor is closed")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _children() -> set[str]:
    while True:
        try:
            tasks = Path("/proc/self/task").iterdir()
            return {child for task in tasks for child in (task / "children").read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread has just ended; its children are another thread's by now
