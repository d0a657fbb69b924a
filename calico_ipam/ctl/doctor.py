"""``ipamctl doctor``: is this host, and its datastore, fit to serve addresses (ruling 24)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.failures import ProblemsFound
from calico_ipam.ctl.output import document, paragraph, say
from calico_ipam.ctl.session import Session, common_options, pass_session
from calico_ipam.errors import IPAMError

if TYPE_CHECKING:
    from calico_ipam.engine.world import Engine

GOOD, WARN, BAD = "ok", "warning", "problem"

HOST_LOCK = "/var/run/calico/ipam.lock"
CNI_CONFIG = "/etc/cni/net.d"
CNI_BIN = "/opt/cni/bin"
PROC_SYS = "/proc/sys"
_LEAST_FREE = 64 * 1024 * 1024  # bytes on the disk of an embedded datastore


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at: what, how it is, and the way out where it is not good."""

    about: str
    state: str
    text: str
    cure: str = ""


@click.command(cls=Spelled)
@click.option("--node", metavar="NAME", help="The name of this host in the datastore. Default: as the plugins find it.")
@click.option("--fail-on-problems", is_flag=True, help="End with exit code 3 when there is a problem.")
@common_options
@pass_session
def doctor(session: Session, /, node: str | None, fail_on_problems: bool) -> None:
    """Look at everything that the plugins need: files, rights, sysctls, lock, datastore, pools, clock.

    Nothing is changed.
    """
    lines = [*_safely("settings", lambda: _settings(session)), *_host()]
    try:
        engine = session.engine
    except IPAMError as error:
        lines.append(Line("datastore", BAD, str(error), error.hint))
    else:
        for about, look in (
            ("datastore", lambda: _datastore(session, engine)),
            ("cluster", lambda: _cluster(engine)),
            ("pools", lambda: _pools(engine)),
            ("node", lambda: _node(engine, node)),
            ("clock", lambda: _clock(engine)),
        ):
            lines += _safely(about, look)
    if session.wants_document:
        document(
            [{"about": e.about, "state": e.state, "text": e.text, "cure": e.cure or None} for e in lines],
            session.output,
        )
    else:
        _tell(session, lines)
    if fail_on_problems and any(each.state == BAD for each in lines):
        raise ProblemsFound


def _safely(about: str, look: Callable[[], Iterator[Line]]) -> list[Line]:
    try:
        return list(look())
    except IPAMError as error:
        return [Line(about, BAD, str(error), error.hint)]
    except OSError as error:
        return [Line(about, WARN, f"{error.filename or about} cannot be looked at: {error.strerror}")]


def _tell(session: Session, lines: list[Line]) -> None:
    marks = {GOOD: "ok ", WARN: "!! ", BAD: "XX "}
    colours = {GOOD: "green", WARN: "yellow", BAD: "red"}
    for each in lines:
        text = paragraph(f"{marks[each.state]}{each.about}: {each.text}", hanging="     ")
        if session.colours:
            text = click.style(text[:2], fg=colours[each.state]) + text[2:]
        say(text)
        if each.cure:
            say(paragraph(f"→ {each.cure}", indent="     "))
    bad = sum(1 for each in lines if each.state == BAD)
    warn = sum(1 for each in lines if each.state == WARN)
    say()
    say(
        f"{len(lines)} things looked at: "
        f"{bad} problem{'s' if bad != 1 else ''}, {warn} warning{'s' if warn != 1 else ''}."
    )


# --- this host -----------------------------------------------------------------------------------------------


def _settings(session: Session) -> Iterator[Line]:
    settings = session.settings
    yield Line("settings", GOOD, f"{settings.datastore_type}, from {settings.source}")
    if settings.datastore_type == "sqlite":
        yield from _file(settings.sqlite_path)


