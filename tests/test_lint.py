"""What `make lint` finds, as a test: most of it is one process that thinks, and beside the others it costs no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(600)
def test_lint_finds_nothing() -> None:
    ran = subprocess.run(
        ["make", "lint"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )

    assert ran.returncode == 0, f"make lint:\n{ran.stdout}"
