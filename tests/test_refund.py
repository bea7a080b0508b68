"""The refund experiment: crashes in mid-payment pay twice without `once`, and never with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXPERIMENT = Path(__file__).parent.parent / "examples/refund_twice/experiment.py"
CRASHES = 8


def test_once_pays_no_refund_twice() -> None:
    told = subprocess.run(
        [sys.executable, EXPERIMENT, str(CRASHES)], capture_output=True, text=True, timeout=100, check=False
    )

    assert told.returncode == 0, told.stdout + told.stderr
    rows = re.findall(r"^(\w[\w -]+\w)  +(\d+)  +(\d+)$", told.stdout, re.MULTILINE)
    counted = {name: (int(without), int(with_once)) for name, without, with_once in rows}
    assert counted["crashes in mid-payment"] == (CRASHES, CRASHES)
    assert counted["paid twice"] == (CRASHES, 0)
    assert counted["waiting for a person"] == (0, CRASHES)
    assert counted["not paid"] == (0, 0)
