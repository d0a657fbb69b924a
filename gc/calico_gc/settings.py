"""Every setting as a flag, an environment variable and a line of a file (gc §18).

A flag beats the environment (``GC_`` and the flag's name), the environment beats the file, the file beats the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from calico_gc.decide import VM_GRACE, Rules
from calico_gc.durations import parse_duration
from calico_gc.kcc import Told
from calico_gc.options import HandleOptions, Options
from calico_ipam.errors import InvalidInput

PREFIX = "GC_"
FLOOR = 300.0  #: seconds no handle grace goes below: an ADD may take that long between its two writes
DEFAULT_HANDLE_GRACE = 900.0
MODES = ("off", "report", "on")


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are seconds. None: not set, so that something else decides."""

    once: bool = False
    dry_run: bool = False
    assume_grace_elapsed: bool = False
    report: str = ""
    report_format: str = "json"
    report_html: str = ""
    leak_grace: float | None = None
    vm_grace: float = VM_GRACE
    handle_gc: str = "on"
    handle_repair: str = "on"
    handle_grace: float | None = None
    handle_min_observations: int = 2
    handle_qps: float = 20.0
    handle_batch: int = 1000
    keep_handle_prefix: tuple[str, ...] = ()
    max_releases_per_sync: int = 10_000
    write_qps: float = 500.0
    leader_elect: bool = True
    lease_namespace: str = ""
    write_kcc_status: bool = False
    legacy_metrics: bool = True
    finished_pods: bool = False
    nameless_addresses: bool = False
    windows_empty: bool = False
    repair_rowless_blocks: bool = False
    events: bool = True
    listen: str = "127.0.0.1:9094"
    status_file: str = ""
    health_port: int = 0
    datastore: str = ""
    config: str = ""
    log_level: str = "info"
    host: bool = False
    host_cache: str = "/var/lib/cni/results"
    host_netns: str = "/var/run/netns"
    host_runtime: str = ""

    def options(self, told: Told | None, *, etcd: bool) -> Options:
        """Return what the controller is told. ``told``: upstream's configuration, live."""
        grace = self.leak_grace if self.leak_grace is not None else (told.leak_grace if told is not None else None)
        return Options(
            rules=Rules(grace, self.vm_grace, self.finished_pods, self.nameless_addresses),
            handles=HandleOptions(
                collect=self.handle_gc,
                repair=self.handle_repair,
                grace=self._handle_grace(grace),
                observations=max(2, self.handle_min_observations),
                rate=self.handle_qps,
                batch=self.handle_batch,
                keep=self.keep_handle_prefix,
            ),
            dry_run=self.dry_run,
            most_releases=self.max_releases_per_sync,
            repair_rowless=self.repair_rowless_blocks,
            node_deletion=etcd,
            label_sync=etcd and (told is None or told.sync_labels),
        )

    def _handle_grace(self, leak_grace: float | None) -> float | None:
        """With the leak grace off, handles are left alone too, unless their own grace is given."""
        if self.handle_grace is not None:
            return max(FLOOR, self.handle_grace)
        return max(leak_grace, DEFAULT_HANDLE_GRACE) if leak_grace else None


@dataclass(frozen=True, slots=True)
class Setting:
    """``flag`` without dashes. ``help`` in one line. ``metavar`` empty: a switch."""

    name: str
    help: str
    metavar: str = ""
    parse: Callable[[str], Any] = str

    @property
    def flag(self) -> str:
        return self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "t", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "f", "false", "no", "off", ""):
        return False
    raise InvalidInput(f"{text!r} is neither true nor false", subject=text)


def _mode(text: str) -> str:
    if text not in MODES:
        raise InvalidInput(f"{text!r} is none of {', '.join(MODES)}", subject=text)
    return text


