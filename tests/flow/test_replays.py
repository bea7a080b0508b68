"""What a dispatch that failed costs when it is repeated: rows 61, 63, 64, 74 and 76; where, `flow.telling` says."""

from __future__ import annotations

import logging

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.faulty_store import Fault
from flow.plane_invariants import check_plane
from flow.stage import Stage, staged
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.states import State
from holdfast.flow.dispatch import Dispatched
from holdfast.gateway.views import job_view
from holdfast.ports import Delivery


class Heard(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


async def delivered(stage: Stage) -> list[Delivery]:
    """What a worker finds, however its bus carries it."""
    return await stage.bus.take("w1", limit=10)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST])
@on_virtual_time
async def test_failed_dispatched_write_publishes_nothing_and_its_replay_exactly_one(
    runtime: VirtualRuntime, fault: Fault
) -> None:
    async with staged(runtime) as stage:
        second = await stage.replica("S2")
        job = await stage.submit()
        stage.store.fault("apply", fault, times=1)

        assert await stage.dispatch(job, "w1") is Dispatched.UNANSWERED
        assert await delivered(stage) == []
        assert await stage.job(job.id) == job

        replays = [await one.dispatch(job, "w1") for one in (stage, second, stage)]
        assert replays == [Dispatched.SENT, Dispatched.MOVED_ON, Dispatched.MOVED_ON]
        sent = await stage.job(job.id)
        assert await delivered(stage) == [Delivery("w1", job.id, sent.fence)]
        assert len(stage.seen.published) == (0 if stage.bus.atomic else 1)
        await check_plane(stage, all_ended=False)


@on_virtual_time
async def test_two_failed_publishes_show_as_four_schedulings_and_no_attempt(runtime: VirtualRuntime) -> None:
    async with staged(runtime, detached=True) as stage:
        job = await stage.submit()
        stage.publish_fault = BusFault.NOT_APPLIED
        for _ in range(2):
            await stage.dispatch(await stage.job(job.id))

        shown = job_view(await stage.job(job.id))

        assert (shown.state, shown.attempts, shown.schedulings) == (State.SCHEDULED, 0, 4)
        assert shown.retries == {"publish": 2}
        await check_plane(stage, all_ended=False)
        phases = [e.detail["phase"] for e in stage.seen.events if e.kind == "dispatch.rolled_back"]
        assert phases == ["publish", "publish"]


@on_virtual_time
async def test_failed_rollback_is_an_error_that_names_the_job(runtime: VirtualRuntime) -> None:
    """ERROR means that a person must act: what an alert is made of."""
    heard = Heard(logging.ERROR)
    logger = logging.getLogger("holdfast")
    logger.addHandler(heard)
    try:
        async with staged(runtime, detached=True) as stage:
            job = await stage.submit()
            stage.publish_fault = BusFault.NOT_APPLIED
            stage.store.fault("apply", Fault.FAIL, times=1, kind="dispatch.rolled_back")
            await stage.dispatch(job)
    finally:
        logger.removeHandler(heard)

    [error] = heard.records
    assert error.getMessage().startswith(f"dispatch.rollback_failed job_id={job.id} topic={job.topic}")
