"""What makes a node's life hard: device managers that rewrite addresses, links that come and go, leaks to count."""

from __future__ import annotations

import gc
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calico_cni.dataplane.netlink import NetlinkRefused
from calico_cni.dataplane.rtnl import Rtnl
from tests.link_requests import HOST_NAME
from tests.netns_tools import Node, inside, wait_for

#: the hardware address of every host end, and the link-local address that is made of it
WANTED = "ee:ee:ee:ee:ee:ee"
LINK_LOCAL = "fe80::ecee:eeff:feee:eeee"


@contextmanager
def rewriter(node: Node, *, delay: float, times: int) -> Iterator[list[str]]:
    """Watch for HOST_NAME and give it another address ``delay`` seconds after it is seen, at most ``times`` times."""
    written: list[str] = []
    stop = threading.Event()

    def work() -> None:
        with inside(node.path), Rtnl.open() as rtnl:
            while not stop.is_set() and len(written) < times:
                link = rtnl.link(HOST_NAME)
                if link is None or (written and link.mac != WANTED):
                    time.sleep(0.0005)
                    continue
                if delay:
                    stop.wait(delay)
                mac = f"02:00:00:00:00:{len(written) % 256:02x}"
                try:
                    rtnl.set_mac(link.index, mac)
                except NetlinkRefused:
                    return
                written.append(mac)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


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
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}
