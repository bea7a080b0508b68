"""`make run`: the story ends by itself, and ends well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parent.parent / "examples/paused_worker/story.py"
STORY_S_MAX = 60


def test_the_guard_saves_the_balance_that_is_lost_without_it(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-W", "error", STORY],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=STORY_S_MAX,
        check=False,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    summary = {
        name: (guarded, bare)
        for name, guarded, bare in re.findall(r"^(\w[\w ]+\w)  +(\w+)  +(\w+)$", told.stdout, re.MULTILINE)
    }
    assert summary["writes accepted"] == ("10", "10")
    assert summary["stale writes refused"][1] == "0"
    assert int(summary["stale writes refused"][0]) >= 1
    assert summary["deposits acknowledged"] == ("10", "10")
    assert summary["balance"][0] == "10"
    assert int(summary["balance"][1]) < 10
    assert summary["deposits lost"][0] == "0"
    assert summary["balance correct"] == ("yes", "no")
    assert told.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes by /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_story_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, STORY],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts jobs in the background has them ignore SIGINT, and so would the story.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as telling:
        assert telling.stdout is not None
        while "SIGSTOP" not in telling.stdout.readline():
            assert telling.poll() is None
        telling.send_signal(number)
        _, complaint = telling.communicate(timeout=10)

    assert telling.returncode == status
    assert "Traceback" not in complaint
    assert list(tmp_path.iterdir()) == []
    assert [p for p in Path("/proc").glob("[0-9]*") if str(tmp_path) in cmdline(p)] == []


def cmdline(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:  # it ended in the meantime
        return ""
