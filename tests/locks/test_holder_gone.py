"""Whether the holder of a lock is known to be gone: only ever in doubt on the safe side."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.locks.runtime import SystemRuntime, default_holder, is_gone
from holdfast.ops.drills.processes import descendants
from holdfast.worker.identity import find_start

HERE, _, _ = default_holder().rpartition(":")


def test_a_process_of_this_host_that_has_ended_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    holder = f"{HERE}:{child.pid}"
    assert not is_gone(holder)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(holder) or not sys.platform.startswith("linux"), "dead, and not yet reaped"
    child.wait()
    assert is_gone(holder)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are not read")
def test_a_process_may_have_a_name_that_is_no_text() -> None:
    named = "open('/proc/self/comm', 'wb').write(b'\\xff) Z ('); print(flush=True); import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-c", named], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert not is_gone(f"{HERE}:{child.pid}")
        assert find_start(child.pid) is not None
        assert child.pid in descendants(os.getpid())
        child.kill()


def test_in_doubt_nobody_is_gone() -> None:
    assert not is_gone(default_holder())
    assert not is_gone("another-host:1")
    assert not is_gone("E1")
    assert not is_gone("")


NOBODY = f"{HERE}:{2**22 + 1}"
"""A process id above the highest that Linux gives out."""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere process ids have no namespaces")


@on_linux
def test_a_process_of_another_container_or_machine_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have this host's name, and a process id there says nothing here."""
    assert is_gone(NOBODY)
    monkeypatch.setattr(os, "readlink", lambda _: "pid:[4026530000]")
    in_another_container = default_holder()
    assert not is_gone(NOBODY)
    monkeypatch.undo()
    monkeypatch.setattr(SystemRuntime, "boot_id", lambda _: "another machine")
    assert not is_gone(NOBODY)
    assert len({in_another_container, default_holder(), f"{HERE}:{os.getpid()}"}) == 3


@on_linux
def test_where_nothing_is_known_of_process_ids_nobody_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(os, "readlink", refuse)
    holder = default_holder()
    assert not is_gone(f"{holder.rpartition(':')[0]}:{2**22 + 1}")
