"""The herd in small, and what its verdict would find: too much in flight, and a tenant that waits for another's herd."""

from __future__ import annotations

from pathlib import Path

import pytest
from plane.nats_buses import nats_running

from holdfast.core.job import JobId, Tenant
from holdfast.core.states import State
from holdfast.ports import JobEvent
from soak.herd_soak import Herd, judge_herd, judge_shares, soak_herd

SMALL = Herd(jobs=1000, dispatch_timeout_s=0.7, away_timeouts=3, slots=3, work_s=0.05)


@pytest.mark.timeout(400)
async def test_jobs_that_waited_for_nats_are_run_once_within_the_workers_room_and_fairly(tmp_path: Path) -> None:
    with nats_running() as nats:
        tally = await soak_herd(f"sqlite:///{tmp_path / 'plane.db'}", nats, SMALL)

    assert tally.violations == []
    assert tally.figures["succeeded"] == len(tally.acknowledged) == SMALL.jobs
    assert tally.figures["rolled back"] > SMALL.slots, "they were tried while it was away"


def an_event(number: int, job: str, kind: str, state: State) -> JobEvent:
    return JobEvent(
        number=number,
        tenant=Tenant("t"),
        job_id=JobId(job),
        kind=kind,
        state=state,
        attempt=1,
        fence=1,
        at=0.0,
        detail={},
    )


def test_more_in_flight_than_there_is_room_for_is_found() -> None:
    events = [
        an_event(1, "j1", "job.submitted", State.SCHEDULED),
        an_event(2, "j2", "job.submitted", State.SCHEDULED),
        an_event(3, "j1", "job.dispatched", State.DISPATCHED),
        an_event(4, "j2", "job.dispatched", State.DISPATCHED),
        an_event(5, "j1", "job.started", State.RUNNING),
        an_event(6, "j1", "job.succeeded", State.SUCCEEDED),
        an_event(7, "j2", "job.started", State.RUNNING),
        an_event(8, "j2", "job.succeeded", State.SUCCEEDED),
    ]

    assert judge_herd(events, {"j1", "j2"}, room=2) == []
    assert judge_herd(events, {"j1", "j2"}, room=1) == ["2 jobs were in flight, and the workers have room for 1"]


def test_a_tenant_that_waits_for_another_s_herd_is_found() -> None:
    ready = {"large": [0.0] * 8, "small": [0.0] * 2}
    first_come = [("large", float(n)) for n in range(1, 9)] + [("small", 9.0), ("small", 10.0)]
    in_turns = [("large", 1.0), ("small", 2.0), ("large", 3.0), ("small", 4.0)]
    in_turns += [("large", float(n)) for n in range(5, 11)]

    assert judge_shares(ready, in_turns) == []
    assert judge_shares(ready, first_come) == ["the last job of small took 10.0 s; 4.0 s would have been fair"]


def test_a_back_off_that_is_not_over_is_no_injustice() -> None:
    ready = {"large": [0.0, 0.0, 0.0], "small": [9.0]}

    assert judge_shares(ready, [("large", 1.0), ("large", 2.0), ("large", 3.0), ("small", 10.0)]) == []
