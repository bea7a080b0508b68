"""Processes of a drill are understood whatever else they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    talker = Process("anna", ["talker"], tmp_path / "1.log")

    os.waitid(os.P_PID, talker.pid, os.WEXITED | os.WNOWAIT)
    talker.kill()

    assert talker.answers() == "> state 1.5 trusted\n"
    assert "a renewal failed" in talker.said()
