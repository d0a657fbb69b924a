"""The CNI protocol: verbs, their environment, versions and gates (cni.md §2.1, §2.2).

A call is a value: a Request goes in, a Response comes out. Nothing here reads the process's environment or prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_cni import gojson
from calico_cni.errors import (
    BAD_ENVIRONMENT,
    BAD_NETCONF,
    INCOMPATIBLE_VERSION,
    UNDECODABLE,
    CNIError,
)

CALICO = "calico"
CALICO_IPAM = "calico-ipam"
#: the reference IPAM plugin whose configuration is rewritten for it
HOST_LOCAL = "host-local"

ADD, DEL, CHECK, GC, STATUS, VERSION = "ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"

#: Which variable each verb needs, in the order they are examined. This table is the documentation.
REQUIRED: tuple[tuple[str, frozenset[str]], ...] = (
    ("CNI_COMMAND", frozenset({ADD, DEL, CHECK, GC, STATUS, VERSION})),
    ("CNI_CONTAINERID", frozenset({ADD, DEL, CHECK})),
    ("CNI_NETNS", frozenset({ADD, CHECK})),
    ("CNI_IFNAME", frozenset({ADD, DEL, CHECK})),
    ("CNI_ARGS", frozenset()),
    ("CNI_PATH", frozenset({ADD, DEL, CHECK, GC, STATUS})),
)

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
NEWEST = SUPPORTED[-1]

#: The first specification that knows a verb; the gate stands before the check of the list (§2.2 step 4).
SINCE: Mapping[str, tuple[int, int, int]] = {CHECK: (0, 4, 0), GC: (1, 1, 0), STATUS: (1, 1, 0)}

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_LONGEST_INTERFACE_NAME = 15
_LONGEST_NUMBER = 18  # digits that surely fit into an int of Go
_UNDECODED = re.compile("[\udc80-\udcff]")  # bytes of the environment that are no UTF-8
# Go's unicode.IsSpace; str.isspace() would also take the separators U+001C to U+001F.
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a plugin: which program, its environment, and the network configuration as it came on stdin."""

    program: str
    environ: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)  # may hold tokens and keys

    @property
    def command(self) -> str:
        return self.environ.get("CNI_COMMAND", "")

    @property
    def container_id(self) -> str:
        return self.environ.get("CNI_CONTAINERID", "")

    @property
    def netns(self) -> str:
        return self.environ.get("CNI_NETNS", "")

    @property
    def ifname(self) -> str:
        return self.environ.get("CNI_IFNAME", "")

    @property
    def args(self) -> str:
        # They become names in the datastore, whose documents are UTF-8; Go replaces what is none as well.
        return _UNDECODED.sub("\ufffd", self.environ.get("CNI_ARGS", ""))

    def as_verb(self, command: str) -> Request:
        """Return the same call with another verb."""
        return replace(self, environ={**self.environ, "CNI_COMMAND": command})

    @property
    def path(self) -> list[str]:
        """The folders that may hold other plugins, in order."""
        text = self.environ.get("CNI_PATH", "")
        return text.split(":") if text else []

    @property
    def allows_same_netns(self) -> bool:
        """Is the check against the plugin's own namespace switched off?"""
        return self.environ.get("CNI_NETNS_OVERRIDE", "").lower() in ("true", "1")


