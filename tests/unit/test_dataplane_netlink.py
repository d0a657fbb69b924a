"""The netlink conversation against a kernel that is played: interruptions, refusals, stale answers (report P20)."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest

from calico_cni.dataplane import netlink
from calico_cni.dataplane.api import DataplaneError, LinkRequest
from calico_cni.dataplane.messages import FORMATS
from calico_cni.dataplane.netlink import Netlink, NetlinkRefused, error_text
from calico_cni.dataplane.netns import Namespace
from calico_cni.dataplane.pair import make_netkit
from calico_cni.dataplane.rtnl import Rtnl

MULTI, DUMP_INTR = 0x2, 0x10
ERROR, DONE, LINK = 2, 3, 16


def packet(kind: int, payload: bytes, *, flags: int = 0, sequence: int = 1) -> bytes:
    padding = bytes(-len(payload) % 4)
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload + padding


def link(index: int, **options: Any) -> bytes:
    return packet(LINK, struct.pack("=BxHiII", 0, 1, index, 0, 0), flags=MULTI | options.pop("flags", 0), **options)


def done(**options: Any) -> bytes:
    return packet(DONE, struct.pack("=i", options.pop("status", 0)), flags=MULTI | options.pop("flags", 0), **options)


class PlayedKernel:
    """Answers each request with the next of the prepared pieces."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []

    def send(self, data: bytes) -> int:
        self.requests.append(bytes(data))
        return len(data)

    def recv(self, _: int) -> bytes:
        if not self.answers:
            raise TimeoutError
        return self.answers.pop(0)

    def close(self) -> None:
        return None


