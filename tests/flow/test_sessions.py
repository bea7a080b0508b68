"""Sessions: one job at a time, and what a new one does about those that are not finished."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time
from plane.jobs import bare

from flow.stage import ACME, Stage, staged
from flow.telling import undelivered
from holdfast.core.job import Job, Tenant
from holdfast.core.states import State
from holdfast.errors import KeyReused, SessionBusy
from holdfast.flow.cancel import cancel
from holdfast.flow.record import End
from holdfast.flow.session import SessionPolicy
from holdfast.ports import Transaction

CHAT = "chat-1"


async def order(stage: Stage, policy: SessionPolicy = SessionPolicy.ENQUEUE, **more: Any) -> Job:
    return await stage.submit(session=CHAT, session_policy=policy, **more)


@on_virtual_time
async def test_jobs_of_a_session_run_one_after_the_other(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops(), stage.working(slots=8, work_s=3):
        ordered = []
        for _ in range(4):
            ordered.append(await order(stage))
            await asyncio.sleep(0.001)  # else nobody could say which came first
        ended = await stage.wait_ended(*ordered, within_s=60)

    events = [
        (event.kind, event.job_id) for event in stage.seen.events if event.kind in ("job.started", "job.succeeded")
    ]
    assert [job.state for job in ended] == [State.SUCCEEDED] * 4
    assert events == [(kind, job.id) for job in ordered for kind in ("job.started", "job.succeeded")]


@undelivered
@on_virtual_time
async def test_reject_names_the_job_that_is_there(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        first = await order(stage, SessionPolicy.REJECT)
        with pytest.raises(SessionBusy) as caught:
            await order(stage, SessionPolicy.REJECT)

        assert (caught.value.status, caught.value.code, caught.value.job_id) == (409, "session-busy", first.id)
        assert await stage.inner.list_session(ACME, CHAT) == [bare(first)]


@undelivered
@on_virtual_time
async def test_reject_sees_jobs_that_were_enqueued(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        first = await order(stage)
        with pytest.raises(SessionBusy, match=first.id):
            await order(stage, SessionPolicy.REJECT)


@on_virtual_time
async def test_session_is_free_again_when_its_job_has_ended(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await stage.complete(await stage.begun(session=CHAT))

        assert (await order(stage, SessionPolicy.REJECT)).state is State.SCHEDULED


@undelivered
@on_virtual_time
async def test_sessions_and_tenants_do_not_meet(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        accepted = [
            await order(stage, SessionPolicy.REJECT),
            await order(stage, SessionPolicy.REJECT, tenant=Tenant("other")),
            await stage.submit(session="chat-2", session_policy=SessionPolicy.REJECT),
        ]

        assert [job.state for job in accepted] == [State.SCHEDULED] * 3


@pytest.mark.parametrize("count", [2, 20])
@undelivered
@on_virtual_time
async def test_of_many_at_once_only_one_is_first(runtime: VirtualRuntime, count: int) -> None:
    async with staged(runtime) as stage:
        asked = [order(stage, SessionPolicy.REJECT) for _ in range(count)]
        answers = await asyncio.gather(*asked, return_exceptions=True)

        [winner] = [answer for answer in answers if isinstance(answer, Job)]
        assert all(isinstance(a, SessionBusy) and a.job_id == winner.id for a in answers if a is not winner)
        assert await stage.inner.list_session(ACME, CHAT) == [bare(winner)]


@undelivered
@on_virtual_time
async def test_repeated_key_gives_the_first_job_though_the_session_is_busy_with_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for policy in (SessionPolicy.REJECT, SessionPolicy.INTERRUPT, SessionPolicy.ROLLBACK):
            key: dict[str, Any] = {"session": policy, "session_policy": policy, "key": policy}
            first, again = await stage.order(**key), await stage.order(**key)

            assert (again.job.id, first.repeated, again.repeated) == (first.job.id, False, True)
            assert (await stage.job(first.job.id)).state is State.SCHEDULED


@pytest.mark.parametrize("policy", [SessionPolicy.REJECT, SessionPolicy.INTERRUPT])
@undelivered
@on_virtual_time
async def test_key_of_another_request_is_refused_and_stops_nobody(
    runtime: VirtualRuntime, policy: SessionPolicy
) -> None:
    async with staged(runtime) as stage:
        await stage.order(key="k", payload=b"1")
        live = await order(stage) if policy is SessionPolicy.INTERRUPT else None
        with pytest.raises(KeyReused):
            await order(stage, policy, key="k", payload=b"2")

        if live is not None:
            assert (await stage.job(live.id)).state is State.SCHEDULED


@pytest.mark.parametrize("policy", [SessionPolicy.REJECT, SessionPolicy.INTERRUPT])
@undelivered
@on_virtual_time
async def test_key_is_not_to_blame_for_jobs_that_came_and_went_between_two_looks(
    runtime: VirtualRuntime, policy: SessionPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(runtime) as stage:
        transact, guests = stage.inner.transact, 3

        async def met(transactions: Sequence[Transaction]) -> list[bool]:
            nonlocal guests
            if not guests or not transactions[0].submissions:
                return await transact(transactions)
            guests -= 1
            guest = await order(stage)
            written = await transact(transactions)
            await cancel(ACME, guest.id, "never mind", store=stage.inner)
            return written

        monkeypatch.setattr(stage.inner, "transact", met)

        assert (await order(stage, policy, key="k")).state is State.SCHEDULED
        assert guests == 0


@on_virtual_time
async def test_interrupt_stops_what_waits_and_asks_what_runs_to_stop(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        running = await stage.begun(session=CHAT)
        waiting = await order(stage)
        newest = await order(stage, SessionPolicy.INTERRUPT)

        assert (await stage.job(waiting.id)).state is State.CANCELLED
        assert (await stage.job(running.id)).cancel_requested
        assert await stage.inner.list_dispatchable(limit=10) == []
        await stage.complete(running, End.CANCELLED)
        assert [job.id for job in await stage.inner.list_dispatchable(limit=10)] == [newest.id]
        assert (await stage.job(running.id)).error == {"code": "cancelled", "message": "stopped on request"}


@pytest.mark.parametrize("end", [End.CANCELLED, End.FAILED])
@on_virtual_time
async def test_rollback_is_said_on_every_job_that_it_stopped(runtime: VirtualRuntime, end: End) -> None:
    async with staged(runtime) as stage:
        running = await stage.begun(session=CHAT)
        waiting = await order(stage, payload=b'{"to":"x"}')
        await order(stage, SessionPolicy.ROLLBACK)
        await stage.complete(running, end, error={"code": "boom", "message": ""})

        for job in (await stage.job(running.id), await stage.job(waiting.id)):
            assert job.state is State.CANCELLED
            assert job.error is not None
            assert job.error["code"] == "rolled_back"
        # Payloads are not read to stop their jobs, and stay.
        assert (await stage.job(waiting.id)).payload == waiting.payload != b""


@on_virtual_time
async def test_rollback_is_said_on_a_job_whose_worker_died(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage, stage.loops():
        running = await stage.begun(session=CHAT)
        await order(stage, SessionPolicy.ROLLBACK)
        [ended] = await stage.wait_ended(running, within_s=60)

        assert ended.state is State.CANCELLED
        assert ended.error is not None
        assert ended.error["code"] == "rolled_back"


@undelivered
@on_virtual_time
async def test_of_interrupts_at_once_one_is_left(runtime: VirtualRuntime) -> None:
    """Whoever came last has stopped all others; none was enqueued behind one it should have stopped."""
    async with staged(runtime) as stage:
        asked = [order(stage, SessionPolicy.INTERRUPT) for _ in range(4)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        live = await stage.inner.list_session(ACME, CHAT)

        assert len(live) == 1
        accepted = [answer for answer in answers if isinstance(answer, Job)]
        assert live[0].id in {job.id for job in accepted}
        for job in accepted:
            if job.id != live[0].id:
                assert (await stage.job(job.id)).state is State.CANCELLED


@on_virtual_time
async def test_job_that_was_asked_to_stop_does_not_make_a_session_busy(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        running = await stage.begun(session=CHAT)
        first = await order(stage, SessionPolicy.INTERRUPT)
        second = await order(stage, SessionPolicy.INTERRUPT)

        assert (await stage.job(first.id)).state is State.CANCELLED
        assert {job.id for job in await stage.inner.list_session(ACME, CHAT)} == {running.id, second.id}


@undelivered
@on_virtual_time
async def test_actor_is_kept(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(actor="ana")

        assert (await stage.job(job.id)).actor == "ana"
