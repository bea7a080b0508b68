"""A seed is a story: the same in every process, and short once what it does not need is left out."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from simulation import lock_mutants
from simulation.mutants import MUTANTS
from simulation.running import STORIES, run, shrink

TESTS = Path(__file__).parent.parent


def python(*command: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(TESTS)}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


def test_same_seed_same_story_in_any_process() -> None:
    script = f"from simulation.test_replay import digests; print(digests({list(STORIES)}))"

    told = {python("-c", script, hash_seed=n).stdout for n in (1, 2)}

    # In the other order: what was told before a story must not matter to it.
    here = digests(reversed(STORIES))
    assert told == {f"{ {kind: here[kind] for kind in STORIES} }\n"}


def digests(kinds: Iterable[str]) -> dict[str, list[str]]:
    return {kind: [run(kind, seed).digest for seed in range(2)] for kind in kinds}


def test_replay_tells_the_story_and_its_digest() -> None:
    told = python("-m", "simulation", "replay", "lock", "3")

    assert told.returncode == 0, told.stderr
    assert "store      acquire for" in told.stdout
    assert f"lock 3: digest {run('lock', 3).digest}" in told.stdout


def test_shrinking_keeps_the_violation_and_drops_faults_it_does_not_need() -> None:
    [blind] = [mutant for mutant in lock_mutants.MUTANTS if mutant.name == "renew blindly"]
    with blind.on():
        broken = next(ending for seed in range(100) if (ending := run("lock", seed)).violation)

        shorter, without = shrink(broken)

    assert shorter.violation is not None
    assert shorter.violation.startswith("L2")
    assert len(shorter.faults) - len(without) < len(broken.faults)


def test_soak_says_how_far_it_is_and_what_it_found() -> None:
    told = python("-m", "simulation", "soak", "--seeds", "20", "lock")

    assert told.returncode == 0, told.stderr
    assert "20 of 20 stories" in told.stdout
    assert "0 violations" in told.stdout


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        pytest.param(target, wrong, id=f"{mutant.name}-{target}")
        for mutants in MUTANTS.values()
        for mutant in mutants
        for target, wrong in mutant.changes.items()
        if inspect.isfunction(wrong)
    ],
)
def test_mutant_can_be_called_as_what_it_stands_for(target: str, wrong: Any) -> None:
    """Else it breaks promises by being of no use, and not by what it does wrong."""
    right = inspect.signature(pkgutil.resolve_name(target)).parameters.values()
    by_name = {one.name: one for one in right if one.kind is one.KEYWORD_ONLY}
    by_place = [one for one in right if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]

    inspect.signature(wrong).bind(*by_place, **by_name)


def test_page_lists_every_mutant() -> None:
    page = (TESTS.parent / "docs/explanation/proof.md").read_text()
    listed = re.findall(r"^\| ([^|]+) \| ([\w-]+) \| \w+ \| \w+ \| \d+ \|$", page, re.MULTILINE)

    made = [(mutant.name, kind) for kind, mutants in MUTANTS.items() for mutant in mutants]
    assert listed == made, "make it anew with: PYTHONPATH=tests .venv/bin/python -m simulation mutants --keep"
