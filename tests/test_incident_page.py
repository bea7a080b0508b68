"""docs/how-to/handle-an-incident.md, typed from top to bottom against a real plane."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from plane_shell import Plane, plane_in_thread

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/how-to/handle-an-incident.md").read_text()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One for the page; the other stories leave it as they found it."""
    with plane_in_thread(tmp_path_factory.mktemp("incident")) as own:
        yield own


def typed(plane: Plane, line: str) -> Result:
    return plane.shell(*shlex.split(line.partition(" > ")[0])[1:], HOLDFAST_ACTOR="ana")


def test_every_command_of_the_page_works_in_its_order(plane: Plane) -> None:
    lines = re.findall(r"^\$ (holdfast .+)$", PAGE, re.MULTILINE)
    said = {line: typed(plane, line) for line in lines}

    assert len(lines) >= 12
    # The cell that was set for 30 minutes is still there: `diff` says so.
    assert [line for line, done in said.items() if done.exit_code] == ["holdfast policy matrix diff"]
    assert "payment.*" in said["holdfast freeze list"].stdout
    assert "action=continue" in next(done.stdout for line, done in said.items() if "matrix set" in line)
    assert "frozen no more" in next(done.stderr for line, done in said.items() if "unfreeze" in line)
    assert "workflow.run  action" in said["holdfast policy matrix diff"].stdout
    exported = next(done.stdout for line, done in said.items() if "incident export" in line)
    assert exported.startswith("# Incident 1: payments twice\n")
    assert "| did | ana | freeze.began freeze/topic=payment.*: charged twice |" in exported
    assert "| note | ana | the bank shows two charges for order 17 |" in exported
    assert "True" in said["holdfast audit verify --plane"].stdout


def test_audit_is_listed_shown_exported_and_found_out(plane: Plane) -> None:
    for n in range(3):
        typed(plane, f"holdfast schedule add s{n} --every 3600 --job t --paused")
    listed = typed(plane, "holdfast audit list --action schedule.added -o jsonl").stdout.splitlines()
    exported = typed(plane, "holdfast audit export --after 1").stdout.splitlines()
    good = typed(plane, "holdfast audit verify")
    known = re.search(r"later: (\d+:[0-9a-f]{64})", good.stderr)
    forged = typed(plane, f"holdfast audit verify --known 2:{'f' * 64}")

    assert (len(listed), len(exported)) == (3, 2)
    assert "schedule/s1" in typed(plane, "holdfast audit show 2").stdout
    assert known is not None
    assert typed(plane, f"holdfast audit verify --known {known[1]}").exit_code == 0
    assert (forged.exit_code, "broken at line 2" in forged.stderr) == (1, True)
    assert typed(plane, "holdfast audit verify --known nonsense").exit_code == 2


REFUSALS = [
    ("holdfast freeze --reason x", 2, "--scope SCOPE --reason TEXT"),
    ("holdfast freeze --scope all --reason x --for soon", 2, "Write 90s, 30m, 2h or 1d"),
    ("holdfast unfreeze --scope all --reason x", 3, "all is not frozen"),
    ("holdfast policy matrix set --action fence --reason x", 2, "--risk RISK"),
    ("holdfast policy matrix set --risk high --reason x", 2, "at least one of"),
    ("holdfast policy matrix reset --risk low --reason x", 3, "is not set"),
    ("holdfast incident stop --number 99", 3, "no incident 99"),
]


def test_what_cannot_be_done_is_refused_with_the_next_step(plane: Plane) -> None:
    for line, code, why in REFUSALS:
        done = typed(plane, line)

        assert (done.exit_code, why in done.stderr) == (code, True), f"{line}: {done.stderr}"