def _number(least: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise InvalidInput(f"{text!r} is not a number", subject=text) from None
        if value < least:
            raise InvalidInput(f"{text} is below {least:g}", subject=text)
        return value

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


ALL: tuple[Setting, ...] = (
    Setting("once", "look once, act once, write the report, end"),
    Setting("dry_run", "decide everything, write nothing"),
    Setting("assume_grace_elapsed", "with --once --dry-run: do not wait for a second look"),
    Setting("report", "write a JSON report here after each full scan", "FILE"),
    Setting("report_format", "json, or calicoctl for 'ipam release --from-report'", "FORMAT"),
    Setting("report_html", "with --once: write the page here as one file", "FILE"),
    Setting("leak_grace", "grace period of leaks; default: KubeControllersConfiguration", "TIME", parse_duration),
    Setting("vm_grace", "least grace period of virtual machines, 0 turns them off", "TIME", parse_duration),
    Setting("handle_gc", "orphan handles: off, report or on", "MODE", _mode),
    Setting("handle_repair", "handles with wrong counts or missing: off, report or on", "MODE", _mode),
    Setting("handle_grace", "how long a handle must be wrong; at least 5m", "TIME", parse_duration),
    Setting("handle_min_observations", "looks that must agree, at least 2", "N", _number(2, int)),
    Setting("handle_qps", "writes to handles per second", "N", _number(0, float)),
    Setting("handle_batch", "handles repaired in one pass", "N", _number(1, int)),
    Setting("keep_handle_prefix", "never touch handles that begin so; repeat, or separate by commas", "PREFIX", _list),
    Setting("max_releases_per_sync", "addresses released in one pass", "N", _number(1, int)),
    Setting("write_qps", "writes to the datastore per second in all, 0 for no limit", "N", _number(0, float)),
    Setting("leader_elect", "act only while holding the lease (default on)", "BOOL", _boolean),
    Setting("lease_namespace", "namespace of the lease; default: the pod's own, else kube-system", "NAME"),
    Setting("write_kcc_status", "create and update upstream's configuration object, as its replacement"),
    Setting("legacy_metrics", "upstream's totals per node too (default on)", "BOOL", _boolean),
    Setting("finished_pods", "also collect addresses of ended pods that never reported one"),
    Setting("nameless_addresses", "also collect addresses without a handle or a node whose pod is gone"),
    Setting("windows_empty", "blocks that hold nothing but Windows' reservations are empty"),
    Setting("repair_rowless_blocks", "release empty blocks that no affinity row names"),
    Setting("events", "write Kubernetes events (default on)", "BOOL", _boolean),
    Setting("listen", "address of metrics, health and page; empty for none", "HOST:PORT"),
    Setting("status_file", "write upstream's status file here", "FILE"),
    Setting("health_port", "upstream's health port", "PORT", _number(0, int)),
    Setting("datastore", "URL of the datastore; default: upstream's environment", "URL"),
    Setting("config", "file with settings, YAML or JSON", "FILE"),
    Setting("log_level", "debug, info, warning or error", "LEVEL"),
    Setting("host", "a host without Kubernetes: the container runtime says who lives"),
    Setting("host_cache", "folder of libcni's results, with --host", "DIR"),
    Setting("host_netns", "folder of network namespaces, with --host", "DIR"),
    Setting("host_runtime", "command that lists the runtime's containers, with --host", "COMMAND"),
)
_BY_NAME = {setting.name: setting for setting in ALL}


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of a call. ``flags``: name -> text, or True for a switch; texts of a list are joined.

    Raises InvalidInput naming the source of a value that cannot be used.
    """
    environment = {s.name: environ[s.variable] for s in ALL if environ.get(s.variable)}
    path = str(flags.get("config") or environment.get("config") or "")
    merged = {**(_file(path) if path else {}), **environment, **flags}
    values: dict[str, Any] = {}
    for name, given in merged.items():
        setting = _BY_NAME[name]
        source = f"--{setting.flag}" if name in flags else setting.variable if name in environment else path
        values[name] = _value(setting, given, source)
    settings = replace(Settings(), **values)
    if settings.assume_grace_elapsed and not (settings.once and settings.dry_run):
        raise InvalidInput(
            "--assume-grace-elapsed needs --once and --dry-run: without a second look nothing is released"
        )
    if settings.report_format not in ("json", "calicoctl"):
        raise InvalidInput(f"report format {settings.report_format!r} is neither json nor calicoctl")
    return settings


def _value(setting: Setting, given: Any, source: str) -> Any:
    parse = setting.parse if setting.metavar else _boolean
    text = ("true" if given else "false") if isinstance(given, bool) else _text(given)
    try:
        return parse(text)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}", subject=source, hint=error.hint) from None


def _text(given: Any) -> str:
    return (
        ",".join(str(part) for part in given)
        if isinstance(given, Sequence) and not isinstance(given, str)
        else str(given)
    )


def _file(path: str) -> dict[str, Any]:
    """Return the settings in a file: a mapping from flag names to values."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"settings file {path} cannot be read: {error.strerror}", subject=path) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"settings file {path} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidInput(f"settings file {path} holds no mapping of settings", subject=path)
    found = {}
    for key, value in document.items():
        name = str(key).replace("-", "_")
        if name not in _BY_NAME or name == "config":
            raise InvalidInput(f"settings file {path}: unknown setting {key!r}", subject=path)
        found[name] = value
    return found


#: a setting that has no place in Settings, or the other way round, is found by a test
NAMES = frozenset(item.name for item in fields(Settings))
