"""The failure schedules of approvals (51 to 54), step by step, with the invariants that each threatens.

G1 and G2 are gateways: two processes of the plane, each with its own locks on the same store.
"""

from __future__ import annotations

import asyncio

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import deciding, rules
from flow.faulty_store import Fault
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.core.approval import ApprovalState
from holdfast.core.decision import Choice
from holdfast.core.states import State
from holdfast.errors import AlreadyDecided, StoreUnavailable, VersionMismatch
from holdfast.flow.approve import Said
from holdfast.flow.dispatch import Dispatched
from holdfast.locks import LockBusy

YES = Said(by="ann", choice=Choice.APPROVE)
NO = Said(by="bob", choice=Choice.REJECT, comment="no")


@pytest.mark.parametrize("locks_exclude", [True, False])
@undelivered
@on_virtual_time
async def test_schedule_51_approve_and_reject_together_decide_once(
    runtime: VirtualRuntime, *, locks_exclude: bool
) -> None:
    """Also where the lock excludes nobody: what decides is the compare and set."""
    async with deciding(runtime) as desk:
        job = await desk.pay()
        lock_url = "" if locks_exclude else f"sqlite:///:memory:{runtime.token()}"
        second = await desk.stage.replica("G2", lock_url=lock_url)
        g1, g2 = desk.people, desk.elsewhere(second)
        approval = await desk.approval(job)
        # G1 stands at the store's door with its yes when G2's no arrives.
        door = desk.stage.store.pause("transact")
        saying_yes = asyncio.create_task(g1.decide(ACME, approval.id, YES))
        await door.reached.wait()
        saying_no = asyncio.create_task(g2.decide(ACME, approval.id, NO))
        await asyncio.sleep(1)
        door.open()
        outcomes = await asyncio.gather(saying_yes, saying_no, return_exceptions=True)

        [refused] = [outcome for outcome in outcomes if isinstance(outcome, AlreadyDecided)]
        winner = "ann" if locks_exclude else "bob"
        assert refused.decided_by == winner
        state = State.SCHEDULED if locks_exclude else State.DENIED
        assert (await desk.stage.job(job.id)).state is state
        # The winner is answered the same again, the loser refused again.
        said = {"ann": (g1, YES, g2, NO), "bob": (g2, NO, g1, YES)}[winner]
        assert (await said[0].decide(ACME, approval.id, said[1])).verdict is not None
        with pytest.raises(AlreadyDecided):
            await said[2].decide(ACME, approval.id, said[3])
        await desk.check(all_ended=False)


@undelivered
@on_virtual_time
async def test_schedule_51_who_cannot_have_the_lock_is_told_when_to_come_back(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        g2 = desk.elsewhere(await desk.stage.replica("G2"))
        approval = await desk.approval(job)
        door = desk.stage.store.pause("transact")
        saying_yes = asyncio.create_task(desk.people.decide(ACME, approval.id, YES))
        await door.reached.wait()
        with pytest.raises(LockBusy) as busy:
            await g2.decide(ACME, approval.id, NO)
        assert busy.value.status == 423
        assert 0 < busy.value.retry_in_s <= 10
        door.open()
        assert (await saying_yes).state is ApprovalState.APPROVED
        await desk.check(all_ended=False)


@pytest.mark.parametrize("timer_first", [True, False])
@undelivered
@on_virtual_time
async def test_schedule_52_approve_against_the_expiry_timer_ends_one_way(
    runtime: VirtualRuntime, *, timer_first: bool
) -> None:
    async with deciding(runtime, rules(expires_s=60)) as desk:
        job = await desk.pay()
        g2 = await desk.stage.replica("G2")
        approval = await desk.approval(job)
        await asyncio.sleep(59 if not timer_first else 60)
        # Whoever comes first has read the approval as pending, and stands at the door while the other is served.
        if timer_first:
            door = desk.stage.store.pause("transact")
            expiring = asyncio.create_task(desk.people.expire(approval))
            await door.reached.wait()
            with pytest.raises(AlreadyDecided) as refused:
                await desk.elsewhere(g2).decide(ACME, approval.id, YES)
            assert (refused.value.decided_by, refused.value.decision) == ("", "expire")
            door.open()
            assert not await expiring  # the person's request had written it down already
            assert (await desk.stage.job(job.id)).state is State.TIMEOUT
        else:
            door = g2.store.pause("transact")
            saying_yes = asyncio.create_task(desk.elsewhere(g2).decide(ACME, approval.id, YES))
            await door.reached.wait()
            await asyncio.sleep(2)
            await desk.timer.tick()
            door.open()
            with pytest.raises(AlreadyDecided) as refused:
                await saying_yes
            assert refused.value.decision == "expire"
            assert (await desk.stage.job(job.id)).state is State.TIMEOUT
        assert (await desk.approval(job)).state is ApprovalState.EXPIRED
        letters = await desk.stage.inner.list_dead_letters(ACME, before=None, limit=10)
        assert [letter.reason for letter in letters] == ["approval-expired"]
        await desk.check()


@on_virtual_time
async def test_schedule_53_arguments_edited_between_review_and_approval(runtime: VirtualRuntime) -> None:
    """Bob approves what he has read, version by version: not what Ann made of it meanwhile."""
    async with deciding(runtime, rules(quorum=2)) as desk:
        job = await desk.pay()
        read = await desk.approval(job)
        await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 5000})
        with pytest.raises(VersionMismatch):
            await desk.people.decide(ACME, read.id, Said(by="bob", choice=Choice.APPROVE), version=read.version)
        with pytest.raises(VersionMismatch, match="were edited"):
            await desk.say(job, "bob")
        assert (await desk.approval(job)).state is ApprovalState.PENDING

        again = await desk.approval(job)
        assert again.digest != read.digest
        await desk.people.decide(ACME, read.id, Said(by="bob", choice=Choice.APPROVE), version=again.version)
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.SENT
        assert (await desk.stage.claim_one()).payload == b'{"to":"ann","amount":5000}'


@on_virtual_time
async def test_schedule_53_policy_edited_between_review_and_approval(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        desk.policy.publish(rules(approvers=["boss"]))
        first = await desk.say(job, "ann")
        assert await desk.stage.dispatch(await desk.stage.job(job.id)) is Dispatched.MOVED_ON
        second = await desk.approval(job)
        assert (second.terms.approvers, second.policy, second.round) == (("boss",), 2, 2)
        assert (await desk.people.get(ACME, first.id)).state is ApprovalState.SUPERSEDED
        await desk.check(all_ended=False)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.FAIL])
@on_virtual_time
async def test_schedule_54_approval_committed_and_everything_after_it_lost(
    runtime: VirtualRuntime, fault: Fault
) -> None:
    """There is nothing after it: the job is SCHEDULED in the same transaction, and any scheduler finds it."""
    async with deciding(runtime) as desk:
        job = await desk.pay()
        approval = await desk.approval(job)
        desk.stage.store.fault("transact", fault, times=1)
        with pytest.raises(StoreUnavailable):
            await desk.people.decide(ACME, approval.id, YES)
        # Said again, whatever became of the first time.
        assert (await desk.people.decide(ACME, approval.id, YES)).state is ApprovalState.APPROVED
        other = await desk.stage.replica("S2")
        async with other.loops(), desk.stage.working(replica=other):
            [ended] = await desk.stage.wait_ended(job, within_s=30)
        assert ended.state is State.SUCCEEDED
        await desk.check()
