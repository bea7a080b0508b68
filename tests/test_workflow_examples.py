"""The workflow examples end by themselves, and end well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
STORY_S_MAX = 60


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("incident_triage", "approval.decided"),
        ("research_agent", "'missing': 1"),
        ("payout", "reserve, book, unbook, release"),
    ],
)
def test_the_example_ends_well(name: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name / "story.py"], capture_output=True, text=True, timeout=STORY_S_MAX, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert told in done.stdout
