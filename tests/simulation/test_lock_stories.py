"""Two thousand stories of locks in a hostile world: every promise kept, every recovery reached."""

from __future__ import annotations

import pytest

from simulation.lock_mutants import MUTANTS
from simulation.mutant import Mutant
from simulation.running import run, run_many
from simulation.seeds import is_fixed, replays, seeds_of

BATCHES = 4
BATCH = 500
DETECTED_WITHIN = 400

REACHED = {
    "abandoned:paused",
    "abandoned:stolen",
    "abandoned:unreachable",
    "acquired",
    "failover",
    "loop_lagged",
    "not_owned",
    "refused by the resource",
    "release_skipped:paused",
    "released",
    "renewal_failed",
    "renewed",
    "waited",
}
"""What must have happened somewhere in a batch, else it proves nothing about it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    tally = run_many("lock", seeds_of(batch, BATCH))

    assert not tally.violations, replays(tally)
    if is_fixed(batch):
        missing = REACHED - set(tally.reached)
        assert not missing, f"never reached: {missing}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.on():
        caught = any(run("lock", seed).violation for seed in range(DETECTED_WITHIN))

    assert caught, f"{mutant.name}: not seen in {DETECTED_WITHIN} stories; {mutant.promise} is not really checked"
