"""Sessions of runs: one at a time, in the order they came, whoever starts, ends, stops or loses them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.explaining import cause_of_run, evidence
from flow.faulty_store import Fault
from flow.run_stage import chain, runs_staged
from flow.session_runs import CHAT, cancel, check_in_turn, finish, join, states
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.core.record import Kind
from holdfast.core.run import LOOK_S, RunState
from holdfast.core.states import State
from holdfast.core.why import Reason
from holdfast.errors import Conflict, SessionBusy, StoreUnavailable
from holdfast.flow.record import End
from holdfast.flow.runs import RunOrder
from holdfast.flow.session import SessionPolicy
from holdfast.ports import RecordChange, Transaction

BOOKING: dict[str, Any] = {
    "name": "booking",
    "steps": [
        {"id": "s1", "kind": "job", "topic": "book", "compensate": {"topic": "unbook"}},
        {"id": "s2", "kind": "job", "topic": "pay", "depends_on": ["s1"]},
    ],
}


@on_virtual_time
async def test_runs_of_a_session_go_one_after_the_other(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        runs = [await join(staged) for _ in range(4)]
        assert [run.state for run in runs] == [RunState.RUNNING, *[RunState.QUEUED] * 3]

        async with staged.going(work_s=1):
            ended = [await staged.wait_ended(run.id, within_s=60) for run in runs]

        assert [run.state for run in ended] == [RunState.SUCCEEDED] * 4
        assert [run.since for run in ended] == sorted(run.since for run in ended)
        await check_in_turn(staged, runs)
        assert await staged.results() == 0


@undelivered
@on_virtual_time
async def test_run_that_waits_says_for_whom_and_nothing_of_it_has_begun(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second, third = [await join(staged) for _ in range(3)]

        assert await staged.states(second.id) == {"s1": "ready"}
        assert second.held is not None
        assert (second.held.code, CHAT in second.held.message) == ("session-busy", True)
        assert [event.kind for event in await staged.timeline(second.id)] == ["run.started", "run.held"]
        found = await cause_of_run(staged, third)
        assert found.reason is Reason.SESSION_BUSY
        assert evidence(found, "waits_for", "ahead", "because") == [first.id, 2, "waits-for-step"]

        with pytest.raises(Conflict, match="queued; only one that is running can be paused"):
            await staged.first.runs.pause(ACME, second.id, by="ann", reason="")


@on_virtual_time
async def test_next_run_is_told_by_the_transaction_that_ends_the_one_before(runtime: VirtualRuntime) -> None:
    """The engine dies right after that commit: another one finds the word."""
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second = await join(staged), await join(staged)
        await finish(staged, first)
        assert await states(staged, first, second) == ["succeeded", "queued"]
        assert await staged.results() == 1
        await asyncio.sleep(11)
        assert (await cause_of_run(staged, second)).reason is Reason.RUN_UNATTENDED

        _, other = await staged.another("E2")
        await other.tick()
        assert await states(staged, second) == ["running"]
        begun = await staged.run(second.id)
        assert (begun.held, await staged.states(second.id), await staged.results()) == (None, {"s1": "running"}, 0)


@on_virtual_time
async def test_reconciler_begins_a_run_whose_word_was_lost(runtime: VirtualRuntime) -> None:
    """As by a store that was restored: nothing but the runs themselves says whose turn it is."""
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second, third = [await join(staged) for _ in range(3)]
        await finish(staged, first)
        lost = await staged.stage.inner.list_due(Kind.RESULT, limit=10)
        await staged.stage.inner.transact(
            [Transaction(records=[RecordChange(after=one, replaces=one.version, remove=True) for one in lost])]
        )
        assert len(lost) == 1

        await staged.first.reconciler.tick()
        assert await states(staged, second, third) == ["queued", "queued"]
        await asyncio.sleep(LOOK_S + 1)
        await staged.first.reconciler.tick()
        assert await states(staged, second, third) == ["running", "queued"]
        assert staged.first.counted("runs_recovered", reason="turn-may-have-come") == 1
        await asyncio.sleep(LOOK_S + 1)
        await staged.first.reconciler.tick()
        assert await states(staged, second, third) == ["running", "queued"]


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
@on_virtual_time
async def test_end_that_nobody_knows_to_be_written_lets_one_run_begin(runtime: VirtualRuntime, fault: Fault) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second, third = [await join(staged) for _ in range(3)]
        await staged.do(first.id, "s1")
        await staged.first.tick()
        await staged.do(first.id, "s2")
        staged.stage.store.fault("transact", fault, times=1)
        with pytest.raises(StoreUnavailable):
            await staged.first.tick()
        for _ in range(3):
            await staged.first.tick()

        assert await states(staged, first, second, third) == ["succeeded", "running", "queued"]
        assert [event.kind for event in await staged.timeline(second.id)].count("run.begun") == 1


@on_virtual_time
async def test_two_engines_at_once_begin_each_run_once_and_in_turn(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        _, other = await staged.another("E2")
        order = RunOrder(tenant=ACME, workflow="two", session=CHAT)
        async with staged.going(other, workers=2, work_s=0.1):
            started = await asyncio.gather(
                *((staged.first, other)[n % 2].runs.start(order) for n in range(8)), return_exceptions=True
            )
            runs = [one.run for one in started if not isinstance(one, BaseException)]
            assert len(runs) == 8, started
            for run in runs:
                await staged.wait_ended(run.id, within_s=120)

        await check_in_turn(staged, runs)
        kinds = [event.kind for run in runs for event in await staged.timeline(run.id)]
        assert (kinds.count("run.begun"), kinds.count("run.succeeded")) == (7, 8)


@on_virtual_time
async def test_run_that_starts_while_the_last_one_ends_does_not_wait_for_ever(runtime: VirtualRuntime) -> None:
    """Either it sees that the session is free, or who ends sees it."""
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        replica, other = await staged.another("E2")
        first = await join(staged)
        order = RunOrder(tenant=ACME, workflow="two", session=CHAT)
        # It has seen the first one, and has not written yet.
        rule = replica.store.pause("transact")
        starting = asyncio.create_task(other.runs.start(order))
        await rule.reached.wait()
        await finish(staged, first)
        rule.open()
        assert (await starting).run.state is RunState.RUNNING

        # The other way round: who ends has seen nobody.
        second = (await starting).run
        await staged.do(second.id, "s1")
        await staged.first.tick()
        await staged.do(second.id, "s2")
        rule = staged.stage.store.pause("transact")
        ending = asyncio.create_task(staged.first.tick())
        await rule.reached.wait()
        third = (await other.runs.start(order)).run
        rule.open()
        await ending
        assert await states(staged, second, third) == ["running", "queued"]  # it was refused, and looks again
        for _ in range(3):
            await staged.first.tick()
        assert await states(staged, second, third) == ["succeeded", "running"]


# -- stopping, and being stopped -----------------------------------------------------------------------


@on_virtual_time
async def test_run_that_is_cancelled_while_it_waits_lets_nobody_pass(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second, third = [await join(staged) for _ in range(3)]

        assert (await cancel(staged, second)).state is RunState.CANCELLED
        await staged.first.tick()
        assert await states(staged, first, third) == ["running", "queued"]
        assert await staged.states(second.id) == {"s1": "cancelled"}

        await finish(staged, first)
        await staged.first.tick()
        assert await states(staged, third) == ["running"]


@pytest.mark.usefixtures("unhurried")
@on_virtual_time
async def test_paused_run_keeps_its_session(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second = await join(staged), await join(staged)
        await staged.first.runs.pause(ACME, first.id, by="ann", reason="lunch")
        async with staged.going():
            await asyncio.sleep(LOOK_S + 1)
            assert await states(staged, first, second) == ["paused", "queued"]
            assert (await cause_of_run(staged, second)).evidence["because"] == "run-paused"
            await staged.first.runs.resume(ACME, first.id, by="ann")
            assert (await staged.wait_ended(second.id, within_s=60)).state is RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("policy", "on_the_way"),
    [(SessionPolicy.INTERRUPT, RunState.CANCELLED), (SessionPolicy.ROLLBACK, RunState.COMPENSATING)],
)
@on_virtual_time
async def test_newer_run_stops_the_others_of_its_session_and_begins_when_they_have_stopped(
    runtime: VirtualRuntime, policy: SessionPolicy, on_the_way: RunState
) -> None:
    async with runs_staged(runtime) as staged:
        first = await staged.start(BOOKING, session=CHAT)
        await staged.do(first.id, "s1")
        await staged.first.tick()
        waiting = (await staged.order("booking", session=CHAT)).run
        other = (await staged.order("booking", session="another")).run
        newer = (await staged.order("booking", session=CHAT, session_policy=policy)).run
        assert newer.state is RunState.QUEUED
        for _ in range(2):  # it hears of the wish, then of the end of its job
            await staged.first.tick()
        assert await states(staged, first, waiting, other) == [on_the_way, RunState.CANCELLED, RunState.RUNNING]
        if on_the_way is RunState.COMPENSATING:
            assert await states(staged, newer) == ["queued"]
            await staged.do(first.id, "s1~undo")
            await staged.first.tick()
        await staged.first.tick()
        assert await states(staged, first, newer) == ["cancelled", "running"]


@pytest.mark.parametrize("policy", [SessionPolicy.INTERRUPT, SessionPolicy.ROLLBACK, SessionPolicy.REJECT])
@pytest.mark.parametrize("begun", [False, True])
@on_virtual_time
async def test_newer_job_does_not_stop_what_undoes_a_run_but_waits_for_it(
    runtime: VirtualRuntime, policy: SessionPolicy, *, begun: bool
) -> None:
    """As with runs: one that undoes what it did does not make its session busy, and nobody cancels that."""
    async with runs_staged(runtime) as staged:
        run = await staged.start(BOOKING, session=CHAT)
        await staged.do(run.id, "s1")
        await staged.first.tick()
        await staged.do(run.id, "s2", End.FAILED, retryable=False)
        await staged.first.tick()
        undoing = await staged.job_of(run.id, "s1~undo")
        if begun:
            await staged.stage.dispatch(undoing, "w-undo")
            undoing = await staged.stage.claim_one("w-undo")

        newer = await staged.stage.submit(session=CHAT, session_policy=policy)

        assert await staged.stage.job(undoing.id) == undoing
        if begun:
            await staged.stage.complete(undoing, End.SUCCEEDED)
        async with staged.going():
            assert (await staged.wait_ended(run.id, within_s=60)).undone_badly == 0
            assert [job.state for job in await staged.stage.wait_ended(newer, within_s=60)] == [State.SUCCEEDED]
        assert (await staged.states(run.id))["s1"] == "compensated"


@on_virtual_time
async def test_of_many_interrupts_the_last_one_is_left(runtime: VirtualRuntime) -> None:
    """Though those that were told to stop have not heard of it yet: each is told once."""
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        runs = [await join(staged, SessionPolicy.INTERRUPT) for _ in range(5)]
        assert await staged.results() == 4

        async with staged.going(work_s=1):
            ended = [await staged.wait_ended(run.id, within_s=60) for run in runs]
        assert [run.state for run in ended] == [*[RunState.CANCELLED] * 4, RunState.SUCCEEDED]
        await check_in_turn(staged, runs)


@undelivered
@on_virtual_time
async def test_of_two_runs_that_reject_others_one_is_started(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(BOOKING)
        _, replica = await staged.another("E2")
        order = RunOrder(tenant=ACME, workflow="booking", session=CHAT, session_policy=SessionPolicy.REJECT)
        answers = await asyncio.gather(
            *(runs.start(order) for runs in (staged.first.runs, replica.runs) for _ in range(3)), return_exceptions=True
        )
        [started] = [answer for answer in answers if not isinstance(answer, BaseException)]
        busy = [answer for answer in answers if isinstance(answer, SessionBusy)]
        assert len(busy) == 5
        assert all(started.run.id in str(error) for error in busy)

        # Told to stop, it does not make the session busy; but the next one begins when it has stopped.
        await cancel(staged, started.run)
        following = (await staged.first.runs.start(order)).run
        assert following.state is RunState.QUEUED
        for _ in range(2):
            await staged.first.tick()
        assert await states(staged, following) == ["running"]


@undelivered
@on_virtual_time
async def test_reject_sees_a_run_that_waits(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        await staged.apply(chain("two", 2))
        first, second = await join(staged), await join(staged)
        await cancel(staged, first)
        with pytest.raises(SessionBusy, match=second.id):
            await join(staged, SessionPolicy.REJECT)
