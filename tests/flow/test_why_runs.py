"""Runs, locks and workers in trouble: the first finding names the true cause (docs/reference/why.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.explaining import cause_of_lock, cause_of_run, cause_of_worker, codes
from flow.run_stage import chain, fan_in, runs_staged
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.core.decision import Decision, Rate, Throttle
from holdfast.core.job import Job, Tenant
from holdfast.core.states import Event
from holdfast.core.why import Reason, Weight
from holdfast.errors import NotFound
from holdfast.flow.approve import APPROVAL
from holdfast.flow.kept_locks import RUN
from holdfast.flow.record import End
from holdfast.reconciler import WINDOW
from holdfast.registry import SILENT_S

ASKS: dict[str, Any] = {
    "name": "asks",
    "steps": [{"id": "sure", "kind": "approval", "approvers": ["ann"], "message": "really?"}],
}
UNDONE: dict[str, Any] = {
    "name": "undone",
    "steps": [
        {"id": "book", "kind": "job", "topic": "book", "compensate": {"topic": "unbook", "payload": "${output}"}},
        {"id": "pay", "kind": "job", "topic": "pay", "depends_on": ["book"]},
    ],
}


@undelivered
@on_virtual_time
async def test_run_waits_for_a_step_whose_job_has_no_worker(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(chain("one", 1))

        found = await cause_of_run(staged_runs, run)

    assert (found.reason, found.weight) == (Reason.WAITS_FOR_STEP, Weight.BLOCKED)
    assert (found.evidence["step"], found.evidence["because"]) == ("s1", "no-worker")


@undelivered
@on_virtual_time
async def test_run_waits_for_a_person(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(ASKS)

        found = await cause_of_run(staged_runs, run)

    assert (found.evidence["because"], found.who, found.weight) == ("approval-required", "ann", Weight.BLOCKED)


@undelivered
@on_virtual_time
async def test_run_is_paused(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(chain("one", 1))
        await staged_runs.first.runs.pause(ACME, run.id, by="ann", reason="audit")

        found = await cause_of_run(staged_runs, run)

    assert (found.reason, found.weight) == (Reason.RUN_PAUSED, Weight.BLOCKED)
    assert found.evidence == {"by": "ann", "reason": "audit"}


@on_virtual_time
async def test_run_is_at_its_limit(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start({**fan_in("wide", 2), "max_parallel": 1})
        staged_runs.stage.hello("w1")
        for name in ("a1", "a2"):
            step = (await staged_runs.steps(run.id))[name]
            if step.ref:
                await staged_runs.stage.dispatch(await staged_runs.job_of(run.id, name), "w1")
                await staged_runs.stage.claim_one("w1")

        found = await cause_of_run(staged_runs, run)

    assert found.reason is Reason.RUN_AT_LIMIT
    assert (found.evidence["active"], found.evidence["max_parallel"]) == (1, 1)


@on_virtual_time
async def test_run_undoes_what_was_done(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(UNDONE)
        await staged_runs.do(run.id, "book")
        await staged_runs.first.tick()
        await staged_runs.do(run.id, "pay", End.FAILED, retryable=False, error={"code": "no-money", "message": ""})
        await staged_runs.first.tick()
        staged_runs.stage.hello("w1")

        found = await cause_of_run(staged_runs, run)

    assert found.reason is Reason.RUN_COMPENSATING
    assert (found.evidence["step"], found.evidence["code"]) == ("pay", "step-failed")


@on_virtual_time
async def test_no_engine_tells_the_run_what_has_ended(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(chain("two", 2))
        await staged_runs.do(run.id, "s1")
        soon = await cause_of_run(staged_runs, run)
        await asyncio.sleep(60)

        found = await cause_of_run(staged_runs, run)

    assert (soon.weight, soon.evidence["because"]) == (Weight.WAITING, "succeeded")
    assert soon.summary.startswith("what step s1 waited for has ended")
    assert (found.reason, found.weight) == (Reason.RUN_UNATTENDED, Weight.BLOCKED)


@undelivered
@on_virtual_time
async def test_no_engine_tells_the_run_that_the_time_of_a_step_has_come(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start({"name": "nap", "steps": [{"id": "nap", "kind": "delay", "seconds": 60}]})
        await asyncio.sleep(50)
        before = await cause_of_run(staged_runs, run)
        await asyncio.sleep(60)
        late = await cause_of_run(staged_runs, run)
        other = await staged_runs.stage.replica("S2")
        await other.locks.acquire(RUN, run.id)
        locked = await cause_of_run(staged_runs, run)

    assert [one.reason for one in (before, late, locked)] == [
        Reason.WAITS_FOR_STEP,
        Reason.RUN_UNATTENDED,
        Reason.RUN_LOCK_HELD,
    ]


@on_virtual_time
async def test_somebody_keeps_the_lock_of_the_run(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(chain("two", 2))
        await staged_runs.do(run.id, "s1")
        await asyncio.sleep(5)
        other = await staged_runs.stage.replica("S2")
        await other.locks.acquire(RUN, run.id)
        staged_runs.stage.hello("w1")
        await asyncio.sleep(10)

        found = await cause_of_run(staged_runs, run)

    assert (found.reason, found.evidence["holder"]) == (Reason.RUN_LOCK_HELD, "S2")


@on_virtual_time
async def test_run_failed_because_of_a_step(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime) as staged_runs:
        run = await staged_runs.start(chain("one", 1))
        await staged_runs.do(run.id, "s1", End.FAILED, retryable=False, error={"code": "broken", "message": "x"})
        await staged_runs.first.tick()

        found = await cause_of_run(staged_runs, run)

    assert (found.reason, found.weight) == (Reason.FAILED, Weight.ENDED)
    assert found.summary == "step s1 failed (broken)"
    assert (found.evidence["step"], found.evidence["cause"]) == ("s1", "broken")
    assert found.then[1:] == (f"holdfast run steps {run.id} -o json", f"holdfast run rerun {run.id} --from s1")


class Slowly:
    version = 3

    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW, version=3, rule="slowly", throttle=Throttle(key="w", rate=Rate(60.0, 1)))


@undelivered
@on_virtual_time
async def test_rule_of_the_policy_slows_the_jobs_of_a_run_down(runtime: VirtualRuntime) -> None:
    async with runs_staged(runtime, policy=Slowly()) as staged_runs:
        await staged_runs.start(chain("one", 1))
        second = (await staged_runs.order("one")).run
        staged_runs.stage.hello("w1")

        found = await cause_of_run(staged_runs, second)

    assert (found.evidence["because"], found.weight) == ("throttled", Weight.WAITING)


# -- locks ----------------------------------------------------------------------------------------------


@undelivered
@on_virtual_time
async def test_lock_is_held_by_a_process_that_is_gone(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        dead = await stage.replica("S2")
        lease = await dead.locks.acquire(APPROVAL, "j1")

        found = await cause_of_lock(stage, "holdfast:approval:j1", gone="S2")

    assert codes(found) == [Reason.HOLDER_GONE]
    assert found[0].then == (f"holdfast lock evict holdfast:approval:j1 --fence {lease.fence} --reason TEXT",)


@undelivered
@on_virtual_time
async def test_lock_has_a_queue(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        other = await stage.replica("S2")
        lease = await other.locks.acquire(RUN, "r1")
        waiting = asyncio.create_task(stage.locks.acquire(RUN, "r1", wait=20))
        await asyncio.sleep(1)

        found = await cause_of_lock(stage, "wf:run:lock:r1")
        await other.locks.release(lease)
        await stage.locks.release(await waiting)

    assert codes(found) == [Reason.LOCK_HELD, Reason.LOCK_QUEUE]
    assert (found[0].evidence["holder"], found[1].evidence["waiters"]) == ("S2", 1)


@undelivered
@on_virtual_time
async def test_leases_of_a_lock_ran_out_without_being_given_back(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for name in ("S2", "S3"):
            other = await stage.replica(name)
            await other.locks.acquire(APPROVAL, "j1", wait=60)  # 10 s, and nobody renews it

        found = await cause_of_lock(stage, "approval:j1")

    assert codes(found) == [Reason.LOCK_HELD, Reason.LOCK_EXPIRIES]
    assert (found[1].evidence["expiries"], found[1].evidence["last_holder"]) == (1, "S2")


@undelivered
@on_virtual_time
async def test_window_is_kept_to_its_end_on_purpose(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await stage.locks.claim(WINDOW, "default")

        assert codes(await cause_of_lock(stage, "reconciler:default")) == [Reason.WINDOW_HELD]


@undelivered
@on_virtual_time
async def test_lock_is_free(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        lease = await stage.locks.acquire(APPROVAL, "j1")
        await stage.locks.release(lease)

        [found] = await cause_of_lock(stage, "approval:j1")

    assert (found.reason, found.evidence["last_holder"]) == (Reason.LOCK_FREE, "S1")


@undelivered
@on_virtual_time
async def test_key_that_no_class_declares_is_an_error(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        with pytest.raises(NotFound, match="no lock class of this plane declares"):
            await cause_of_lock(stage, "somebody:elses:key")


# -- workers --------------------------------------------------------------------------------------------


@undelivered
@on_virtual_time
async def test_worker_is_silent(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        await asyncio.sleep(SILENT_S + 1)

        assert codes(await cause_of_worker(stage, "w1")) == [Reason.WORKERS_SILENT]


@on_virtual_time
async def test_worker_that_takes_none_is_told_from_an_idle_one(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        stage.hello("w2")
        await stage.dispatch(await stage.submit(), "w1")
        await asyncio.sleep(SILENT_S - 1)
        for worker in ("w1", "w2"):
            stage.registry.seen(worker, now=stage.store.now())

        taking_none, idle = await cause_of_worker(stage, "w1"), await cause_of_worker(stage, "w2")
        await asyncio.sleep(2)
        await stage.roll_call.tick()
        stuck = await cause_of_worker(stage, "w1")

    assert codes(stuck) == codes(taking_none)
    assert (codes(taking_none), taking_none[0].weight) == ([Reason.WORKER_TAKES_NONE], Weight.BLOCKED)
    assert codes(idle) == [Reason.WORKER_IDLE]


@on_virtual_time
async def test_job_that_a_worker_does_not_take_is_named_to_its_own_tenant_alone(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        await asyncio.sleep(SILENT_S - 1)
        stage.registry.seen("w1", now=stage.store.now())

        [own] = await cause_of_worker(stage, "w1")
        [others] = await cause_of_worker(stage, "w1", Tenant("globex"))

    assert (own.evidence["oldest"], own.reason) == (job.id, others.reason)
    assert job.id in str(own)
    assert job.id not in str(others)


@undelivered
@on_virtual_time
async def test_worker_gets_nothing_because_nothing_is_for_it(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", topics=["pay.*"])
        await stage.submit("mail.send")

        found = await cause_of_worker(stage, "w1")

    assert codes(found) == [Reason.WORKER_IDLE, Reason.JOBS_UNFIT]
    assert found[1].evidence == {"lacks": {"other-topics": 1}}


@on_virtual_time
async def test_worker_drains_or_is_full(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=1)
        await stage.begun("w1")
        stage.hello("w2")
        stage.registry.drain("w2", now=stage.store.now())

        full, draining = await cause_of_worker(stage, "w1"), await cause_of_worker(stage, "w2")

    assert codes(full) == [Reason.WORKER_FULL]
    assert codes(draining) == [Reason.WORKER_DRAINING]
