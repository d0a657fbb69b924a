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
from calico_cni.stopping import CallStopped, Stop
from tests.clock import LONG

PROGRAM = """
import json, os, signal, sys, time, weakref
from calico_cni import stopping

name, working, undoing = sys.argv[1], sys.argv[2], sys.argv[3]
stopping.HEED_SECONDS, stopping.UNDO_SECONDS = 1, 1 if undoing else 60
if name == "SIGHUP":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, name))

def longer_than_patience(seconds):
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        time.sleep(0.01)
    return "done"

def work():
    if working == "in a finalizer":  # Python drops what is raised in here
        Finalized()
    elif working == "in a callback":
        found = Finalized.__new__(type("Other", (), {}))
        kept = weakref.ref(found, lambda _: os.kill(os.getpid(), getattr(signal, name)))
        del found
    else:
        os.kill(os.getpid(), getattr(signal, name))
    if working == "requesting":
        stop._name, noted = "", stop._name  # it comes while the request is under way
        def request():
            stop._name = noted
            time.sleep(60)
        stop.waited(request)
    if working == "making a link":
        assert longer_than_patience(2.5) == "done"
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
            with stop.undoing():
                if not undoing:
                    stop.heed()  # undoing may go on
                elif undoing == "a link":
                    assert longer_than_patience(2.5) == "done"
                elif undoing == "a record":
                    stop.waited(lambda: time.sleep(60))
                elif undoing == "much":
                    while True:
                        stop.waited(lambda: time.sleep(0.01))
            raise
except stopping.CallStopped as stopped:
    found = stopped.error("ADD").document()
os.kill(os.getpid(), signal.SIGTERM)  # what comes after the end of the call is not heard
stop.heed()  # nor what came just before it: what is undone then must not be stopped
print(json.dumps(found))
"""


def stopped_by(name: str, working: str = "", undoing: str = "") -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, name, working, undoing]
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


@pytest.mark.parametrize("working", ["in a finalizer", "in a callback", "requesting", "making a link"])
def test_wherever_a_signal_comes_it_is_heeded(working: str) -> None:
    """Also where Python drops what is raised, in a request that does not end, and after what must not be cut off."""
    assert stopped_by("SIGTERM", working)["msg"] == "ADD was stopped by SIGTERM"


def test_a_call_that_was_quicker_than_the_signal_keeps_its_answer() -> None:
    """Everything is made and committed; its answer must not tell that it was undone."""
    assert stopped_by("SIGTERM", "heedless") == {"after": "nothing"}


def test_other_verbs_have_nothing_to_undo() -> None:
    found = CallStopped("SIGTERM").error("DEL")
    assert (found.code, found.message) == (11, "DEL was stopped by SIGTERM")
    assert found.details == "Repeat the call; it goes on with what is left to do."


@pytest.mark.parametrize("undoing", ["a record", "much"])
def test_undoing_that_takes_too_long_is_given_up(undoing: str) -> None:
    found = stopped_by("SIGTERM", undoing=undoing)
    assert found["details"] == "Not all that it had done by then could be undone; DEL removes the rest."


def test_what_waits_for_nobody_is_undone_however_long_it_takes() -> None:
    """It has its own bound, and cut off in the middle it would be half undone."""
    found = stopped_by("SIGTERM", undoing="a link")
    assert found["details"] == "What it had done by then was undone; repeat the call."


AT_ONCE = """
import signal
from calico_cni.stopping import CallStopped, Stop

both, stop = (signal.SIGTERM, signal.SIGHUP), Stop()
try:
    with stop.listening():
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        for each in both:
            signal.raise_signal(each)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        stop.heed()
except CallStopped as stopped:
    print(stopped.error("ADD").message)
"""


def test_two_signals_at_once_are_heard_as_one() -> None:
    """As a service manager sends them, to a process that was not running in this moment."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=LONG, check=False)
    assert done.stdout in ("ADD was stopped by SIGTERM\n", "ADD was stopped by SIGHUP\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As below nohup."""
    assert stopped_by("SIGHUP") == {"after": "nothing"}


def fail() -> None:
    raise DataplaneError("the device is busy")


@pytest.mark.parametrize("failing", ["", "link", "record", "address"])
def test_what_could_not_be_undone_is_not_told_as_undone(failing: str) -> None:
    attempt = Attempt(Log("none"), Stop())
    for step in ("link", "record", "address"):
        setattr(attempt, step, fail if step == failing else lambda: None)
    with pytest.raises(CallStopped) as caught, attempt:
        raise CallStopped("SIGTERM")
    assert caught.value.undone is (failing == "")


UNHEARD = """
import os, signal, sys
from calico_cni import dispatch, entry
from calico_cni.protocol import CALICO, Request, Response

def handle(request, context):
    if request.command == "ADD":
        os.kill(os.getpid(), signal.SIGTERM)  # everything is made: the call does not heed it any more
        return Response("{}", undo=request.as_verb("DEL"))
    context.stop.heed()
    sys.stderr.write("taken back")
    return Response()

dispatch.handle = handle
sys.exit(entry.respond(Request(CALICO, {"CNI_COMMAND": "ADD"}, b""), "", -1))
"""


def test_what_a_runtime_that_went_away_never_hears_of_is_taken_back() -> None:
    """It sends a signal and closes the pipe; the one must not keep the other from being seen to."""
    command = [sys.executable, "-c", UNHEARD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, ["taken back"]), done.stderr
