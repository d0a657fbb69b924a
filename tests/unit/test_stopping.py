"""A call that a signal stops: once, and undoing has its bound."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from calico_cni.dataplane.errors import DataplaneError
from calico_cni.logs import Log
from calico_cni.plugin.undo import Attempt
from calico_cni.stopping import CallStopped
from tests.clock import LONG

PROGRAM = """
import json, os, signal, sys, time, weakref
from calico_cni import stopping

stopping.HEED_SECONDS, stopping.UNDO_SECONDS = 1, 1
name, working, undoing = sys.argv[1], sys.argv[2], float(sys.argv[3])
if name == "SIGHUP":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, name))

def work():
    if working == "in a finalizer":  # Python drops what is raised in here
        Finalized()
    elif working == "in a callback":
        found = Finalized.__new__(type("Other", (), {}))
        kept = weakref.ref(found, lambda _: os.kill(os.getpid(), getattr(signal, name)))
        del found
    else:
        os.kill(os.getpid(), getattr(signal, name))
    if working == "hanging":
        time.sleep(60)
    if working != "heedless":
        stop.heed()

found = {"after": "nothing"}
stop = stopping.Stop()
try:
    with stop.listening():
        try:
            work()
        except stopping.CallStopped:
            for again in ("SIGTERM", "SIGINT"):
                os.kill(os.getpid(), getattr(signal, again))
            stop.heed()  # it was told once, and undoing may go on
            time.sleep(undoing)
            raise
except stopping.CallStopped as stopped:
    found = stopped.error("ADD").document()
os.kill(os.getpid(), signal.SIGTERM)  # what comes after the end of the call is not heard
print(json.dumps(found))
"""


def stopped_by(name: str, working: str = "", undoing: float = 0.0) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, name, working, str(undoing)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_it_is_told_once_and_a_second_signal_does_not_cut_undoing_short(name: str) -> None:
    assert stopped_by(name) == {
        "code": 11,
        "msg": f"ADD was stopped by {name}",
        "details": "What it had done by then was undone; repeat the call.",
    }


@pytest.mark.parametrize("working", ["in a finalizer", "in a callback", "hanging"])
def test_wherever_a_signal_comes_it_is_heeded(working: str) -> None:
    """Also where Python drops what is raised, and where the call does not come to a place of heeding."""
    assert stopped_by("SIGTERM", working)["msg"] == "ADD was stopped by SIGTERM"


def test_a_call_that_was_quicker_than_the_signal_keeps_its_answer() -> None:
    """Everything is made and committed; its answer must not tell that it was undone."""
    assert stopped_by("SIGTERM", "heedless") == {"after": "nothing"}


def test_other_verbs_have_nothing_to_undo() -> None:
    found = CallStopped("SIGTERM").error("DEL")
    assert (found.code, found.message) == (11, "DEL was stopped by SIGTERM")
    assert found.details == "Repeat the call; it goes on with what is left to do."


def test_undoing_that_takes_too_long_is_given_up() -> None:
    found = stopped_by("SIGTERM", undoing=60.0)
    assert found["details"] == "Not all that it had done by then could be undone in time; DEL removes the rest."


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As below nohup."""
    assert stopped_by("SIGHUP") == {"after": "nothing"}


def fail() -> None:
    raise DataplaneError("the device is busy")


@pytest.mark.parametrize("failing", ["", "link", "record", "address"])
def test_what_could_not_be_undone_is_not_told_as_undone(failing: str) -> None:
    attempt = Attempt(Log("none"))
    for step in ("link", "record", "address"):
        setattr(attempt, step, fail if step == failing else lambda: None)
    with pytest.raises(CallStopped) as caught, attempt:
        raise CallStopped("SIGTERM")
    assert caught.value.undone is (failing == "")
