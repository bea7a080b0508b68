"""Which seeds a test run takes: half of the batches are always the same, half are new every day."""

from __future__ import annotations

import time

from simulation.running import Tally

FRESH = int(time.time()) // 86_400 * 1_000_000


def seeds_of(batch: int, size: int) -> range:
    first = batch * size + (0 if is_fixed(batch) else FRESH)
    return range(first, first + size)


def is_fixed(batch: int) -> bool:
    return batch % 2 == 0


def replays(tally: Tally) -> str:
    """What was broken, and how to see it again."""
    return "\n".join(f"{ending.violation}\n    {ending.replay}" for ending in tally.violations)
