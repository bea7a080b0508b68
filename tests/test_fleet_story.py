"""`make run`: the fleet's story ends by itself, and ends well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

STORY = Path(__file__).parent.parent / "examples/agent_fleet/story.py"
STORY_S_MAX = 110


def test_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, STORY],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=STORY_S_MAX,
        check=False,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    rows = re.findall(r"^(\w[\w ]+\w)  +(\d+|-)  +(\d+|-)$", told.stdout, re.MULTILINE)
    fleet = {name: int(count) for name, count, _ in rows if count != "-"}
    failing_bus = {name: int(count) for name, _, count in rows if count != "-"}
    assert (fleet["submitted"], fleet["succeeded"]) == (200, 200)
    assert fleet["attempts"] > 200
    assert fleet["stale results refused"] >= 1
    assert fleet["settled by a person"] >= 1
    assert failing_bus["submitted"] == failing_bus["succeeded"]
    assert failing_bus["publishes failed"] >= 1
    assert {fleet["duplicate effects"], fleet["lost"], failing_bus["duplicate effects"], failing_bus["lost"]} == {0}
    under_rules = dict(re.findall(r"^([a-z][a-z ]+[a-z])  +(\d+)$", told.stdout, re.MULTILINE))
    assert under_rules == {
        "runs succeeded": "1",
        "approvals decided once": "1",
        "jobs denied": "1",
        "submissions throttled": "3",
    }
    assert list(tmp_path.iterdir()) == []