def conversation(monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> tuple[Netlink, PlayedKernel]:
    kernel = PlayedKernel(list(answers))
    opened = Netlink(FORMATS)
    opened.close()
    monkeypatch.setattr(opened, "_socket", kernel)
    monkeypatch.setattr(netlink, "DUMP_PAUSE", 0)
    return opened, kernel


def links_of(opened: Netlink) -> list[int]:
    return [answer["index"] for answer in opened.dump(opened.formats.link(), 18)]


def test_list_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _ = conversation(monkeypatch, link(1) + link(2), link(3), done())
    assert links_of(opened) == [1, 2, 3]


@pytest.mark.parametrize("mark", ["entry", "end"])
def test_interrupted_list_is_thrown_away_and_asked_for_again(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = link(1, flags=DUMP_INTR) + done() if mark == "entry" else link(1) + done(flags=DUMP_INTR)
    opened, kernel = conversation(
        monkeypatch, interrupted, link(1, sequence=2) + link(2, sequence=2) + done(sequence=2)
    )
    assert links_of(opened) == [1, 2]
    assert len(kernel.requests) == 2


def test_list_that_is_interrupted_for_ever_is_an_error_and_never_half_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [link(1, sequence=n) + done(sequence=n, flags=DUMP_INTR) for n in range(1, 100)]
    opened, kernel = conversation(monkeypatch, *answers)
    with pytest.raises(DataplaneError, match="interrupted 12 times"):
        links_of(opened)
    assert len(kernel.requests) == 12


def test_list_that_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _ = conversation(monkeypatch, link(1) + done(status=-errno.EMFILE))
    with pytest.raises(NetlinkRefused, match="too many open files"):
        links_of(opened)


def test_answer_to_an_earlier_request_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _ = conversation(monkeypatch, link(7, sequence=77) + done(sequence=77), link(1) + done())
    assert links_of(opened) == [1]


def test_refusal_carries_the_kernels_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    request = struct.pack("=IHHII", 16, LINK, 0, 1, 0)
    sentence = b"Device does not want this.\0"
    attribute = struct.pack("=HH", 4 + len(sentence), 1) + sentence
    opened, _ = conversation(monkeypatch, packet(ERROR, struct.pack("=i", -errno.EINVAL) + request + attribute))
    with pytest.raises(NetlinkRefused) as caught:
        opened.execute(opened.formats.link(), LINK)
    assert caught.value.code == errno.EINVAL
    assert str(caught.value) == "invalid argument (Device does not want this)"


def test_kernel_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _ = conversation(monkeypatch)
    with pytest.raises(DataplaneError, match="did not answer"):
        opened.execute(opened.formats.link(), LINK)


def test_socket_that_fails_is_a_dataplane_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "x")

    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(DataplaneError, match="netlink socket: too many open files"):
        Netlink(FORMATS)


def test_texts_are_those_of_the_system_in_lower_case() -> None:
    assert error_text(errno.EEXIST) == "file exists"
    assert error_text(errno.ENOENT) == "no such file or directory"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_formats_load_without_the_rest_of_pyroute2() -> None:
    heavy = ("asyncio", "sqlite3", "pyroute2.ndb", "pyroute2.iproute", "pyroute2")
    program = f"""
import sys
from calico_cni.dataplane.messages import FORMATS
print([name for name in {heavy!r} if name in sys.modules])
"""
    assert run(program) == "[]"


def test_pyroute2_is_whole_for_whoever_imports_it_afterwards() -> None:
    program = """
from calico_cni.dataplane.messages import FORMATS
import pyroute2
from pyroute2 import IPRoute, netlink
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
print(pyroute2.IPRoute is IPRoute, FORMATS.link is ifinfmsg, hasattr(netlink, "rtnl"))
"""
    assert run(program) == "True True True"


def test_formats_are_the_whole_packages_where_that_is_loaded_already() -> None:
    program = """
import pyroute2
from calico_cni.dataplane.messages import FORMATS
from pyroute2.netlink.rtnl.rtmsg import rtmsg
print(FORMATS.route is rtmsg, pyroute2.IPRoute.__name__)
"""
    assert run(program) == "True IPRoute"


def test_threads_that_need_the_formats_at_once_all_get_them() -> None:
    """One of them takes the stand-in away, which another one must not have begun to import from."""
    program = """
import sys, threading
sys.setswitchinterval(1e-6)
from calico_cni.dataplane.rtnl import Rtnl
failed, opened, at_once = [], [], threading.Barrier(8)
def work():
    at_once.wait()
    try:
        for _ in range(200):
            with Rtnl.open() as rtnl: opened.append(rtnl.formats)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failed, len(opened), len(set(map(id, opened))))
"""
    assert run(program) == "[] 1600 1"


def test_importing_the_dataplane_loads_no_netlink_library() -> None:
    program = "import sys, calico_cni.dataplane.linux\nprint([name for name in sys.modules if 'pyroute2' in name])"
    assert run(program) == "[]"


def attributes(data: bytes) -> dict[int, bytes]:
    """Split a run of netlink attributes; the nested flag is dropped."""
    found = {}
    while data:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def test_netkit_request_is_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of the test machines has the kind, so what would be sent is taken apart here (linux/if_link.h)."""
    kernel = PlayedKernel([packet(ERROR, struct.pack("=i", 0) + bytes(16))])
    with Rtnl.open() as rtnl:
        monkeypatch.setattr(rtnl, "_socket", kernel)
        request = LinkRequest("cali1", "eth0", "/run/netns/x", [], [], mtu=1450, queues=3)
        make_netkit(rtnl, Namespace("/run/netns/x", 42), request)
        monkeypatch.undo()
    (sent,) = kernel.requests
    assert struct.unpack_from("=I", sent)[0] == len(sent)
    outer = attributes(sent[32:])
    assert (outer[3], outer[13], outer[4]) == (b"cali1\0", bytes(4), struct.pack("=I", 1450))
    assert outer[31] == outer[32] == struct.pack("=I", 3)
    information = attributes(outer[18])
    assert information[1] == b"netkit\0"
    data = attributes(information[2])
    assert (data[5], data[3], data[4]) == (bytes(4), bytes(4), bytes(4))  # layer 2, pass, pass
    peer = attributes(data[1][16:])
    assert (peer[3], peer[28], peer[4]) == (b"eth0\0", struct.pack("=I", 42), struct.pack("=I", 1450))
