"""Some six hundred stories of the control plane in a hostile world, and some in a calm one."""

from __future__ import annotations

import pytest

from simulation.mutant import Mutant
from simulation.plane_mutants import MUTANTS
from simulation.running import run, run_many
from simulation.seeds import is_fixed, replays, seeds_of

BATCHES = 4
BATCH = 160
CALM = 80
DETECTED_WITHIN = 300

REACHED = {
    "attempt.refused",
    "cancel",
    "disk full",
    "dispatch.rolled_back",
    "effect.resolved",
    "effect.unknown",
    "job.cancel_requested",
    "job.cancelled",
    "job.handed_back",
    "job.lost",
    "job.requeued",
    "job.retried",
    "job.succeeded",
    "predecessor proved dead",
}
"""What must have happened somewhere in a batch, else it proves nothing about it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    tally = run_many("plane", seeds_of(batch, BATCH))

    assert not tally.violations, replays(tally)
    if is_fixed(batch):
        missing = REACHED - set(tally.reached)
        assert not missing, f"never reached: {missing}"


def test_where_nothing_happens_nothing_is_put_right() -> None:
    tally = run_many("calm", range(CALM))

    assert not tally.violations, replays(tally)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.on():
        caught = any(run("plane", seed).violation for seed in range(DETECTED_WITHIN))

    assert caught, f"{mutant.name}: not seen in {DETECTED_WITHIN} stories; {mutant.promise} is not really checked"
