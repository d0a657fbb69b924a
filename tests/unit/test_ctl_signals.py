"""A signal that ends ``ipam gc --lock``: whatever it breaks on its way, the lock goes and the signal is told."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from calico_ipam.ctl.gc import _held_lock
from calico_ipam.ctl.session import Session
from tests.cluster import memory_folder
from tests.ctl import Ctl


def test_a_failure_that_a_signal_caused_is_not_told_instead_of_it() -> None:
    """A store that undoes a transaction which never began fails with words of its own."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        ctl = Ctl(Path(folder) / "ipam.db")
        ctl.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        session = Session()
        session.datastore = ctl.url
        try:
            with pytest.raises(KeyboardInterrupt), _held_lock(session, wanted=True):
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    raise RuntimeError("cannot rollback")
        finally:
            session.close()
        assert ctl.ok("datastore", "lock", "--status") == "The datastore is not locked.\n"


def test_other_failures_are_told() -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        ctl = Ctl(Path(folder) / "ipam.db")
        ctl.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        session = Session()
        session.datastore = ctl.url
        try:
            with pytest.raises(RuntimeError, match="broken"), _held_lock(session, wanted=True):
                raise RuntimeError("broken")
        finally:
            session.close()
        assert ctl.ok("datastore", "lock", "--status") == "The datastore is not locked.\n"
