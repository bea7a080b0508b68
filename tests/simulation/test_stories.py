"""Stories of a hostile world: every promise kept, every recovery reached, every mutant caught.

Some of each kind in a test run; many with `make soak`.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from simulation.caught import read_caught
from simulation.mutant import Mutant
from simulation.mutants import MUTANTS
from simulation.running import run, run_many, swept_in_between
from simulation.seeds import is_fixed, replays, seeds_of


class Telling(NamedTuple):
    """How many stories of a kind are told, and what they must show."""

    batches: int
    batch: int
    detected_within: int
    reached: set[str]
    """What must have happened somewhere in a batch, else it proves nothing about it."""


TELLINGS = {
    "lock": Telling(
        batches=8,
        batch=1250,
        detected_within=2000,
        reached={
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
        },
    ),
    "redis": Telling(
        batches=2,
        batch=150,
        detected_within=2000,
        reached={
            "abandoned:paused",
            "abandoned:unreachable",
            "acquired",
            "failover",
            "refused by the resource",
            "released",
            "renewal_failed",
            "renewed",
            "waited",
        },
    ),
    "plane": Telling(
        batches=12,
        batch=420,
        detected_within=3000,
        reached={
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
        },
    ),
    "governed": Telling(
        batches=2,
        batch=24,
        detected_within=100,
        reached={
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
        },
    ),
    "sessions": Telling(
        batches=2,
        batch=8,
        detected_within=100,
        reached={
            "a plane ended behind its commit",
            "run.begun",
            "run.compensating",
            "run.rerun",
            "session-busy",
            "stopped to interrupt",
            "stopped to rollback",
            "waited and never began",
            "waited to be run again",
        },
    ),
    "plane-redis": Telling(
        batches=2,
        batch=50,
        detected_within=600,
        reached={
            "cancel",
            "job.succeeded",
            "memory full",
            "server restarted",
            "write moved",
        },
    ),
}
CALM = {"calm": 40, "calm-redis": 20}
CAUGHT = read_caught()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "batch"), [(kind, batch) for kind, telling in TELLINGS.items() for batch in range(telling.batches)]
)
def test_promises_are_kept(kind: str, batch: int) -> None:
    telling = TELLINGS[kind]
    tally = run_many(kind, seeds_of(batch, telling.batch))

    assert not tally.violations, replays(tally)
    if is_fixed(batch):
        missing = telling.reached - set(tally.reached)
        assert not missing, f"never reached: {missing}"


@pytest.mark.parametrize("kind", CALM)
def test_where_nothing_happens_nothing_is_put_right(kind: str) -> None:
    tally = run_many(kind, range(CALM[kind]))

    assert not tally.violations, replays(tally)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "mutant"),
    [pytest.param(kind, mutant, id=f"{kind}-{mutant.name}") for kind, mutants in MUTANTS.items() for mutant in mutants],
)
def test_mutant_is_caught(kind: str, mutant: Mutant) -> None:
    stories = TELLINGS[kind].detected_within
    seen_before = CAUGHT[kind].get(mutant.name, 0)
    with mutant.on(), swept_in_between():
        caught = any(run(kind, seed).violation for seed in (seen_before, *range(stories)))

    assert caught, f"{mutant.name}: not seen in {stories} stories; {mutant.promise} is not really checked"
