"""Loading ``etcd3`` and ``grpc``: the only module that knows these packages (rulings 31).

etcd3 0.12 is from 2020. Its generated messages work with today's protobuf only on protobuf's pure-Python
implementation, and protobuf chooses that once, by an environment variable, when its first module is imported.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calico_ipam.errors import NotConfigured

CHOICE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
#: Read by the libraries while they are loaded. gRPC's core would write its own account of every refused connection to
#: standard error, which a plugin's runtime collects; what went wrong is in our errors.
WHILE_LOADING = {CHOICE: "python", "GRPC_VERBOSITY": "NONE"}

#: a field of WatchRequest that etcd knows since 3.4 and etcd3's messages do not: ``progress_request {}``
PROGRESS = b"\x1a\x00"


@dataclass(frozen=True, slots=True)
class Library:
    """The two modules. Both are without types."""

    grpc: Any
    rpc: Any  #: etcd3.etcdrpc: messages and stubs


def load() -> Library:
    """Import the libraries. Raises NotConfigured, with the way out, where that cannot work."""
    if "etcd3.etcdrpc" not in sys.modules:
        _check_protobuf()
    try:
        with _environment(WHILE_LOADING), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Call to deprecated create function", DeprecationWarning, r"etcd3\.etcdrpc\."
            )
            import grpc
            from etcd3 import etcdrpc
    except ModuleNotFoundError as error:
        raise NotConfigured(
            f"the etcd datastore needs the package {str(error.name).partition('.')[0]}, which is not installed",
            hint="Install it: pip install 'calico-ipam[etcd]'.",
        ) from None
    except (ImportError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise NotConfigured(
            f"the etcd datastore cannot be used: the packages etcd3, grpcio, protobuf do not fit together ({reason})",
            hint="Install versions that do: pip install --upgrade 'calico-ipam[etcd]'.",
        ) from error
    return Library(grpc, etcdrpc)


def _check_protobuf() -> None:
    """Raise NotConfigured when somebody has loaded protobuf with an implementation that etcd3 cannot use."""
    loaded = sys.modules.get("google.protobuf.internal.api_implementation")
    if loaded is None or loaded.Type() == "python":
        return
    import google.protobuf

    # Older ones still take messages like etcd3's in any implementation.
    if int(google.protobuf.__version__.partition(".")[0]) < 4:
        return
    raise NotConfigured(
        "the etcd datastore cannot be used in this process: protobuf was loaded earlier with its "
        f"{loaded.Type()!r} implementation, which the etcd3 package does not work with",
        hint=f"Set {CHOICE}=python before the program starts, or open the etcd datastore before importing protobuf.",
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the time of an import, so that programs we start do not inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
