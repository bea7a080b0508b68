"""Processes of a drill are understood whatever else they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import sooner_or_later

from holdfast.ops.drills.processes import Process

TALKER = """
import sys
for said, logged in [(">", "a renewal failed"), (" state 1.5", "another one"), (" trusted\\n", "")]:
    sys.stdout.write(said)
    sys.stdout.flush()
    print(logged, file=sys.stderr, flush=True)
"""


def test_a_line_of_the_log_between_the_words_of_an_answer_does_not_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    talker = Process("anna", "talker", [], tmp_path / "1.log")

    os.waitid(os.P_PID, talker.pid, os.WEXITED | os.WNOWAIT)
    talker.kill()

    assert talker.answers() == "> state 1.5 trusted\n"
    assert "a renewal failed" in talker.said()


def test_what_a_process_is_told_is_not_in_the_list_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL of a store has a password in it, and everybody on the machine can read that list."""
    (tmp_path / "listener.py").write_text("import sys\nprint(sys.argv[1], sys.stdin.readline())")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    listener = Process("anna", "listener", ["redis://:s3cret@here"], tmp_path / "1.log")
    # For a moment it is no process of ours any more, and not yet the one that it becomes.
    listed = sooner_or_later(Path(f"/proc/{listener.pid}/cmdline").read_text)
    listener.say("and go on")

    os.waitid(os.P_PID, listener.pid, os.WEXITED | os.WNOWAIT)
    listener.kill()

    assert "listener" in listed
    assert "s3cret" not in listed
    assert listener.answers().strip() == "redis://:s3cret@here and go on"
