"""Settings from flags, environment and file; where the collector works; what it refuses (gc §1.2, §18)."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from calico_gc.kcc import Told
from calico_gc.main import LEVELS, find_place, main, parse
from calico_gc.settings import ALL, Settings, load

from calico_ipam.errors import InvalidInput, NotConfigured


def test_every_setting_is_a_flag_a_variable_and_a_line() -> None:
    assert {setting.name for setting in ALL} == {item.name for item in fields(Settings)}
    assert {s.variable for s in ALL if s.name == "handle_grace"} == {"GC_HANDLE_GRACE"}


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text("leak-grace: 1m\nvm-grace: 2m\nhandle-qps: 7\nkeep-handle-prefix: [a., b.]\ndry-run: true\n")
    settings = load(parse(["--config", str(file), "--leak-grace", "3m"]), {"GC_LEAK_GRACE": "9m", "GC_VM_GRACE": "8m"})
    assert (settings.leak_grace, settings.vm_grace, settings.handle_qps) == (180.0, 480.0, 7.0)
    assert settings.keep_handle_prefix == ("a.", "b.")
    assert settings.dry_run is True


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        (["--leak-grace", "soon"], {}, "--leak-grace: 'soon' is not a duration"),
        ([], {"GC_HANDLE_QPS": "fast"}, "GC_HANDLE_QPS: 'fast' is not a number"),
        ([], {"GC_DRY_RUN": "perhaps"}, "GC_DRY_RUN: 'perhaps' is neither true nor false"),
        (["--handle-gc", "maybe"], {}, "is none of off, report, on"),
        (["--handle-min-observations", "1"], {}, "1 is below 2"),
        (["--assume-grace-elapsed"], {}, "needs --once and --dry-run"),
        (["--assume-grace-elapsed", "--once"], {}, "needs --once and --dry-run"),
        (["--report-format", "xml"], {}, "neither json nor calicoctl"),
        (["--config", "/nowhere/gc.yaml"], {}, "cannot be read"),
    ],
)
def test_bad_values_are_named(flags: list[str], environ: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        load(parse(flags), environ)


@pytest.mark.parametrize("content", ["- a list\n", "unknown-setting: 1\n", "config: x\n", "a: [\n"])
def test_bad_files_are_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text(content)
    with pytest.raises(InvalidInput, match="settings file"):
        load({"config": str(file)}, {})


@pytest.mark.parametrize(
    ("given", "told", "grace", "handle_grace"),
    [
        ({}, Told(leak_grace=900.0), 900.0, 900.0),
        ({}, Told(leak_grace=1.0), 1.0, 900.0),
        ({}, Told(leak_grace=3600.0), 3600.0, 3600.0),
        ({}, Told(leak_grace=0.0), 0.0, None),
        ({}, Told(leak_grace=None), None, None),
        ({"leak_grace": "5m"}, Told(leak_grace=None), 300.0, 900.0),
        ({"handle_grace": "1m"}, Told(leak_grace=None), None, 300.0),
        ({"handle_grace": "20m"}, Told(leak_grace=0.0), 0.0, 1200.0),
    ],
)
def test_graces(given: dict[str, str], told: Told, grace: float | None, handle_grace: float | None) -> None:
    options = load(given, {}).options(told, etcd=False)
    assert (options.rules.leak_grace, options.handles.grace) == (grace, handle_grace)


def test_companions_exist_only_beside_kubernetes() -> None:
    settings = Settings()
    assert settings.options(Told(), etcd=False).node_deletion is False
    assert settings.options(Told(), etcd=True).node_deletion is True
    assert settings.options(Told(sync_labels=False), etcd=True).label_sync is False


def test_no_datastore_is_never_guessed() -> None:
    with pytest.raises(NotConfigured, match="never guesses"):
        find_place(Settings(), {})


def test_as_the_replacement_the_default_is_etcd_as_upstreams() -> None:
    with pytest.raises((NotConfigured, InvalidInput)) as error:
        find_place(Settings(), {"ENABLED_CONTROLLERS": "node"})
    assert "etcd" in str(error.value).lower()


@pytest.mark.parametrize(
    ("controllers", "text"),
    [
        ("node,bogus", "'bogus', which nobody knows"),
        ("node, policy", "' policy'"),
        ("node,", "names '', which nobody knows"),
        ("policy", "does not name 'node'"),
        ("node,flannelmigration", "has to be alone"),
    ],
)
def test_controllers_are_checked_as_upstream_does(controllers: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        find_place(Settings(), {"ENABLED_CONTROLLERS": controllers, "DATASTORE_TYPE": "kubernetes"})


@pytest.mark.parametrize("level", ["trace", "debug", "Trace"])
def test_levels_of_upstream_that_say_more_than_ours(level: str) -> None:
    assert LEVELS[level.lower()] == logging.DEBUG


def test_other_controllers_are_named_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    environ = {
        "ENABLED_CONTROLLERS": "node,loadbalancer,policy",
        "DATASTORE_TYPE": "sqlite",
        "SQLITE_PATH": f"{tmp_path}/s/x.db",
    }
    place = find_place(Settings(), environ)
    place.store.close()
    lines = [record.message for record in caplog.records if "left out" in record.message]
    assert lines == ["these controllers are not part of this program and are left out: loadbalancer, policy"]
    assert place.drop_in


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        ('{"Readiness":{"Startup":{"Ready":true,"Reason":""}}}', 0, "Ready"),
        (
            '{"Readiness":{"Startup":{"Ready":true,"Reason":""},"A":{"Ready":false,"Reason":"x"},'
            '"B":{"Ready":false,"Reason":"y"}}}',
            1,
            "x; y",
        ),
        ("{", 1, "holds no status"),
        (None, 1, "No such file"),
    ],
)
@pytest.mark.parametrize("flag", ["-l", "-r"])
def test_upstreams_probe(
    flag: str, content: str | None, code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "status.json"
    if content is not None:
        file.write_text(content)
    assert main(["check-status", flag, "-f", str(file)], {}) == code
    assert text in capsys.readouterr().out


def test_in_upstreams_place_the_log_is_as_its_configuration_says(tmp_path: Path) -> None:
    import logging

    from calico_gc.kcc import Told
    from calico_gc.main import Service

    environ = {"ENABLED_CONTROLLERS": "node", "DATASTORE_TYPE": "sqlite", "SQLITE_PATH": f"{tmp_path}/s/x.db"}
    place = find_place(Settings(), environ)
    place.store.close()
    root = logging.getLogger()
    before = root.level
    try:
        for level, number in (("Debug", 10), ("Info", 20), ("Warning", 30), ("Fatal", 40)):
            Service(Settings(), place).configured(Told(log_level=level))
            assert root.level == number
    finally:
        root.setLevel(before)


@pytest.mark.parametrize(
    ("argv", "environ", "text"),
    [
        ([], {"ENABLED_CONTROLLERS": "node", "NODE_WORKERS": "x"}, "NODE_WORKERS is 'x'"),
        ([], {}, "no datastore is configured"),
        (["--leak-grace", "x"], {}, "is not a duration"),
        (["--log-level", "loud"], {"DATASTORE_TYPE": "sqlite"}, "unknown log level"),
    ],
)
def test_the_program_says_what_is_wrong_in_a_sentence(
    argv: list[str], environ: dict[str, str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv, environ) == 1
    told = capsys.readouterr().err
    assert text in told
    assert "Traceback" not in told


def once(tmp_path: Path, *flags: str, **environ: str) -> tuple[int, Any]:
    import json

    path = tmp_path / "report.json"
    code = main(
        ["--once", "--report", str(path), "--datastore", f"sqlite://{tmp_path}/store/ipam.db", *flags], {**environ}
    )
    return code, json.loads(path.read_text()) if path.exists() else None


def test_once_on_a_store_without_kubernetes_decides_nothing_about_holders(tmp_path: Path) -> None:
    """Nobody tells who lives: everything counts as alive, and only cold and empty blocks are looked after."""
    from calico_ipam.datastore.sqlite import SQLiteStore
    from calico_ipam.engine.client import IPAM
    from calico_ipam.model.keys import ResourceKey
    from calico_ipam.model.resource import IP_POOL, NODE, Resource

    store = SQLiteStore(tmp_path / "store" / "ipam.db")
    from calico_ipam.datastore.api import Create

    store.commit(Create(ResourceKey(IP_POOL, "p"), Resource.new(IP_POOL, "p", {"cidr": "10.0.0.0/24"})))
    store.commit(Create(ResourceKey(NODE, "n"), Resource.new(NODE, "n", {})))
    IPAM(store, hostname="n").auto_assign(
        use="Workload", num4=1, handle="net.cid", attrs={"node": "n", "pod": "p", "namespace": "d"}
    )
    store.close()
    code, document = once(tmp_path, "--leak-grace", "1ms")
    assert code == 0
    assert document["leaks"] == []
    assert document["summary"]["allocations"] == 1
