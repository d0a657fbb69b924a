"""What the node agent leaves on the host for the plugins: node name and MTU (cni.md §3.3, §6.1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from calico_cni.errors import TRY_AGAIN_LATER, CNIError
from calico_cni.logs import Log
from calico_cni.netconf import NetConf
from calico_cni.protocol import go_quote

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MTU_DIGITS = 18  # surely fit into an int of Go


def require_nodename_file(conf: NetConf) -> None:
    """Raise CNIError when the nodename file must be there and is not."""
    if conf.nodename_file_optional:
        return
    try:
        Path(conf.nodename_file).stat()
    except OSError as error:
        raise CNIError(
            f"stat {conf.nodename_file}: {reason(error)}: check that the calico/node container is running and has "
            "mounted /var/lib/calico/",
            "On a host without calico/node set nodename_file_optional to true.",
        ) from None


def node_name(conf: NetConf, hostname: Callable[[], str], log: Log) -> str:
    """Return this node's name: configured, from the file, from the deprecated key, or the host's own (§3.3).

    Blanks around the file's content are cut off: an editor's newline must not make another node (§15.14).
    """
    if conf.nodename:
        return conf.nodename
    try:
        from_file = Path(conf.nodename_file).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        from_file = ""
    except OSError as error:
        log.warning("Cannot read the nodename file", file=conf.nodename_file, error=error)
        from_file = ""
    return from_file or conf.hostname or hostname()


def interface_mtu(conf: NetConf, file: Path) -> int:
    """Return the MTU for the sandbox's interface; 0 leaves it to the kernel (§6.1 step 4).

    Raises CNIError for a file that cannot be used, also when the configuration has an MTU of its own: the file is wrong
    for every other pod too.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError as error:
        if conf.require_mtu_file:
            raise CNIError(
                f"failed to read MTU file: open {file}: {reason(error)}",
                "The node agent writes it once it knows the MTU; the call can be repeated then.",
                code=TRY_AGAIN_LATER,
            ) from None
        return conf.mtu
    except OSError as error:
        raise CNIError(f"failed to read MTU file: open {file}: {reason(error)}") from None
    if not _INTEGER.fullmatch(text):
        raise CNIError(
            f"failed to read MTU file: strconv.Atoi: parsing {go_quote(text)}: invalid syntax",
            f"{file} must hold one number; remove it to use the kernel's default.",
        )
    if len(text.lstrip("+-0")) > _MTU_DIGITS:
        raise CNIError(
            f"failed to read MTU file: strconv.Atoi: parsing {go_quote(text)}: value out of range",
            f"{file} must hold the size of a packet in bytes.",
        )
    return conf.mtu or int(text)


def reason(error: OSError) -> str:
    """Return why a file operation failed, in the words of Go's errors."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
