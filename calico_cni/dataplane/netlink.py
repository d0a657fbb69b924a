"""One netlink socket: a request, its answer, and nothing else going on.

pyroute2's own sockets bring an event loop each, subscribe to every change on the host unless told otherwise (a busy
node then overflows them), and fork when they are asked for another namespace (svinota/pyroute2#1206 and relatives). A
plugin call needs none of that: it asks, the kernel answers before ``send`` returns, and the socket is closed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .api import DataplaneError

if TYPE_CHECKING:
    from .messages import Formats

# linux/netlink.h; the socket module has only some of them
SOL_NETLINK = 270
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12
NLM_F_REQUEST = 0x1
NLM_F_MULTI = 0x2
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLMSG_ERROR = 2
NLMSG_DONE = 3

#: struct nlmsghdr: length, type, flags, sequence number, port
HEADER = struct.Struct("=IHHII")
#: larger than any message of a dump; the kernel never sends more than 32 KiB at once
RECEIVE_BYTES = 1 << 16
#: seconds to wait for an answer; the kernel gives it at once or is badly stuck
ANSWER_SECONDS = 10.0
#: how often an interrupted dump is begun again, and the first pause between (seconds; doubled each time)
DUMP_ATTEMPTS = 12
DUMP_PAUSE = 0.002


class NetlinkRefused(Exception):
    """The kernel refused a request: ``code`` is the error number, ``detail`` the kernel's own sentence, if any."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(f"{error_text(code)} ({detail})" if detail else error_text(code))
        self.code = code
        self.detail = detail


def _socket_failed(error: OSError) -> DataplaneError:
    return DataplaneError(f"netlink socket: {error_text(error.errno or errno.EIO)}")


def error_text(code: int) -> str:
    """Return the system's text for an error number, in lower case as upstream prints it: ``file exists``."""
    text = os.strerror(code)
    return text[:1].lower() + text[1:]


class Netlink:
    """A socket of the namespace in which it is opened, wherever its thread goes later.

    Opening and asking raise DataplaneError where the socket itself fails.
    """

    def __init__(self, formats: Formats, protocol: int = socket.NETLINK_ROUTE) -> None:
        self.formats = formats
        self._sequence = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise _socket_failed(error) from None
        try:
            self._socket.bind((0, 0))
            self._socket.settimeout(ANSWER_SECONDS)
            for option in (NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
                # Kernels before 4.12 and 4.20 lack them: then reasons are shorter, and dumps longer than asked for.
                try:
                    self._socket.setsockopt(SOL_NETLINK, option, 1)
                except OSError:
                    continue
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def execute(self, message: Any, message_type: int, flags: int = 0, encoded: bytes = b"") -> None:
        """Have something done; ``encoded``: attributes to put behind those of ``message``. Raises NetlinkRefused."""
        self._send(message, message_type, NLM_F_REQUEST | NLM_F_ACK | flags, encoded)
        self._answers(type(message))

    def ask(self, message: Any, message_type: int) -> Any:
        """Return the one object asked for. Raises NetlinkRefused."""
        self._send(message, message_type, NLM_F_REQUEST)
        answers, _ = self._answers(type(message))
        return answers[0]

    def dump(self, message: Any, message_type: int) -> list[Any]:
        """Return all objects that match, as one consistent list.

        Any change meanwhile makes the kernel mark the list as interrupted: it may lack entries then, so it is never
        used; it is asked for again, a bounded number of times. Raises NetlinkRefused, DataplaneError.
        """
        pause = DUMP_PAUSE
        for attempt in range(DUMP_ATTEMPTS):
            if attempt:
                time.sleep(pause)
                pause *= 2
            self._send(message, message_type, NLM_F_REQUEST | NLM_F_DUMP)
            answers, interrupted = self._answers(type(message))
            if not interrupted:
                return answers
        raise DataplaneError(
            f"the kernel's list was interrupted {DUMP_ATTEMPTS} times",
            hint="Links or routes of this node change all the time; look for what changes them (ip monitor).",
        )

    def _send(self, message: Any, message_type: int, flags: int, encoded: bytes = b"") -> None:
        self._sequence += 1
        message.reset()
        message["header"]["type"] = message_type
        message["header"]["flags"] = flags
        message["header"]["sequence_number"] = self._sequence
        message["header"]["pid"] = 0
        message.encode()
        data = bytearray(message.data) + encoded
        struct.pack_into("=I", data, 0, len(data))
        try:
            self._socket.send(data)
        except OSError as error:
            raise _socket_failed(error) from None

    def _answers(self, kind: type) -> tuple[list[Any], bool]:
        """Collect the answers to the last request; whether the list was interrupted comes with it."""
        found: list[Any] = []
        interrupted = False
        while True:
            data = self._receive()
            offset = 0
            while offset + HEADER.size <= len(data):
                length, message_type, flags, sequence, _ = HEADER.unpack_from(data, offset)
                if sequence == self._sequence:  # else: left over from a request that was given up
                    interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
                    if message_type in (NLMSG_ERROR, NLMSG_DONE):
                        self._judge(message_type, data, offset, length)
                        return found, interrupted
                    answer = kind(data, offset=offset)
                    answer.decode()
                    found.append(answer)
                    if not flags & NLM_F_MULTI:
                        return found, interrupted
                offset += (length + 3) & ~3

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise DataplaneError(f"the kernel did not answer a netlink request within {ANSWER_SECONDS:.0f} s") from None
        except OSError as error:
            raise _socket_failed(error) from None

    def _judge(self, message_type: int, data: bytes, offset: int, length: int) -> None:
        """Raise NetlinkRefused if the message that ends a conversation holds an error."""
        if length < HEADER.size + 4:
            return
        (status,) = struct.unpack_from("=i", data, offset + HEADER.size)
        if status >= 0:
            return
        detail = ""
        if message_type == NLMSG_ERROR:
            detail = self._detail(data, offset, length)
        raise NetlinkRefused(-status, detail)

    def _detail(self, data: bytes, offset: int, length: int) -> str:
        """Return the kernel's sentence from the attributes behind the copy of the request (extended ack)."""
        header_at = offset + HEADER.size + 4
        request_length, *_ = HEADER.unpack_from(data, header_at)
        position = header_at + ((request_length + 3) & ~3)
        end = offset + length
        while position + 4 <= end:
            attribute_length, attribute_type = struct.unpack_from("=HH", data, position)
            if attribute_length < 4:
                break
            if attribute_type == 1:  # NLMSGERR_ATTR_MSG
                text = data[position + 4 : position + attribute_length]
                return text.rstrip(b"\0").decode("utf-8", "replace").rstrip(".")
            position += (attribute_length + 3) & ~3
        return ""
