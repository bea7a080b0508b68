"""The dead-man's timer, in processes that it may end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SETTING = """
import time
from holdfast.locks.dead_man import DeadMan
from holdfast.locks.runtime import SYSTEM
timer = DeadMan()
def arm(owner, seconds): timer.arm(owner, SYSTEM.now() + seconds, now=SYSTEM.now())
def disarm(owner): timer.disarm(owner, now=SYSTEM.now())
"""


@pytest.mark.parametrize(
    ("story", "code"),
    [
        ("arm('a', 0.2)", 1),
        ("arm('a', 0.2); arm('a', 60)", 0),
        ("arm('a', 0.2); disarm('a')", 0),
        # The deadline of one is not put off by another's word.
        ("arm('a', 0.2); arm('b', 60)", 1),
        ("arm('a', 0.2); arm('b', 60); disarm('b')", 1),
        ("arm('b', 60); arm('a', 0.2); disarm('a')", 0),
    ],
)
def test_earliest_deadline_ends_the_process(story: str, code: int) -> None:
    script = f"{SETTING}\n{story}\ntime.sleep(0.6)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert ("most recent call first" in done.stderr) is (code == 1)
