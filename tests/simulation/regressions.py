"""The seeds that found something, kept in regressions.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

from simulation.running import STORIES

KEPT = Path(__file__).with_suffix(".toml")


class Regression(NamedTuple):
    story: str
    seed: int
    found: str


def read_regressions(path: Path = KEPT) -> list[Regression]:
    """In the order of the file. Raises for a story that is not told any more, and for an entry that says too little."""
    entries = [Regression(**entry) for entry in tomllib.loads(path.read_text()).get("regression", [])]
    for entry in entries:
        if entry.story not in STORIES:
            raise ValueError(f"{path.name}: no story {entry.story!r}; there are {', '.join(STORIES)}")
    return entries


def seeds_kept(story: str) -> list[int]:
    return [regression.seed for regression in read_regressions() if regression.story == story]