def _file(path: str) -> Iterator[Line]:
    folder = os.path.dirname(path)  # noqa: PTH120  # pathlib is not needed otherwise, and costs 7 ms
    try:
        status = os.stat(path)  # noqa: PTH116  # as above
    except FileNotFoundError:
        yield Line("file", BAD, f"{path} does not exist", "'ipamctl init' makes it.")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        yield Line("file", WARN, f"{path} has mode {mode:04o}: others can read or write it", f"chmod 600 {path}")
    else:
        yield Line("file", GOOD, f"{path}, mode {mode:04o}, {status.st_size // 1024} KiB")
    if not os.access(folder, os.W_OK):
        yield Line("folder", BAD, f"{folder} cannot be written by this user", "Run as root, as the plugins do.")
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < _LEAST_FREE:
        yield Line(
            "disk", BAD, f"{free // 2**20} MiB are free below {folder}", "Free some space: writes fail on a full disk."
        )
    else:
        yield Line("disk", GOOD, f"{free // 2**20} MiB are free below {folder}")


def _host() -> list[Line]:
    found = []
    if os.geteuid() != 0:
        found.append(Line("user", WARN, "not root: some things cannot be looked at", "Run it as root."))
    found += [
        *_sysctl("net/ipv4/ip_forward", "IPv4 forwarding", "sysctl -w net.ipv4.ip_forward=1"),
        *_lock(),
        *_plugins(),
    ]
    return found


def _sysctl(path: str, title: str, cure: str) -> Iterator[Line]:
    try:
        with open(f"{PROC_SYS}/{path}", encoding="ascii") as file:  # noqa: PTH123  # as above
            value = file.read().strip()
    except OSError as error:
        yield Line("sysctl", WARN, f"{title} cannot be read: {error.strerror}")
        return
    if value == "1":
        yield Line("sysctl", GOOD, f"{title} is on")
    else:
        yield Line("sysctl", BAD, f"{title} is off: workloads reach nothing beyond this host", cure)


