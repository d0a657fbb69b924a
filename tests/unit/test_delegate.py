"""Asking the IPAM plugin: where it is found, how it is run, and what its answers mean (cni.md §2.5)."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from calico_cni import system
from calico_cni.context import Finished, ProgramRunner
from calico_cni.delegate import error_of, find_plugin
from calico_cni.errors import CNIError
from calico_cni.stopping import CallStopped, Stop
from tests.clock import LONG, SOON
from tests.cni_bench import CNIBench, answer, ending, failure, told
from tests.disturbers import nothing_kept

OTHER = {"type": "other", "token": "kept"}
RESULT = b'{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}],"routes":[{"dst":"10.123.0.0/16"}]}'


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    found = CNIBench(tmp_path).prepare()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "other").touch()
    return found


# --- finding ------------------------------------------------------------------------------------------------


def not_found(name: str, path: list[str]) -> str:
    with pytest.raises(CNIError) as caught:
        find_plugin(name, path)
    assert caught.value.code == 999
    return caught.value.message


def test_the_first_regular_file_of_that_name(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "other").mkdir()
    (tmp_path / "b" / "other").touch()
    (tmp_path / "c" / "other").touch()
    path = [str(tmp_path / folder) for folder in ("absent", "a", "b", "c")]
    assert find_plugin("other", path) == tmp_path / "b" / "other"


def test_texts_of_what_is_not_found() -> None:
    assert not_found("", ["/a"]) == "no plugin name provided"
    assert not_found("a/b", ["/a"]) == "invalid plugin name: a/b"
    assert not_found("a", []) == "no paths provided"
    assert not_found("a", ["/x", "/y"]) == 'failed to find plugin "a" in path [/x /y]'


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_calico_never_asks_itself(bench: CNIBench, verb: str) -> None:
    """It would start copies of itself without end."""
    (bench.folder / "bin" / "calico").touch()
    found = failure(bench.call(verb, ipam={"type": "calico"}))
    assert found["msg"] == '"calico" wires sandboxes and is no IPAM plugin' and "calico-ipam" in found["details"]


# --- what it is given, and its success ----------------------------------------------------------------------


def test_it_gets_stdin_and_the_whole_environment(bench: CNIBench) -> None:
    seen: list[tuple[str, Mapping[str, str], object]] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        seen.append((path.name, environ, json.loads(stdin)))
        return Finished(0, RESULT, b"a warning of its own\n")

    bench.run_program = run
    result = answer(bench.call("ADD", ipam=OTHER, args="A=b", environ={"HTTP_PROXY": "p"}))
    assert result["ips"] == [{"address": "10.9.0.2/32", "interface": 1}]
    assert result["routes"] == [{"dst": "10.123.0.0/16"}]
    ((name, environ, netconf),) = seen
    assert name == "other" and environ["CNI_COMMAND"] == "ADD" and environ["HTTP_PROXY"] == "p"
    assert environ["CNI_ARGS"] == "IgnoreUnknown=1;A=b"
    assert isinstance(netconf, dict) and netconf["ipam"] == OTHER
    assert bench.noted == b"a warning of its own\n"


@pytest.mark.parametrize(
    ("version", "stdout", "address"),
    [
        ("1.0.0", b'{"ips":[{"address":"10.9.0.2/24"}]}', "10.9.0.2/32"),
        ("1.0.0", b'{"cniVersion":"","ips":[{"address":"10.9.0.2/24"}]}', "10.9.0.2/32"),
        ("1.0.0", b'{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.2/24"}}', "10.9.0.2/32"),
    ],
)
def test_its_result_may_be_of_another_version(bench: CNIBench, version: str, stdout: bytes, address: str) -> None:
    bench.run_program = ending(0, stdout, b"")
    assert answer(bench.call("ADD", cniVersion=version, ipam=OTHER))["ips"][0]["address"] == address


def test_null_is_an_empty_result(bench: CNIBench) -> None:
    bench.run_program = ending(0, b"null", b"")
    assert failure(bench.call("ADD", ipam=OTHER))["msg"] == "IPAM plugin returned no IP addresses in result"


# --- its failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finished", "code", "message"),
    [
        (Finished(1, b'{"code":11,"msg":"later","details":"d"}', b""), 11, "later"),
        (Finished(1, b'{"msg":5}', b""), 0, ""),
        (Finished(1, b"null", b""), 0, ""),
        (Finished(1, b"", b"it broke"), 999, 'netplugin failed: "it broke": exit status 1'),
        (Finished(2, b"", b""), 999, "netplugin failed with no error message: exit status 2"),
        (Finished(-9, b"", b""), 999, "netplugin failed with no error message: signal: killed"),
        (
            Finished(1, b'{"a":1}{"b":2}', b""),
            0,
            'netplugin failed but error parsing its diagnostic message "{\\"a\\":1}{\\"b\\":2}": '
            "invalid character '{' after top-level value",
        ),
        (
            Finished(1, b"oops\n", b""),
            0,
            'netplugin failed but error parsing its diagnostic message "oops\\n": '
            "invalid character 'o' looking for beginning of value",
        ),
    ],
)
def test_errors(finished: Finished, code: int, message: str) -> None:
    error = error_of(finished)
    assert (error.code, error.message) == (code, message)


def test_an_error_is_passed_on_with_its_own_code(bench: CNIBench) -> None:
    bench.run_program = ending(1, b'{"code":101,"msg":"no ranges","details":"x"}', b"log")
    assert failure(bench.call("ADD", ipam=OTHER)) == {"code": 101, "msg": "no ranges", "details": "x"}
    assert bench.records() == [] and bench.dataplane.pairs == {}


def busy(times: int) -> tuple[list[int], ProgramRunner]:
    left = [times]

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(errno.ETXTBSY, "Text file busy")
        return Finished(0, RESULT, b"")

    return left, run


def test_a_plugin_that_is_just_replaced_is_tried_again(bench: CNIBench) -> None:
    _, bench.run_program = busy(5)
    answer(bench.call("ADD", ipam=OTHER))
    assert bench.clock.slept == 5


def test_six_times_at_most(bench: CNIBench) -> None:
    left, bench.run_program = busy(100)
    assert "text file busy" in told(bench.call("ADD", ipam=OTHER))
    assert 100 - left[0] == 6


def test_a_plugin_that_cannot_be_started(bench: CNIBench) -> None:
    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        raise PermissionError(errno.EACCES, "Permission denied")

    bench.run_program = run
    text = f"netplugin failed with no error message: fork/exec {bench.folder}/bin/other: permission denied"
    assert failure(bench.call("ADD", ipam=OTHER))["msg"] == text


def test_a_plugin_that_hangs_is_stopped_and_may_give_back(bench: CNIBench) -> None:
    verbs: list[str] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        verbs.append(environ["CNI_COMMAND"])
        if environ["CNI_COMMAND"] == "ADD":
            raise TimeoutError
        return Finished(0, b"", b"")

    bench.run_program = run
    found = failure(bench.call("ADD", ipam=OTHER))
    assert found["code"] == 11 and "other did not answer within 200 s" in found["msg"]
    assert verbs == ["ADD", "DEL"]


def test_host_local_gets_a_range_at_del_whoever_the_workload_is(bench: CNIBench) -> None:
    """A magic word of pods makes ADD fail; DEL must not, or it would be repeated for ever."""
    given: list[dict[str, Any]] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        given.append(json.loads(stdin)["ipam"])
        return Finished(0, b"", b"")

    (bench.folder / "bin" / "host-local").touch()
    bench.run_program = run
    ipam = {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "10.9.0.0/16"}]]}
    assert bench.call("DEL", ipam=ipam).exit_code == 0
    assert [entry["subnet"] for (entry,) in given[0]["ranges"]] == ["198.51.100.0/29", "10.9.0.0/16"]
    assert "was expecting a list" in told(bench.call("DEL", ipam={"type": "host-local", "ranges": {}}))


def test_a_plugin_that_a_signal_stops_half_way_may_give_back(bench: CNIBench) -> None:
    verbs: list[str] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        verbs.append(environ["CNI_COMMAND"])
        if environ["CNI_COMMAND"] == "ADD":
            raise CallStopped("SIGTERM")
        return Finished(0, b"", b"")

    bench.run_program = run
    with pytest.raises(CallStopped):
        bench.call("ADD", ipam=OTHER)
    assert verbs == ["ADD", "DEL"]


# --- real programs ------------------------------------------------------------------------------------------


def program(folder: Path, body: str) -> Path:
    path = folder / "real"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_program_is_run_with_nothing_but_what_it_is_given(tmp_path: Path) -> None:
    body = "import os,sys\nprint(sys.stdin.read() + os.environ['A'] + str(len(os.environ) < 4))\nsys.stderr.write('e')"
    finished = system.run_program(Stop(), program(tmp_path, body), {"A": "b"}, b"stdin ", 20)
    assert finished == Finished(0, b"stdin bTrue\n", b"e")


class StopOnceThere(Stop):
    """A call that is stopped when the program has written its file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def heed(self) -> None:
        if self._file.exists():
            raise CallStopped("SIGTERM")


@pytest.mark.parametrize("why", ["out of time", "stopped"])
def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path, why: str) -> None:
    path = tmp_path / "real"
    path.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $$ $! > {tmp_path}/writing\nmv {tmp_path}/writing {tmp_path}/pids\nwait\n"
    )
    path.chmod(0o755)
    stop, seconds = (Stop(), 4.0) if why == "out of time" else (StopOnceThere(tmp_path / "pids"), LONG)
    with pytest.raises(TimeoutError if why == "out of time" else CallStopped):
        system.run_program(stop, path, {"PATH": "/usr/bin:/bin"}, b"", seconds)
    children = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(children) == 2
    deadline = time.monotonic() + SOON
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline, "a child of the plugin outlived it"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_reads_no_stdin(tmp_path: Path) -> None:
    finished = system.run_program(Stop(), program(tmp_path, "print(1)"), {}, b"x" * 1_000_000, 20)
    assert finished.stdout == b"1\n"


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    path = program(tmp_path, "print(1)")
    system.run_program(Stop(), path, {}, b"", 20)
    with nothing_kept():
        for _ in range(3):
            system.run_program(Stop(), path, {}, b"", 20)
