"""The fleet in small, and what its verdict would find: lost jobs, second ends, fences that went back, second effects."""

from __future__ import annotations

from pathlib import Path

import pytest
import servers

from holdfast.core.job import JobId, Tenant
from holdfast.core.states import State
from holdfast.ports import JobEvent
from holdfast.worker import EffectAbsent
from soak.fleet_soak import soak_fleet
from soak.fleet_tasks import ACCEPTED, REFUSED, REPEATED, enter, make_ledger
from soak.fleet_verdict import Arrival, judge, read_ledger

WELL = (("job.submitted", 0), ("job.dispatched", 5), ("job.started", 5), ("job.succeeded", 5))
ONCE = (("j1", 5, ACCEPTED),)


@pytest.mark.timeout(400)
async def test_a_fleet_keeps_its_promises_under_rolling_kills_and_stops(tmp_path: Path) -> None:
    try:
        tally = await soak_fleet("fleet-redis", tmp_path, seconds=10)
    except FileNotFoundError as why:
        servers.unavailable("redis", str(why))

    assert tally.violations == []
    assert tally.acknowledged
    assert tally.figures["kills"]
    assert tally.figures["stops"]


def events(*happened: tuple[str, int]) -> list[JobEvent]:
    return [
        JobEvent(
            number=number,
            tenant=Tenant("t"),
            job_id=JobId("j1"),
            kind=kind,
            state=State.RUNNING,
            attempt=1,
            fence=fence,
            at=0.0,
            detail={},
        )
        for number, (kind, fence) in enumerate(happened, start=1)
    ]


@pytest.mark.parametrize(
    ("happened", "came", "found"),
    [
        (WELL[:3], ONCE, "ended 0 times"),
        ((*WELL, WELL[-1]), ONCE, "ended 2 times"),
        ((WELL[0], *WELL), ONCE, "submitted 2 times"),
        ((WELL[0], ("job.dispatched", 6), *WELL[1:]), ONCE, "dispatched with fences [6, 5]"),
        ((*WELL[:3], WELL[2], WELL[3]), ONCE, "started with fences [5, 5]"),
        ((*WELL[:3], ("job.succeeded", 4)), ONCE, "not of the last attempt"),
        (WELL, (), "succeeded without its effect"),
        (WELL, (*ONCE, ("j1", 6, ACCEPTED)), "accepted twice"),
        (WELL, (*ONCE, ("j1", 5, REPEATED)), "attempts came twice"),
        (WELL, (*ONCE, ("j1", 7, REPEATED)), "attempts that never began"),
    ],
)
def test_what_must_not_become_of_a_job(
    happened: tuple[tuple[str, int], ...], came: tuple[tuple[str, int, str], ...], found: str
) -> None:
    violations = judge({"key": "j1"}, events(*happened), [Arrival(*each) for each in came])

    assert any(found in violation for violation in violations), violations


def test_what_may_become_of_a_job() -> None:
    assert judge({"key": "j1"}, events(*WELL), [Arrival(*ONCE[0])]) == []


def test_a_job_that_nobody_was_told_of_is_one_too_many() -> None:
    [violation] = judge({}, events(*WELL), [Arrival(*ONCE[0])])

    assert "1 jobs more than keys" in violation


def test_the_ledger_refuses_a_lower_fence_and_knows_a_key_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    make_ledger(ledger)

    enter(str(ledger), "j1", 5, "k")
    enter(str(ledger), "j1", 7, "k")
    with pytest.raises(EffectAbsent):
        enter(str(ledger), "j1", 6, "k")
    enter(str(ledger), "j2", 1, "k")

    assert [arrival.was for arrival in read_ledger(ledger)] == [ACCEPTED, REPEATED, REFUSED, ACCEPTED]
