"""What people do to runs, and what runs do to others: cancel, pause, resume, rerun; approvals, messages."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.run_stage import RunStage, chain, runs_staged
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.core.approval import ApprovalState
from holdfast.core.approval import from_record as approval_of
from holdfast.core.decision import Choice, Decision, Rate, Throttle
from holdfast.core.job import Job
from holdfast.core.record import Kind
from holdfast.core.run import Run, RunState
from holdfast.core.states import Event, State
from holdfast.core.webhook import Webhook, post_from, webhook_record
from holdfast.errors import Conflict, NotFound
from holdfast.flow.approve import Approvals, Said
from holdfast.flow.decide import AllowAll
from holdfast.flow.record import End
from holdfast.locks import LockBusy
from holdfast.ports import RecordChange, Store, Transaction

PAYOUT = {
    "name": "payout",
    "steps": [
        {"id": "book", "kind": "job", "topic": "book", "compensate": {"topic": "unbook", "payload": "${output}"}},
        {"id": "pay", "kind": "job", "topic": "pay", "depends_on": ["book"]},
    ],
}


async def cancelled(staged: RunStage, run: Run, **more: Any) -> Run:
    wanted = {"by": "ann", "reason": "enough", "compensate": True, **more}
    return await staged.first.runs.cancel(ACME, run.id, **wanted)


@undelivered
@on_virtual_time
async def test_cancelling_stops_what_has_not_begun_at_once(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        stopping = await cancelled(staged, run)
        assert stopping.state is RunState.CANCELLING
        assert (await staged.job_of(run.id, "s1")).state is State.CANCELLED
        await staged.first.tick()

        ended = await staged.run(run.id)
        assert ended.state is RunState.CANCELLED
        assert (await staged.states(run.id))["s1"] == "cancelled"
        with pytest.raises(Conflict):
            await cancelled(staged, run)


@on_virtual_time
async def test_cancelling_asks_the_worker_of_a_running_job_and_undoes_what_was_done(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(PAYOUT)
        await staged.do(run.id, "book", result=b'{"entry": 9}')
        await staged.first.tick()
        pay = await staged.job_of(run.id, "pay")
        await staged.stage.dispatch(pay, "w1")
        begun = await staged.stage.claim_one("w1")
        await cancelled(staged, run)
        assert (await staged.stage.job(pay.id)).cancel_requested
        await staged.stage.complete(begun, End.CANCELLED)
        await staged.first.tick()

        assert (await staged.run(run.id)).state is RunState.COMPENSATING
        undo = await staged.job_of(run.id, "book~undo")
        assert (undo.topic, msgspec.json.decode(undo.payload)) == ("unbook", {"entry": 9})
        await staged.do(run.id, "book~undo")
        await staged.first.tick()
        assert (await staged.run(run.id)).state is RunState.CANCELLED
        assert (await staged.states(run.id))["book"] == "compensated"


@on_virtual_time
async def test_what_was_done_stays_if_nobody_wants_it_undone(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(PAYOUT)
        await staged.do(run.id, "book")
        await staged.first.tick()
        await cancelled(staged, run, compensate=False)
        await staged.first.tick()

        assert (await staged.run(run.id)).state is RunState.CANCELLED
        assert (await staged.states(run.id))["book"] == "succeeded"


@on_virtual_time
async def test_a_paused_run_keeps_results_and_begins_nothing(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("two", 2))
        await staged.first.runs.pause(ACME, run.id, by="ann", reason="lunch")
        await staged.do(run.id, "s1")
        await staged.first.tick()
        assert await staged.results() == 0
        assert (await staged.states(run.id))["s1"] == "succeeded"
        assert (await staged.stage.inner.count_jobs()) == {}
        with pytest.raises(Conflict):
            await staged.first.runs.pause(ACME, run.id, by="ann", reason="again")

        await staged.first.runs.resume(ACME, run.id, by="ann")
        async with staged.going():
            assert (await staged.wait_ended(run.id, within_s=60)).state is RunState.SUCCEEDED


@on_virtual_time
async def test_a_run_that_is_half_removed_is_not_run_again(runtime: VirtualRuntime) -> None:
    """Retention takes a large run away in several batches. What it has forgotten of it would be done a second time."""
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("w", 3))
        async with staged.going():
            await staged.wait_ended(run.id, within_s=60)
        [first] = [record for record in await staged.step_records(run.id) if record.id.endswith("s1")]
        gone = RecordChange(after=first, replaces=first.version, remove=True)
        assert await staged.stage.inner.transact([Transaction(records=[gone])]) == [True]

        with pytest.raises(Conflict, match="just being removed"):
            await staged.first.runs.rerun(ACME, run.id, step="s3", by="ann")
        assert (await staged.run(run.id)).state is RunState.SUCCEEDED


@on_virtual_time
async def test_rerun_from_a_step_leaves_what_came_before_as_it_was(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("three", 3))
        async with staged.going():
            await staged.wait_ended(run.id, within_s=60)
        before = await staged.steps(run.id)
        with pytest.raises(Conflict):
            await staged.first.runs.rerun(ACME, run.id, step="nowhere", by="ann")
        again = await staged.first.runs.rerun(ACME, run.id, step="s2", by="ann")
        assert (again.state, again.generation) == (RunState.RUNNING, 1)
        async with staged.going():
            assert (await staged.wait_ended(run.id, within_s=60)).state is RunState.SUCCEEDED

        after = await staged.steps(run.id)
        assert after["s1"].ref == before["s1"].ref
        assert after["s2"].ref != before["s2"].ref
        assert after["s3"].attempt == 2


@undelivered
@on_virtual_time
async def test_a_wish_that_cannot_have_the_lock_is_told_so(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(chain("one", 1))
        other, _ = await staged.another("E2")
        await other.locks.acquire("workflow.run", run.id)
        with pytest.raises(LockBusy):
            await cancelled(staged, run)
        with pytest.raises(NotFound):
            await staged.first.runs.pause(ACME, "nowhere", by="ann", reason="")


# -- policy, approvals, messages ------------------------------------------------------------------------


class DenyPay(AllowAll):
    def decide(self, job: Job) -> Decision:
        return Decision(Event.DENY, "not here") if job.topic == "pay" else Decision(Event.ALLOW)


@on_virtual_time
async def test_a_denied_step_fails_the_run_without_another_attempt(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, policy=DenyPay()) as staged:
        steps = [dict(step) for step in cast(list[dict[str, Any]], PAYOUT["steps"])]
        steps[1]["retry"] = {"max_attempts": 5}
        run = await staged.start({"name": "payout", "steps": steps})
        await staged.do(run.id, "book")
        await staged.first.tick()

        paid = (await staged.steps(run.id))["pay"]
        assert (paid.state, paid.attempt) == ("failed", 1)
        assert (await staged.stage.job(cast(Any, paid.ref))).state is State.DENIED
        assert (await staged.run(run.id)).state is RunState.COMPENSATING


class ThrottlePay(AllowAll):
    """Two payments at once, and one more every ten seconds."""

    def decide(self, job: Job) -> Decision:
        throttle = Throttle(key="pay", rate=Rate(every_s=10.0, burst=2)) if job.topic == "pay" else None
        return Decision(Event.ALLOW, rule="slowly", throttle=throttle)


@on_virtual_time
async def test_jobs_of_a_run_that_come_too_often_wait_for_their_time(runtime: VirtualRuntime) -> None:
    """More at once than the rule ever takes: refused as a whole, such a run would never go on."""
    async with runs_staged(runtime, policy=ThrottlePay()) as staged:
        pays = [{"id": f"p{n}", "kind": "job", "topic": "pay", "depends_on": ["go"]} for n in range(4)]
        run = await staged.start({"name": "pays", "steps": [{"id": "go", "kind": "job", "topic": "go"}, *pays]})
        await staged.do(run.id, "go")
        await staged.first.tick()
        now = staged.stage.store.now()
        jobs = [await staged.job_of(run.id, f"p{n}") for n in range(4)]

        waits = [max(0.0, job.not_before - now) for job in jobs]
        assert waits == pytest.approx([0, 0, 10, 20])


@on_virtual_time
async def test_an_approval_that_cannot_be_asked_for_fails_its_step(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        asks = {"id": "ok", "kind": "approval", "message": "pay?", "separate": True, "depends_on": ["go"]}
        run = await staged.start({"name": "ask", "steps": [{"id": "go", "kind": "job", "topic": "go"}, asks]})
        await staged.do(run.id, "go")
        await staged.first.tick()

        assert (await staged.run(run.id)).state is RunState.FAILED
        assert ((await staged.steps(run.id))["ok"].error or {})["code"] == "invalid"


ASK = {
    "name": "ask",
    "steps": [
        {"id": "ok", "kind": "approval", "message": "pay?", "payload": {"amount": 5}, "expires_s": 60},
        {"id": "pay", "kind": "job", "topic": "pay", "depends_on": ["ok"]},
    ],
}


async def decide(staged: RunStage, run: Run, choice: Choice) -> None:
    approvals = Approvals(
        store=cast(Store, staged.stage.store),
        locks=staged.stage.locks,
        topics=staged.stage.topics,
        policy=staged.stage.policy,
        telemetry=staged.stage.telemetry,
    )
    approval = (await staged.steps(run.id))["ok"].ref
    await approvals.decide(ACME, approval, Said(by="bob", choice=choice))


@undelivered
@on_virtual_time
async def test_an_approved_step_lets_the_run_go_on(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(ASK)
        assert await staged.states(run.id) == {"ok": "asking"}
        await decide(staged, run, Choice.APPROVE)
        await staged.first.tick()
        assert await staged.states(run.id) == {"ok": "succeeded", "pay": "running"}
        output = (await staged.steps(run.id))["ok"].output
        assert msgspec.json.decode(output)["by"] == "bob"


@undelivered
@on_virtual_time
async def test_a_rejected_step_ends_it(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(ASK)
        await decide(staged, run, Choice.REJECT)
        await staged.first.tick()
        assert (await staged.run(run.id)).state is RunState.FAILED
        assert "pay" not in {name for name, state in (await staged.states(run.id)).items() if state == "running"}


@undelivered
@on_virtual_time
async def test_an_approval_of_a_run_that_is_cancelled_is_withdrawn(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        run = await staged.start(ASK)
        approval_id = (await staged.steps(run.id))["ok"].ref
        await cancelled(staged, run)
        await staged.first.tick()
        assert (await staged.run(run.id)).state is RunState.CANCELLED
        record = await staged.stage.inner.get_record(Kind.APPROVAL, ACME, approval_id)
        assert approval_of(record).state is ApprovalState.SUPERSEDED


@undelivered
@on_virtual_time
async def test_an_approval_of_a_step_that_fails_as_it_is_asked_for_waits_for_nobody(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, policy=DenyPay()) as staged:
        branches = {
            "ok": {"kind": "approval", "message": "pay?"},
            "pay": {"kind": "job", "topic": "pay"},  # denied at once
        }
        run = await staged.start({"name": "both", "steps": [{"id": "p", "kind": "parallel", "branches": branches}]})

        assert run.state is RunState.FAILED
        assert (await staged.states(run.id))["p[ok]"] == "cancelled"
        [record] = await staged.stage.inner.list_records(Kind.APPROVAL, ACME, limit=10)
        assert approval_of(record).state is ApprovalState.SUPERSEDED


@undelivered
@on_virtual_time
async def test_a_message_is_written_with_the_step_that_sends_it(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        hook = Webhook(
            tenant=ACME, name="ops", url="https://ops.example", events=(), secrets=("whsec_x",), created_at=0.0
        )
        made = Transaction(records=[RecordChange(after=webhook_record(hook), replaces=0)])
        assert await staged.stage.inner.transact([made]) == [True]
        told = {"id": "tell", "kind": "notify", "webhook": "ops", "payload": {"n": "${input}"}}
        run = await staged.start({"name": "tell", "steps": [told]}, 5)

        assert run.state is RunState.SUCCEEDED
        [post] = map(post_from, await staged.stage.inner.list_records(Kind.POST, ACME, parent="ops", limit=10))
        data = msgspec.json.decode(post.content)["data"]
        assert data == {"run": run.id, "step": "tell", "payload": {"n": 5}}


@undelivered
@on_virtual_time
async def test_a_durable_delay_outlives_its_engine(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged:
        steps = [{"id": "wait", "kind": "delay", "seconds": 3600}]
        run = await staged.start({"name": "later", "steps": steps})
        await asyncio.sleep(3599)
        await staged.first.tick()
        assert (await staged.run(run.id)).state is RunState.RUNNING
        _, other = await staged.another("E2")
        async with staged.going(other, workers=0):
            ended = await staged.wait_ended(run.id, within_s=5)
        assert ended.since - run.created_at == pytest.approx(3600, abs=1.0)


@on_virtual_time
async def test_many_jobs_are_stopped_one_by_one_and_none_of_them_keeps_the_run_from_ending(
    runtime: VirtualRuntime,
) -> None:
    """In one transaction with the run, any lease that is renewed meanwhile would undo it all."""
    async with runs_staged(runtime) as staged:
        each = {
            "id": "f",
            "kind": "for_each",
            "items": "input",
            "parallel": 20,
            "step": {"kind": "job", "topic": "work"},
        }
        run = await staged.start({"name": "wide", "steps": [each]}, list(range(20)))
        jobs = []
        for n in range(20):
            await staged.stage.dispatch(await staged.job_of(run.id, f"f[{n}]"), f"w{n}")
            jobs.append(await staged.stage.claim_one(f"w{n}"))
        rule = staged.stage.store.pause("transact")
        cancelling = asyncio.create_task(staged.first.runs.cancel(ACME, run.id, by="ann", reason="", compensate=False))
        await rule.reached.wait()
        await staged.stage.renew(jobs[7])
        staged.stage.store.calls.clear()
        rule.open()
        await cancelling
        assert staged.stage.store.calls == {}  # written at the first try

        await staged.first.tick()
        assert all([(await staged.stage.job(job.id)).cancel_requested for job in jobs])
        assert await staged.results() == 0
        for job in jobs:
            await staged.stage.complete(job, End.CANCELLED)
        await staged.first.tick()
        assert (await staged.run(run.id)).state is RunState.CANCELLED
