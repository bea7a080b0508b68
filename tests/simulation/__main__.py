"""Soak, replay, shrink, and hunt mutants. `make soak` and `make replay` call it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from os import cpu_count
from pathlib import Path

from progress import PROGRESS

from simulation.caught import TABLE, Caught, catch, keep
from simulation.mutants import MUTANTS
from simulation.picture import draw
from simulation.regressions import seeds_kept
from simulation.running import STORIES, Tally, run, run_many, shrink

CHUNK = 50
INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    soak = commands.add_parser("soak", help="run many seeds of every kind of story")
    soak.add_argument("--seeds", type=int, default=10_000, help="of each kind")
    soak.add_argument("--first", type=int, default=0)
    soak.add_argument("stories", nargs="*", metavar="STORY", help=f"{', '.join(STORIES)}; all of them if none is named")
    replay = commands.add_parser("replay", help="tell one story again, step by step")
    replay.add_argument("story", choices=STORIES)
    replay.add_argument("seed", type=int)
    replay.add_argument("--shrink", action="store_true", help="leave out the faults it does not need to fail")
    replay.add_argument("--picture", type=Path, metavar="FILE", help="draw it as well, as SVG")
    mutants = commands.add_parser("mutants", help="how soon each is caught, as the table of docs/explanation/proof.md")
    mutants.add_argument("--keep", action="store_true", help="write it there, and into caught.toml")
    mutants.add_argument("story", nargs="?", choices=MUTANTS, help="those of one kind alone")
    asked = parser.parse_args()
    if asked.command == "mutants":
        return list_mutants([asked.story] if asked.story else list(MUTANTS), keeps=asked.keep)
    if asked.command == "replay":
        return tell(asked.story, asked.seed, shrinks=asked.shrink, picture=asked.picture)
    unknown = set(asked.stories) - set(STORIES)
    if unknown:
        parser.error(f"no such story: {', '.join(sorted(unknown))}; there are {', '.join(STORIES)}")
    ends = []
    for kind in asked.stories or STORIES:
        ends.append(hunt(kind, range(asked.first, asked.first + asked.seeds)))
        if ends[-1] == INTERRUPTED:
            break
    return max(ends)


def tell(kind: str, seed: int, *, shrinks: bool, picture: Path | None) -> int:
    ending = run(kind, seed)
    without: frozenset[int] = frozenset()
    if shrinks and ending.violation is not None:
        ending, without = shrink(ending)
    print("\n".join(ending.story))
    left_out = f", {len(without)} of them left out" if without else ""
    print(f"\n{kind} {seed}: digest {ending.digest}, {ending.steps} steps, {len(ending.faults)} faults{left_out}")
    print(f"BROKEN {ending.violation}" if ending.violation else "every promise was kept")
    if picture is not None:
        draw(kind, seed, picture, without=without)
        print(f"drawn in {picture}")
    return 1 if ending.violation else 0


def hunt(kind: str, seeds: range) -> int:
    total = Tally()
    began = time.monotonic()
    chunks: list[Sequence[int]] = [seeds_kept(kind)]
    chunks += [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(cpu_count(), initializer=heed_no_interrupt) as pool:
        try:
            for tally in pool.map(run_many, repeat(kind), chunks):
                total.merge(tally)
                show(kind, total, sum(map(len, chunks)), time.monotonic() - began)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            conclude(total)
            return INTERRUPTED
    return conclude(total)


def heed_no_interrupt() -> None:
    """Ctrl-C is for the one who shows what was found; the others end with what they have begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def conclude(total: Tally) -> int:
    PROGRESS.end()
    for ending in total.violations:
        print(f"{ending.violation}\n    {ending.replay}")
    return 1 if total.violations else 0


def list_mutants(kinds: Sequence[str], *, keeps: bool) -> int:
    kinds_of = [kind for kind in kinds for _ in MUTANTS[kind]]
    numbers = [number for kind in kinds for number in range(len(MUTANTS[kind]))]
    caught = []
    print(TABLE, end="")
    with ProcessPoolExecutor(cpu_count()) as pool:
        for one in pool.map(catch_one, kinds_of, numbers):
            print(one, flush=True)
            caught.append(one)
    if keeps:
        keep(caught)
    return 1 if any(one.seed is None for one in caught) else 0


def catch_one(kind: str, number: int) -> Caught:
    """By its number: what it is made of does not travel to another process."""
    return catch(kind, MUTANTS[kind][number])


def show(kind: str, total: Tally, wanted: int, passed_s: float) -> None:
    rate = total.stories / passed_s
    line = (
        f"{kind}: {total.stories} of {wanted} stories, {rate:.0f}/s, {total.simulated_s / 86400:.2f} simulated days, "
        f"{total.faults} faults, {len(total.violations)} violations"
    )
    PROGRESS.show(line)


if __name__ == "__main__":
    sys.exit(main())
