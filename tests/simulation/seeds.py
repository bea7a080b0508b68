"""Which seeds a test run takes: half of the batches are always the same, half are new every day."""

from __future__ import annotations

import time

from simulation.running import Tally

FRESH = int(time.time()) // 86_400 * 1_000_000


def seeds_of(batch: int, size: int) -> range:
    first = batch * size + (FRESH if batch % 2 else 0)
    return range(first, first + size)


def replays(tally: Tally) -> str:
    """What was broken, and how to see it again."""
    return "\n".join(f"{ending.violation}\n    {ending.replay}" for ending in tally.violations)
