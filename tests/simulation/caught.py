"""The first story in which each mutant is seen: kept in caught.toml, and shown in docs/explanation/proof.md."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from simulation.mutant import Mutant
from simulation.running import run, swept_in_between

KEPT = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[2] / "docs/explanation/proof.md"
STORIES_MAX = 5000
HEAD = """\
# The first story in which each mutant was seen. It is told first, so that a test run need not look for it again;
# where it shows nothing any more, all are told from the beginning. Made by `python -m simulation mutants --keep`.
"""
TABLE = "| wrong | in a story of | breaks | seen as | stories until then |\n|---|---|---|---|---|\n"


class Caught(NamedTuple):
    """One mutant: what it was meant to break, what broke first, and in which story. None: in no story."""

    kind: str
    name: str
    promise: str
    broke: str
    seed: int | None

    def __str__(self) -> str:
        """Its line of the table."""
        seen = "**not seen**" if self.seed is None else self.broke
        return (
            f"| {self.name} | {self.kind} | {self.promise} | {seen} | {'-' if self.seed is None else self.seed + 1} |"
        )


def catch(kind: str, mutant: Mutant) -> Caught:
    with mutant.on(), swept_in_between():
        for seed in range(STORIES_MAX):
            if violation := run(kind, seed).violation:
                return Caught(kind, mutant.name, mutant.promise, violation.partition(":")[0], seed)
    return Caught(kind, mutant.name, mutant.promise, "", None)


def read_caught() -> dict[str, dict[str, int]]:
    """By kind of story and name of the mutant, the seed."""
    kept: dict[str, dict[str, int]] = tomllib.loads(KEPT.read_text())
    return kept


def keep(caught: Iterable[Caught]) -> None:
    """Whole kinds of story: what is kept of these now is replaced, in the file and on the page."""
    kept, by_kind = read_caught(), _by_kind(caught)
    for kind, those in by_kind.items():
        kept[kind] = {one.name: one.seed for one in those if one.seed is not None}
    parts = [HEAD]
    for kind, seeds in kept.items():
        lines = [f"{json.dumps(name)} = {seed}" for name, seed in sorted(seeds.items())]
        parts.append("\n".join([f"[{kind}]", *lines, ""]))
    KEPT.write_text("\n".join(parts))

    page = PAGE.read_text()
    before, _, rest = page.partition(TABLE)
    old, _, after = rest.partition("\n\n")
    rows = _rows_by_kind(old.splitlines())
    rows |= {kind: [str(one) for one in those] for kind, those in by_kind.items()}
    table = TABLE + "\n".join(line for lines in rows.values() for line in lines)
    PAGE.write_text(f"{before}{table}\n\n{after}")


def _by_kind(caught: Iterable[Caught]) -> dict[str, list[Caught]]:
    by_kind: dict[str, list[Caught]] = {}
    for one in caught:
        by_kind.setdefault(one.kind, []).append(one)
    return by_kind


def _rows_by_kind(rows: Iterable[str]) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = {}
    for row in rows:
        by_kind.setdefault(row.split(" | ")[1], []).append(row)
    return by_kind
