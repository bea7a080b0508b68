"""Jobs in trouble or over, each put into it on a real plane: the first finding names the true cause (docs/reference/why.md)."""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import deciding, rules
from flow.explaining import cause, cause_of_approval, codes, explainer, why
from flow.stage import ACME, staged
from flow.telling import undelivered
from holdfast.core.approval import ApprovalState
from holdfast.core.decision import Choice, Decision
from holdfast.core.job import Job, Tenant
from holdfast.core.states import Event, State
from holdfast.core.why import Reason, Weight
from holdfast.errors import NotFound
from holdfast.flow.cancel import cancel
from holdfast.flow.record import End
from holdfast.registry import SILENT_S

OTHER = Tenant("umbrella")


@on_virtual_time
async def test_worker_heartbeats_and_takes_no_work(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await stage.scheduler.tick()
        await asyncio.sleep(SILENT_S - 1)
        stage.registry.seen("w1", now=stage.store.now())

        found = await cause(stage, job)
        await asyncio.sleep(2)
        await stage.roll_call.tick()  # it is known to be stuck now, and gets nothing more
        later, behind = await cause(stage, job), await cause(stage, await stage.submit())

    for one in (found, later):
        assert (one.reason, one.weight) == (Reason.WORKER_TAKES_NONE, Weight.BLOCKED)
        assert one.evidence["worker"] == "w1"
    assert (behind.reason, behind.evidence["workers"]) == (Reason.WORKER_TAKES_NONE, ["w1"])


@on_virtual_time
async def test_delivery_is_on_its_way(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await stage.scheduler.tick()

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.DELIVERY_UNDER_WAY, Weight.WAITING)


@on_virtual_time
async def test_delivery_waits_at_a_worker_whose_slots_are_taken(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1", slots=1, backlog=1)
        await stage.begun("w1")
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        await asyncio.sleep(SILENT_S - 1)
        stage.registry.seen("w1", now=stage.store.now())

        found = await cause(stage, job)

    assert found.reason is Reason.WORKER_BUSY


@on_virtual_time
async def test_delivery_went_to_a_worker_that_is_silent(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await stage.scheduler.tick()
        await asyncio.sleep(SILENT_S + 1)

        found = await cause(stage, job)
        sent = await stage.job(job.id)

    assert found.reason is Reason.WORKER_SILENT
    assert found.until == sent.since + 300


@on_virtual_time
async def test_delivery_was_lost_on_the_bus(runtime: VirtualRuntime) -> None:
    """The worker asks at this very moment, and is given nothing."""
    async with staged(runtime, detached=True) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await stage.dispatch(job, "w1")
        await stage.bus.settle(await stage.bus.take("w1", limit=10))  # gone from the bus, and never begun
        await asyncio.sleep(SILENT_S - 1)
        stage.registry.seen("w1", now=stage.store.now())
        with stage.claims.serving("w1"):
            found = await cause(stage, job)

    assert found.reason is Reason.DELIVERY_LOST


@on_virtual_time
async def test_job_that_is_worked_on_is_not_stuck(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        for _ in range(6):
            await asyncio.sleep(10)
            stage.registry.seen("w1", now=stage.store.now())
            await stage.renew(job)

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.RUNNING, Weight.WORKING)


@on_virtual_time
async def test_lease_runs_out_while_the_worker_is_silent(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        await asyncio.sleep(20)

        found = await cause(stage, job)

    assert (found.reason, found.until) == (Reason.LEASE_RUNNING_OUT, job.lease_until)


@on_virtual_time
async def test_lease_has_run_out_and_is_about_to_be_taken_back(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        await asyncio.sleep(31)

        found = await cause(stage, job)

    assert (found.reason, found.since) == (Reason.LEASE_EXPIRED, job.lease_until)


@on_virtual_time
async def test_no_reconciler_takes_back_what_ran_out_long_ago(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        await asyncio.sleep(100)

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.RECOVERY_OVERDUE, Weight.BLOCKED)
    assert found.evidence == {"due": "lease-expired", "remedy": "retry"}


@on_virtual_time
async def test_cancelled_job_waits_for_its_worker_to_stop(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        job = await stage.begun("w1")
        await cancel(ACME, job.id, "enough", store=stage.typed_store)

        found = await cause(stage, job)

    assert (found.reason, found.until) == (Reason.CANCEL_AWAITS_WORKER, job.lease_until)


@undelivered
@on_virtual_time
async def test_job_waits_for_the_approval_of_named_people(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(approvers=["ann", "bob"], quorum=2)) as desk:
        job = await desk.pay()
        await desk.say(job, by="ann")

        found = await cause(desk.stage, job)
        approval = await desk.approval(job)

    assert (found.reason, found.weight) == (Reason.APPROVAL_REQUIRED, Weight.BLOCKED)
    assert found.who == "ann, bob"
    assert found.evidence["said_yes"] == ["ann"]
    assert (found.evidence["rule"], found.evidence["policy"]) == ("payouts", 1)
    assert found.then[1] == f"holdfast approval approve {approval.id}"


@undelivered
@on_virtual_time
async def test_who_must_answer_is_not_told_to_approve(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(choices=["reject", "respond"], response_schema={})) as desk:
        job = await desk.pay()

        found = await cause(desk.stage, job)

    assert found.then[1] == f"holdfast approval respond {found.evidence['approval']}"


@undelivered
@on_virtual_time
async def test_yeses_are_counted_as_the_ballot_counts_them(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(approvers=["ann", "bob", "carl"], quorum=2)) as desk:
        job = await desk.pay()
        approval = await desk.approval(job)
        await desk.people.delegate(ACME, approval.id, by="bob", to="dora", comment="")
        await desk.say(job, by="ann")
        await desk.say(job, by="dora", choice=Choice.EDIT, arguments={"to": "ann", "amount": 6})

        found = await cause(desk.stage, job)

    # What ann said was said of something else, and dora sits in bob's place.
    assert (found.reason, found.evidence["said_yes"]) == (Reason.APPROVAL_REQUIRED, ["bob"])
    assert found.summary.startswith("1 more of")


@undelivered
@on_virtual_time
async def test_nobody_approved_in_time(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(approvers=["ann"], expires_s=60)) as desk:
        job = await desk.pay()
        await asyncio.sleep(61)
        await desk.stage.reconciler.tick()

        explained = await why(desk.stage, job)
        of_approval = await cause_of_approval(desk.stage, await desk.approval(job))

    assert explained.state == State.TIMEOUT
    assert codes(explained) == [Reason.APPROVAL_EXPIRED, Reason.DEAD_LETTER]
    assert of_approval.reason is Reason.APPROVAL_EXPIRED


@undelivered
@on_virtual_time
async def test_rule_of_the_policy_denied_it(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(action="deny")) as desk:
        job = await desk.pay()

        found = await cause(desk.stage, job)

    assert (found.reason, found.weight) == (Reason.DENIED, Weight.ENDED)
    assert (found.evidence["rule"], found.evidence["policy"]) == ("payouts", 1)
    assert found.evidence["reason"] == "money moves"
    assert found.then == ("holdfast policy show --version 1",)


@undelivered
@on_virtual_time
async def test_person_rejected_it(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        await desk.say(job, by="ann", choice=Choice.REJECT, comment="too much")

        found = await cause(desk.stage, job)
        of_approval = await cause_of_approval(desk.stage, await desk.approval(job))

    assert found.reason is of_approval.reason is Reason.REJECTED
    assert (found.evidence["by"], found.evidence["comment"]) == ("ann", "too much")


@undelivered
@on_virtual_time
async def test_approval_is_given_and_the_job_cannot_be_dispatched(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()

        found = await cause_of_approval(desk.stage, await desk.approval(job))

    assert (found.reason, found.evidence["because"]) == (Reason.APPROVAL_UNUSED, "no-worker")


@on_virtual_time
async def test_approval_was_used_up_by_an_attempt(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        await desk.stage.dispatch(job)
        approval = await desk.approval(job)

        found = await cause_of_approval(desk.stage, approval)

    assert approval.state is ApprovalState.CONSUMED
    assert (found.reason, found.evidence["fence"]) == (Reason.APPROVAL_CONSUMED, approval.consumed_by_fence)


class Unusable:
    version = 7

    def decide(self, job: Job) -> Decision:
        return Decision(None, "the expression of rule payouts cannot be read", version=7, failed="closed")


@undelivered
@on_virtual_time
async def test_policy_cannot_be_used(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=Unusable()) as stage:
        stage.hello("w1")
        job = await stage.submit()
        await asyncio.sleep(200)

        found = await cause(stage, job)

    assert (found.reason, found.weight) == (Reason.POLICY_UNUSABLE, Weight.BLOCKED)
    assert found.evidence == {"policy": 7, "failed": "closed"}


class Failing:
    version = 7

    def decide(self, job: Job) -> Decision:
        return Decision(Event.ALLOW, "rule payouts cannot be evaluated", version=7, rule="payouts", failed="open")


@undelivered
@on_virtual_time
async def test_job_was_let_through_unasked(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=Failing()) as stage:
        stage.hello("w1")

        found = await why(stage, await stage.submit())

    assert codes(found) == [Reason.READY, Reason.FAILED_OPEN]
    assert found.findings[1].evidence == {"rule": "payouts", "policy": 7}
    assert "rule payouts cannot be evaluated" in found.findings[1].summary


@on_virtual_time
async def test_job_failed_for_good_and_left_a_dead_letter(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.begun("w1")
        await stage.complete(job, End.FAILED, retryable=False, error={"code": "bad-address", "message": "x"})

        explained = await why(stage, job)

    assert codes(explained) == [Reason.FAILED, Reason.DEAD_LETTER]
    assert explained.findings[0].evidence["code"] == "bad-address"
    assert explained.findings[1].then == ("holdfast dead-letter show 1", "holdfast dead-letter replay 1")


@undelivered
@on_virtual_time
async def test_job_ran_out_of_its_own_time(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit(timeout_s=5)
        await asyncio.sleep(6)
        await stage.reconciler.tick()
        await stage.replayer.tick()

        explained = await why(stage, job)

    assert codes(explained)[0] is Reason.TIMED_OUT
    assert explained.findings[0].evidence["code"] == "deadline-passed"


@undelivered
@on_virtual_time
async def test_job_was_cancelled(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        await cancel(ACME, job.id, "not needed", store=stage.typed_store)

        found = await cause(stage, job)

    assert (found.reason, found.summary) == (Reason.CANCELLED, "it was cancelled: not needed")


@on_virtual_time
async def test_why_twice_shows_both_attempts_and_what_the_zombie_said(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        stage.hello("w1")
        zombie = await stage.begun("w1")
        await asyncio.sleep(31)
        await stage.reconciler.tick()
        await stage.dispatch(await stage.job(zombie.id), "w2")
        second = await stage.claim_one("w2")
        assert (await stage.complete(zombie)).code == "stale-fence"
        await stage.complete(second)

        explained = await why(stage, second)

    assert codes(explained) == [Reason.SUCCEEDED, Reason.BEGAN_AGAIN, Reason.WORD_REFUSED]
    lost, kept = explained.attempts
    assert (lost.worker, lost.fence, lost.ending, lost.reason, lost.refused) == (
        "w1",
        zombie.fence,
        "lost",
        "lease-expired",
        1,
    )
    assert (kept.worker, kept.fence, kept.ending, kept.refused) == ("w2", second.fence, "succeeded", 0)


@undelivered
@on_virtual_time
async def test_another_tenant_learns_nothing(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        job = await stage.submit()
        with pytest.raises(NotFound):
            await explainer(stage).job(OTHER, job.id)