def _lock() -> Iterator[Line]:
    """The lock that plugins of one host take, ours and upstream's: is it there, and does somebody hold it."""
    import fcntl

    if not os.path.exists(HOST_LOCK):  # noqa: PTH110  # as above
        yield Line("host lock", GOOD, f"{HOST_LOCK} does not exist yet; the first plugin call makes it")
        return
    try:
        descriptor = os.open(HOST_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        yield Line("host lock", WARN, f"{HOST_LOCK} cannot be opened: {error.strerror}", "Run it as root.")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield Line(
            "host lock",
            WARN,
            f"{HOST_LOCK} is held right now",
            f"If it stays so, 'fuser {HOST_LOCK}' names the program.",
        )
    else:
        yield Line("host lock", GOOD, f"{HOST_LOCK} is free")
    finally:
        os.close(descriptor)


def _plugins() -> Iterator[Line]:
    for name in ("calico", "calico-ipam"):
        path = f"{CNI_BIN}/{name}"
        if os.access(path, os.X_OK):
            yield Line("plugin", GOOD, path)
        else:
            yield Line(
                "plugin",
                WARN,
                f"{path} is not there or cannot be run",
                "Install the plugins, or ignore this on a host without workloads.",
            )
    try:
        names = sorted(each for each in os.listdir(CNI_CONFIG) if each.endswith((".conf", ".conflist", ".json")))  # noqa: PTH208  # as above
    except OSError:
        names = []
    if names:
        yield Line("network", GOOD, f"runtimes use {CNI_CONFIG}/{names[0]}")
    else:
        yield Line("network", WARN, f"{CNI_CONFIG} holds no network configuration", "'ipamctl init' shows one.")


# --- the datastore -------------------------------------------------------------------------------------------


def _datastore(session: Session, engine: Engine) -> Iterator[Line]:
    import time

    from calico_ipam.engine.world import CONFIG

    began = time.monotonic()
    engine.store.read(CONFIG)
    took = 1000 * (time.monotonic() - began)
    state = GOOD if took < 1000 else WARN
    yield Line(
        "datastore",
        state,
        f"{session.store.name} answers in {took:.0f} ms",
        "" if state == GOOD else "It is slow: look at its disk and load.",
    )


def _cluster(engine: Engine) -> Iterator[Line]:
    from calico_ipam.engine.lock import state
    from calico_ipam.engine.survey import CLUSTER
    from calico_ipam.engine.world import CONFIG
    from calico_ipam.model.config import IPAMConfig

    snapshot = engine.store.read(CLUSTER, CONFIG)
    entry = snapshot.entry(CLUSTER)
    if entry is None:
        yield Line("cluster", BAD, "there is no cluster information", "'ipamctl init' makes it.")
    else:
        found = state(entry)
        if found.locked:
            yield Line(
                "lock",
                BAD,
                f"the datastore is {found}: no pod gets an address",
                "'ipamctl datastore unlock' unlocks it.",
            )
        else:
            yield Line("lock", GOOD, "the datastore is not locked")
    stored = snapshot.entry(CONFIG)
    config: IPAMConfig = stored.value if stored is not None else IPAMConfig()
    for problem in config.problems():
        yield Line("settings", BAD, f"a rule is broken: {problem}", "'ipamctl ipam configure' changes it.")


def _pools(engine: Engine) -> Iterator[Line]:
    from calico_ipam.engine.utilization import get_utilization

    usage = get_utilization(engine)
    pools = [pool for pool in usage.pools if not pool.orphans]
    if not pools:
        yield Line("pools", BAD, "there is no pool", "'ipamctl pool create CIDR' makes one.")
    for pool in pools:
        share = pool.in_use / pool.capacity
        if share >= 0.95:
            yield Line(
                "pool",
                BAD,
                f"{pool.name} ({pool.cidr_text}) is {share:.0%} full",
                "Add a pool: 'ipamctl pool create CIDR'.",
            )
        elif share >= 0.8:
            yield Line("pool", WARN, f"{pool.name} ({pool.cidr_text}) is {share:.0%} full", "Plan another pool.")
        else:
            yield Line("pool", GOOD, f"{pool.name} ({pool.cidr_text}) is {share:.0%} full")
    for name, reason in usage.unreadable:
        yield Line("pool", BAD, f"{name} cannot be read: {reason}", f"'ipamctl get ippool {name} -o yaml' shows it.")


def _node(engine: Engine, given: str | None) -> Iterator[Line]:
    from calico_ipam.ctl.init import node_name
    from calico_ipam.engine.explain import explain_node
    from calico_ipam.engine.world import POOLS
    from calico_ipam.model.pool import parse_pools

    name = node_name(given)
    pools, _ = parse_pools(entry.value for entry in engine.store.list(POOLS))
    for version in sorted({pool.cidr.version for pool in pools if pool.enabled}):
        answer = explain_node(engine, name, version=version)
        if not answer.known:
            yield Line(
                "node",
                BAD,
                f"there is no Node {name}",
                f"'ipamctl init --node {name}' makes it; or name this host with --node.",
            )
            return
        state = GOOD if answer.ok else BAD
        cure = "" if answer.ok else f"'ipamctl ipam explain {name}' tells why."
        yield Line("node", state, f"{name}, IPv{version}: {answer.outcome}", cure)


def _clock(engine: Engine) -> Iterator[Line]:
    """Releases and claims that lie ahead of this clock tell that it, or another host's, is wrong."""
    from calico_ipam.engine.survey import BLOCKS
    from calico_ipam.model.timestamps import SECOND

    now = engine.clock.now()
    newest = 0
    for entry in engine.store.list(BLOCKS):
        times = [each.released_at or 0 for each in entry.value.attributes] + [entry.value.claim_time or 0]
        newest = max(newest, *times)
    ahead = (newest - now) // SECOND
    if ahead > 5:
        yield Line(
            "clock",
            BAD,
            f"an address was released or a block claimed {ahead} s ahead of this clock",
            "Set the clocks of the hosts by NTP.",
        )
    else:
        yield Line("clock", GOOD, "nothing in the datastore lies ahead of this clock")
