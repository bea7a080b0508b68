"""Stories of approvals, policies, workflows, schedules and tenants. A few in each test run; many with `make soak`."""

from __future__ import annotations

import pytest

from simulation.governed_mutants import MUTANTS
from simulation.mutant import Mutant
from simulation.running import run, run_many
from simulation.seeds import is_fixed, replays, seeds_of

BATCHES = 2
BATCH = 32
DETECTED_WITHIN = 40

REACHED = {
    "a result met a busy run",
    "approval raced",
    "approval raced by time",
    "approval.expired",
    "approval.superseded",
    "approval.voted",
    "asked again",
    "edited",
    "job.denied",
    "moved-on",
    "policy tightened",
    "requester refused",
    "run.cancelled",
    "run.compensating",
    "run.resumed",
    "session-busy",
    "throttled",
    "tick missed",
}
"""What must have happened somewhere in a batch, else it proves nothing about it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    tally = run_many("governed", seeds_of(batch, BATCH))

    assert not tally.violations, replays(tally)
    if is_fixed(batch):
        missing = REACHED - set(tally.reached)
        assert not missing, f"never reached: {missing}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.on():
        caught = any(run("governed", seed).violation for seed in range(DETECTED_WITHIN))

    assert caught, f"{mutant.name}: not seen in {DETECTED_WITHIN} stories; {mutant.promise} is not really checked"
