"""Ten ways in which approvals fail elsewhere, each from somebody's bug report, and that they do not fail here."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import Desk, deciding, rules
from flow.faulty_store import Fault
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.buses.detached import Fault as BusFault
from holdfast.core.approval import ApprovalState
from holdfast.core.decision import Choice
from holdfast.core.job import Job, amend
from holdfast.core.schema import compile_schema
from holdfast.core.states import State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import AlreadyDecided, Conflict, Invalid
from holdfast.flow.again import retry
from holdfast.flow.approve import Said
from holdfast.flow.dispatch import Dispatched
from holdfast.flow.policies import publish
from holdfast.flow.record import End
from holdfast.ports import Change

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "amount": {"type": "integer", "maximum": 100},
        "currency": {"type": "string", "default": "EUR"},
    },
    "required": ["to", "amount"],
}
SCHEMED = Topics((Topic(name="pay", schema=compile_schema(SCHEMA)),))


async def asked_again(desk: Desk, job: Job, why: str) -> None:
    """The job was not dispatched, and waits for another approval."""
    first = job.approval
    now = await desk.stage.job(job.id)
    assert now.state is State.APPROVAL_REQUIRED
    assert now.approval != first
    assert (await desk.approval(job)).state is ApprovalState.PENDING
    assert desk.stage.counted("approvals_refused", reason=why) == 1
    assert desk.stage.seen.carried == []
    await desk.check(all_ended=False)


@on_virtual_time
async def test_failure_1a_digest_is_compared_with_what_would_be_run(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        other = amend(job, payload=b'{"to":"mallory","amount":5000}')
        assert await desk.stage.inner.apply([Change(before=job, after=other, kind="job.progressed")]) == [True]

        assert await desk.stage.dispatch(other) is Dispatched.MOVED_ON
        await asked_again(desk, job, "approval-digest")


@on_virtual_time
async def test_failure_1b_expiry_is_read_when_deciding_and_at_dispatch(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(expires_s=60)) as desk:
        late, job = await desk.pay(), await desk.approved()
        await asyncio.sleep(60)
        with pytest.raises(AlreadyDecided) as refused:
            await desk.say(late)
        assert refused.value.decision == "expire"
        assert (await desk.stage.job(late.id)).state is State.TIMEOUT

        assert await desk.stage.dispatch(job) is Dispatched.MOVED_ON
        await asked_again(desk, job, "approval-expired")


@on_virtual_time
async def test_failure_1c_edited_arguments_pass_schema_and_policy_before_they_are_approved(
    runtime: VirtualRuntime,
) -> None:
    document = rules()
    document["rules"].insert(0, {"name": "never", "when": "payload.to == 'mallory'", "action": "deny", "reason": "no"})
    async with deciding(runtime, document, topics=SCHEMED) as desk:
        job = await desk.pay()
        with pytest.raises(Invalid, match=r"\$.amount"):
            await desk.say(job, choice=Choice.EDIT, arguments={"to": "ann", "amount": 101})
        with pytest.raises(Invalid, match="denies"):
            await desk.say(job, choice=Choice.EDIT, arguments={"to": "mallory", "amount": 1})
        assert (await desk.approval(job)).state is ApprovalState.PENDING

        approval = await desk.say(job, choice=Choice.EDIT, arguments={"to": "ann", "amount": 4})
        edited = await desk.stage.job(job.id)
        assert msgspec.json.decode(edited.payload) == {"to": "ann", "amount": 4, "currency": "EUR"}
        assert approval.arguments == msgspec.json.decode(edited.payload)
        assert await desk.stage.dispatch(edited) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@pytest.mark.parametrize("tightened", [rules(quorum=2), rules(approvers=["boss"]), rules(action="deny")])
@on_virtual_time
async def test_failure_1d_policy_that_was_tightened_meanwhile_counts(
    runtime: VirtualRuntime, tightened: dict[str, object]
) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        first = await desk.approval(job)
        desk.policy.publish(tightened)
        assert await desk.stage.dispatch(job) is Dispatched.MOVED_ON

        assert (await desk.people.get(ACME, first.id)).state is ApprovalState.SUPERSEDED
        if tightened == rules(action="deny"):
            assert (await desk.stage.job(job.id)).state is State.DENIED
            await desk.check()
        else:
            await asked_again(desk, job, "policy-tightened")


@pytest.mark.parametrize("older", [rules(quorum=2), rules(approvers=["boss"]), rules(action="deny")])
@on_virtual_time
async def test_failure_1d_policy_that_is_in_force_no_more_does_not_count(
    runtime: VirtualRuntime, older: dict[str, object]
) -> None:
    """A scheduler hears of a new version some time later than the gateway that it was published at."""
    async with deciding(runtime, older) as desk:
        for document in (older, rules()):
            await publish(document, store=desk.stage.typed_store)
        behind = desk.policy.book
        desk.policy.publish(rules())
        job = await desk.approved()
        ahead, desk.policy.book = desk.policy.book, behind
        assert await desk.stage.dispatch(job) is Dispatched.MOVED_ON
        assert (await desk.stage.job(job.id), (await desk.approval(job)).state) == (job, ApprovalState.APPROVED)

        desk.policy.book = ahead
        assert await desk.stage.dispatch(job) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@on_virtual_time
async def test_failure_1d_policy_that_is_in_force_no_more_does_not_count_for_what_was_asked_before_it(
    runtime: VirtualRuntime,
) -> None:
    """The approval was asked for under the first version, and given under the third."""
    async with deciding(runtime) as desk:
        job = await desk.pay()
        await desk.say(job)
        approved = await desk.stage.job(job.id)
        for document in (rules(), rules(action="deny"), rules()):
            await publish(document, store=desk.stage.typed_store)
        desk.policy.publish(rules(action="deny"))
        assert await desk.stage.dispatch(approved) is Dispatched.MOVED_ON
        assert (await desk.stage.job(job.id), (await desk.approval(job)).state) == (approved, ApprovalState.APPROVED)

        desk.policy.publish(rules())
        assert await desk.stage.dispatch(approved) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@on_virtual_time
async def test_failure_1d_policy_that_asks_for_no_more_than_was_given_lets_it_run(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(quorum=2)) as desk:
        job = await desk.pay()
        await desk.say(job, "ann")
        await desk.say(job, "bob")
        desk.policy.publish(rules(quorum=1))
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@on_virtual_time
async def test_failure_1d_what_the_policy_of_today_lets_a_job_have_holds_for_one_approved_before(
    runtime: VirtualRuntime,
) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        today = rules()
        today["rules"][0]["constraints"] = {"max_attempts": 1, "labels": {"audited": "yes"}}
        desk.policy.publish(today)
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT

        sent = await desk.stage.job(job.id)
        assert (sent.max_attempts, sent.labels["audited"]) == (1, "yes")
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@undelivered
@on_virtual_time
async def test_failure_2_digest_is_over_the_arguments_as_they_are_used(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, topics=SCHEMED) as desk:
        short = await desk.approval(await desk.pay(payload=b'{"to":"ann","amount":5}'))
        full = await desk.approval(await desk.pay(payload=b'{"currency":"EUR","amount":5,"to":"ann"}'))
        assert short.arguments == {"to": "ann", "amount": 5, "currency": "EUR"}
        assert short.digest == full.digest


@undelivered
@on_virtual_time
async def test_failure_3_words_of_the_model_are_not_in_the_digest(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        first = await desk.approval(await desk.pay(labels={"description": "Pay Ann what she is owed."}))
        again = await desk.approval(await desk.pay(labels={"description": "Transfer the outstanding sum to Ann."}))
        assert first.digest == again.digest
        assert first.metadata != again.metadata


@on_virtual_time
async def test_failure_4_what_was_denied_is_not_approved_by_trying_again(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        rejected = await desk.say(job, choice=Choice.REJECT, comment="not this month")
        assert (await desk.stage.job(job.id)).state is State.DENIED
        with pytest.raises(AlreadyDecided):
            await desk.say(job, "bob")
        with pytest.raises(Conflict):
            await retry(ACME, job.id, store=desk.stage.typed_store, submitter=desk.stage.submitter)
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.MOVED_ON
        assert (await desk.people.get(ACME, rejected.id)).state is ApprovalState.REJECTED
        await desk.check()


@on_virtual_time
async def test_failure_4_another_round_of_an_ended_job_needs_an_approval_of_its_own(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved(max_attempts=1)
        await desk.stage.dispatch(job)
        await desk.stage.complete(await desk.stage.claim_one(), End.FAILED)
        again = await retry(ACME, job.id, store=desk.stage.typed_store, submitter=desk.stage.submitter)
        assert again.job.state is State.APPROVAL_REQUIRED
        assert again.job.approval != job.approval


@pytest.mark.parametrize("detached", [False, True])
@on_virtual_time
async def test_failure_5_no_way_to_a_worker_leads_past_the_approval(runtime: VirtualRuntime, *, detached: bool) -> None:
    """Not even for a job that somebody has made to look ready."""
    async with deciding(runtime, detached=detached) as desk:
        job = await desk.pay()
        assert await desk.stage.inner.list_dispatchable(limit=10) == []
        assert await desk.stage.dispatch(job) is Dispatched.MOVED_ON
        forged = amend(job, state=State.SCHEDULED)
        assert await desk.stage.inner.apply([Change(before=job, after=forged, kind="job.approved")]) == [True]

        assert await desk.stage.dispatch(forged) is Dispatched.MOVED_ON
        assert await desk.stage.claim() == []
        await asked_again(desk, job, "approval-pending")


@pytest.mark.parametrize("end", [End.FAILED, End.HANDED_BACK])
@on_virtual_time
async def test_failure_6_attempt_that_began_has_used_the_approval_up(runtime: VirtualRuntime, end: End) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        await desk.stage.dispatch(job)
        attempt = await desk.stage.claim_one()
        await desk.stage.complete(attempt, end)
        await asyncio.sleep(60)
        back = await desk.stage.job(job.id)
        assert await desk.stage.dispatch(back) is Dispatched.MOVED_ON
        first = await desk.people.get(ACME, job.approval)
        assert (first.state, first.consumed_by_fence) == (ApprovalState.CONSUMED, attempt.fence)
        second = await desk.approval(job)
        assert (second.state, second.round) == (ApprovalState.PENDING, 2)

        await desk.say(job, "bob")
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@on_virtual_time
async def test_failure_6_attempt_whose_worker_was_lost_has_used_it_up(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        await desk.stage.dispatch(job)
        await desk.stage.claim_one()
        await asyncio.sleep(31)
        await desk.stage.reconciler.tick()
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.MOVED_ON
        assert (await desk.stage.job(job.id)).state is State.APPROVAL_REQUIRED
        await desk.check(all_ended=False)


@on_virtual_time
async def test_failure_7_publish_that_failed_gives_the_approval_back(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, detached=True) as desk:
        job = await desk.approved()
        desk.stage.publish_fault = BusFault.NOT_APPLIED
        assert await desk.stage.dispatch(job) is Dispatched.NOT_NOW
        back = await desk.approval(job)
        assert (back.state, back.consumed_by_fence) == (ApprovalState.APPROVED, None)

        desk.stage.publish_fault = None
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REQUEST])
@on_virtual_time
async def test_failure_7_write_that_failed_uses_nothing_up(runtime: VirtualRuntime, fault: Fault) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        desk.stage.store.fault("transact", fault, times=1)
        assert await desk.stage.dispatch(job) is Dispatched.UNANSWERED
        assert (await desk.approval(job)).state is ApprovalState.APPROVED
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT
        await desk.stage.complete(await desk.stage.claim_one())
        await desk.check()


@on_virtual_time
async def test_failure_7_delivery_that_nobody_began_gives_it_back(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, topics=Topics((Topic(name="*", dispatch_timeout_s=20.0),))) as desk:
        job = await desk.approved()
        await desk.stage.dispatch(job)
        assert (await desk.approval(job)).state is ApprovalState.CONSUMED
        await asyncio.sleep(21)
        await desk.stage.reconciler.tick()
        assert (await desk.approval(job)).state is ApprovalState.APPROVED
        await desk.stage.dispatch(await desk.stage.job(job.id), "w2")
        await desk.stage.complete(await desk.stage.claim_one("w2"))
        await desk.check()


@undelivered
@on_virtual_time
async def test_failure_8_repeated_request_makes_no_second_card(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        first = await desk.pay(key="order-7")
        again = await desk.pay(key="order-7")
        assert again.id == first.id
        desk.stage.store.fault("submit", Fault.LOSE_REPLY, times=1)
        with pytest.raises(ConnectionError):
            await desk.pay(key="order-8")
        await desk.pay(key="order-8")
        assert len(await desk.all()) == 2


@undelivered
@on_virtual_time
async def test_failure_9_of_two_reviewers_one_is_told_that_the_other_was_first(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        elsewhere = desk.elsewhere(await desk.stage.replica("S2"))
        approval = await desk.approval(job)
        outcomes = await asyncio.gather(
            desk.people.decide(ACME, approval.id, Said(by="ann", choice=Choice.APPROVE)),
            elsewhere.decide(ACME, approval.id, Said(by="bob", choice=Choice.REJECT, comment="no")),
            return_exceptions=True,
        )
        [refused] = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert isinstance(refused, AlreadyDecided)
        decided = await desk.approval(job)
        assert decided.verdict is not None
        assert refused.decided_by == decided.verdict.by
        await desk.check(all_ended=False)


@on_virtual_time
async def test_failure_10_approval_does_not_outlive_its_time(runtime: VirtualRuntime) -> None:
    """Approved, and no worker came all day."""
    async with deciding(runtime) as desk:
        job = await desk.approved()
        runtime.stall(25 * 3600)
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.MOVED_ON
        assert (await desk.people.get(ACME, job.approval)).state is ApprovalState.EXPIRED
        await asked_again(desk, job, "approval-expired")