@dataclass(frozen=True, slots=True)
class Response:
    """What the caller sees: at most one document on stdout, and the exit status.

    ``undo``: the call that takes back what this one made, should nobody be there to hear the answer.
    """

    stdout: str = ""
    exit_code: int = 0
    undo: Request | None = None

    @classmethod
    def error(cls, error: CNIError) -> Response:
        return cls(gojson.dump_indented(error.document()), 1)


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise CNIError for a variable that is missing or breaks its rule.

    A broken rule is told at once; missing variables are gathered and told together. An unknown command needs what
    nobody needs, and is found only later (§2.2).
    """
    command = environ.get("CNI_COMMAND", "")
    missing = []
    for name, verbs in REQUIRED:
        if command not in verbs:
            continue
        value = environ.get(name, "")
        if not value:
            missing.append(name)
        elif name == "CNI_CONTAINERID" and not _NAME.fullmatch(value):
            raise CNIError("invalid characters in containerID", value, code=BAD_ENVIRONMENT)
        elif name == "CNI_IFNAME":
            _check_interface_name(value)
    if missing:
        raise CNIError(f"required env variables [{','.join(missing)}] missing", code=BAD_ENVIRONMENT)


def _check_interface_name(name: str) -> None:
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_INTERFACE_NAME:
        raise CNIError(
            "interface name is too long",
            f"interface name should be less than {_LONGEST_INTERFACE_NAME + 1} characters",
            code=BAD_ENVIRONMENT,
        )
    if name in (".", ".."):
        raise CNIError("interface name is . or ..", code=BAD_ENVIRONMENT)
    if _UNDECODED.search(name):
        raise CNIError("interface name is no UTF-8 text", code=BAD_ENVIRONMENT)
    if any(char in "/:" or char in _SPACES for char in name):
        raise CNIError("interface name contains / or : or whitespace characters", code=BAD_ENVIRONMENT)


def read_document(stdin: bytes) -> Mapping[str, Any]:
    """Return the network configuration as an object whose ``name`` keeps the rules (§2.2 step 3)."""
    try:
        document = gojson.load(stdin)
        if document is not None and not isinstance(document, Mapping):
            raise gojson.cannot(document, "value", 'struct { Name string "json:\\"name\\"" }')
        document = document or {}
        name = _text(document, "name")
    except gojson.GoJSONError as error:
        raise CNIError(f"error unmarshall network config: {error}", code=UNDECODABLE) from None
    if not name:
        raise CNIError("missing network name", code=BAD_NETCONF)
    if not _NAME.fullmatch(name):
        raise CNIError("invalid characters found in network name", name, code=BAD_NETCONF)
    return document


def declared_version(document: Mapping[str, Any]) -> str:
    """Return the configuration's ``cniVersion``; absent and empty mean 0.1.0."""
    try:
        return _text(document, "cniVersion") or "0.1.0"
    except gojson.GoJSONError as error:
        raise CNIError(f"decoding version from network config: {error}", code=UNDECODABLE) from None


def _text(document: Mapping[str, Any], key: str) -> str:
    """Return a text field; keys match without regard to case, as Go matches them, and the last one counts."""
    found = ""
    for name, value in document.items():
        if name.lower() == key.lower() and value is not None:
            if not isinstance(value, str):
                raise gojson.cannot(value, f"struct field .{key}", "string")
            found = value
    return found


def check_version(command: str, version: str) -> None:
    """Raise CNIError for a version that this verb, or this plugin, does not know (§2.2 step 4)."""
    since = SINCE.get(command)
    if since is not None:
        numbers = parse_version(version)
        if numbers < since:
            raise CNIError(f"config version does not allow {command}", code=INCOMPATIBLE_VERSION)
        if not any(parse_version(supported) >= numbers for supported in SUPPORTED):
            raise CNIError(f"plugin version does not allow {command}", code=INCOMPATIBLE_VERSION)
    if version not in SUPPORTED:
        known = " ".join(f'"{supported}"' for supported in SUPPORTED)
        raise CNIError(
            "incompatible CNI versions",
            f'config is "{version}", plugin supports [{known}]',
            code=INCOMPATIBLE_VERSION,
        )


def parse_version(text: str) -> tuple[int, int, int]:
    """Return a version's three numbers; missing ones are 0. Raises CNIError (§2.2 step 4)."""
    parts = text.split(".")
    if len(parts) >= 4:
        raise CNIError(f"invalid version {go_quote(text)}: too many parts", code=UNDECODABLE)
    numbers = [0, 0, 0]
    for index, (part, label) in enumerate(zip(parts, ("major", "minor", "micro"), strict=False)):
        if not re.fullmatch(r"[+-]?[0-9]+", part, re.ASCII):
            quoted = go_quote(part)
            raise CNIError(
                f"failed to convert {label} version part {quoted}: strconv.Atoi: parsing {quoted}: invalid syntax",
                code=UNDECODABLE,
            )
        if len(part.lstrip("+-0")) > _LONGEST_NUMBER:
            quoted = go_quote(part)
            raise CNIError(
                f"failed to convert {label} version part {quoted}: strconv.Atoi: parsing {quoted}: value out of range",
                code=UNDECODABLE,
            )
        numbers[index] = int(part)
    return numbers[0], numbers[1], numbers[2]


def go_quote(text: str) -> str:
    """Return a text in double quotes with Go's escapes, as its errors show names."""
    named = {"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r"}
    named.update({"\\": "\\\\", '"': '\\"'})
    shown = (
        named.get(c) or (c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 0x80 else f"\\u{ord(c):04x}")
        for c in text
    )
    return f'"{"".join(shown)}"'


def version_answer() -> str:
    """Return the answer to VERSION: one line and a newline."""
    return gojson.dump_compact({"cniVersion": NEWEST, "supportedVersions": list(SUPPORTED)}) + "\n"


def about(program: str, version: str) -> str:
    """Return the text for people who start a plugin by hand (§2.1)."""
    title = "Calico CNI IPAM" if program == CALICO_IPAM else "Calico CNI plugin"
    return f"{title} {version}\nCNI protocol versions supported: {', '.join(SUPPORTED)}\n"
