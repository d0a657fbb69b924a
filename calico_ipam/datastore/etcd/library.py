"""Loading what ``etcd3`` and ``grpc`` offer: the only module that knows these packages (rulings 31).

etcd3 0.12 is from 2020. To *run* its generated modules, protobuf from version 4 on must be switched to its pure-Python
implementation for the whole process, before anybody imports any part of it; that is half as fast, and impossible once
another library has loaded protobuf. But all that is needed of them is the description of etcd's API, which each module
carries as one constant. So their code is found and not run, and today's protobuf makes the messages from the
description, with whichever implementation the process has. The messages cost 2 ms to make instead of 70.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import CodeType
from typing import Any

from calico_ipam.errors import NotConfigured

INSTALL = "Install it: pip install 'calico-ipam[etcd]'."

#: etcd3.etcdrpc's modules -> name of the file they describe, each after those it refers to
_DESCRIPTIONS = {"kv_pb2": "kv.proto", "auth_pb2": "auth.proto", "rpc_pb2": "rpc.proto"}
_PACKAGE = "etcdserverpb"

#: gRPC's core would write its own account of every refused connection to standard error, which a plugin's runtime
#: collects; what went wrong is in our errors. It is read once, while the module is loaded.
_WHILE_LOADING = {"GRPC_VERBOSITY": "NONE"}

#: a field of WatchRequest that etcd knows since 3.4 and etcd3 does not: ``progress_request {}``
PROGRESS = b"\x1a\x00"


@dataclass(frozen=True, slots=True)
class Library:
    """The module ``grpc``, and the messages of etcd's API by their names. Neither has types."""

    grpc: Any
    message: Callable[[str], Any]

    def unary(self, channel: Any, method: str, answer: str) -> Any:
        """Return the callable for a request with one answer: ``unary(channel, "KV/Range", "RangeResponse")``."""
        return channel.unary_unary(
            f"/{_PACKAGE}.{method}",
            request_serializer=_serialized,
            response_deserializer=self.message(answer).FromString,
        )

    def watch(self, channel: Any) -> Any:
        """Return the callable for a stream of requests, each already bytes, and answers of ``WatchResponse``."""
        answer = self.message("WatchResponse")
        return channel.stream_stream(
            f"/{_PACKAGE}.Watch/Watch", request_serializer=bytes, response_deserializer=answer.FromString
        )


def load() -> Library:
    """Return the library. Raises NotConfigured, with the way out, where it is not installed or does not fit."""
    try:
        with _environment(_WHILE_LOADING):
            import grpc
        from google.protobuf import descriptor_pool, message_factory
    except ModuleNotFoundError as error:
        name = {"grpc": "grpcio", "google": "protobuf"}.get(str(error.name).partition(".")[0], error.name)
        raise NotConfigured(
            f"the etcd datastore needs the package {name}, which is not installed", hint=INSTALL
        ) from None
    pool = descriptor_pool.DescriptorPool()
    for description in _descriptions():
        pool.AddSerializedFile(description)
    made: dict[str, Any] = {}

    def message(name: str) -> Any:
        if name not in made:
            made[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        return made[name]

    return Library(grpc, message)


def _descriptions() -> Iterator[bytes]:
    """Yield the API's description, a serialised FileDescriptorProto for each of etcd3's generated modules."""
    package = PathFinder.find_spec("etcd3")
    if package is None or package.submodule_search_locations is None:
        raise NotConfigured("the etcd datastore needs the package etcd3, which is not installed", hint=INSTALL)
    folders = [os.path.join(each, "etcdrpc") for each in package.submodule_search_locations]  # noqa: PTH118  # may be no real folder
    for module, file in _DESCRIPTIONS.items():
        # The finder is asked for the module as such: by its full name, Python would run the packages around it.
        spec = PathFinder.find_spec(module, folders)
        loader: Any = spec.loader if spec is not None else None
        code = loader.get_code(module) if loader is not None else None
        found = [each for each in _constants(code) if each[2 : 2 + len(file)] == file] if code is not None else []
        if len(found) != 1:
            raise NotConfigured(
                f"the installed version of the package etcd3 is not one that the etcd datastore knows: no {file} in it",
                hint="Install the right one: pip install 'calico-ipam[etcd]'.",
            )
        yield found[0].encode("latin-1")


def _constants(code: CodeType) -> Iterator[str]:
    yield from (each for each in code.co_consts if isinstance(each, str) and each[:1] == "\n")


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the time of an import, so that programs we start do not inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if before[name] is None})
    try:
        yield
    finally:
        for name in values:
            if before[name] is None:
                os.environ.pop(name, None)
