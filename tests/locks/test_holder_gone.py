"""Whether the holder of a lock is known to be gone: only ever in doubt on the safe side."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from holdfast.locks.runtime import default_holder, is_gone


def test_a_process_of_this_host_that_has_ended_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    holder = f"{socket.gethostname()}:{child.pid}"
    assert not is_gone(holder)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(holder) or not sys.platform.startswith("linux"), "dead, and not yet reaped"
    child.wait()
    assert is_gone(holder)


def test_in_doubt_nobody_is_gone() -> None:
    assert not is_gone(default_holder())
    assert not is_gone("another-host:1")
    assert not is_gone("E1")
    assert not is_gone("")
