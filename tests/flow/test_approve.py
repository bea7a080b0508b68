"""What people and time do with approvals, and what becomes of the jobs that wait for them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import deciding, rules
from flow.stage import ACME
from flow.telling import undelivered
from holdfast import approvals
from holdfast.core.approval import ApprovalState, Original, Terms, ask_step, to_record
from holdfast.core.decision import Choice
from holdfast.core.record import Kind, Record
from holdfast.core.states import State
from holdfast.errors import AlreadyDecided, Invalid, NotApprover, VersionMismatch
from holdfast.flow.approve import Said
from holdfast.flow.cancel import cancel
from holdfast.flow.dispatch import Dispatched
from holdfast.ports import LISTED_PAYLOAD_MAX, RecordChange, Transaction


@on_virtual_time
async def test_approved_payout_runs_and_uses_its_approval_up(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay()
        assert job.state is State.APPROVAL_REQUIRED
        await desk.say(job, comment="fine")
        async with desk.stage.loops(), desk.stage.working():
            [ended] = await desk.stage.wait_ended(job, within_s=30)
        assert ended.state is State.SUCCEEDED
        approval = await desk.approval(job)
        assert (approval.state, approval.consumed_by_fence) == (ApprovalState.CONSUMED, ended.fence)
        assert await desk.stage.kinds(job.id) == [
            "job.submitted", "approval.requested", "job.approved", "approval.decided", "job.dispatched", "job.started",
            "job.succeeded",
        ]  # fmt: skip
        await desk.check()


@on_virtual_time
async def test_approval_is_about_arguments_that_the_queue_leaves_out(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay(payload=b'{"to":"' + b"x" * LISTED_PAYLOAD_MAX + b'"}')
        await desk.say(job)
        async with desk.stage.loops(), desk.stage.working():
            [ended] = await desk.stage.wait_ended(job, within_s=30)
        assert (ended.state, ended.payload) == (State.SUCCEEDED, job.payload)
        assert (await desk.approval(job)).state is ApprovalState.CONSUMED
        await desk.check()


@undelivered
@on_virtual_time
async def test_other_jobs_are_not_asked_about(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.stage.submit("mail.send")
        assert (job.state, job.approval) == (State.SCHEDULED, "")
        assert await desk.all() == []


@undelivered
@on_virtual_time
async def test_history_decision_and_logs_contain_no_arguments(
    runtime: VirtualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="holdfast")
    async with deciding(runtime, rules(effect_preview="${payload.to}")) as desk:
        job = await desk.pay(payload=b'{"to":"very-secret"}')
        edited = await desk.say(job, choice=Choice.EDIT, arguments={"to": "very-secret-too"})
        assert edited.effect_preview == "very-secret-too"
        assert [vars(line) for line in caplog.records if line.msg == "approval.decided"]
        assert "very-secret" not in str([vars(line) for line in caplog.records])
        await desk.stage.seen.look()
        assert "very-secret" not in str([event.detail for event in desk.stage.seen.events])
        assert "very-secret" not in str((await desk.stage.job(job.id)).decision)


@undelivered
@on_virtual_time
async def test_requester_cannot_decide_nor_be_unknown_where_the_policy_separates(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(separate=True)) as desk:
        with pytest.raises(Invalid, match="Holdfast-Actor"):
            await desk.pay(actor="")
        job = await desk.pay()
        with pytest.raises(NotApprover):
            await desk.say(job, "rita")
        await desk.say(job, "ann")
        await desk.check(all_ended=False)


@undelivered
@on_virtual_time
async def test_a_job_that_nobody_could_approve_is_refused_and_does_not_wait(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(separate=True, approvers=["rita", "ann"], quorum=2)) as desk:
        with pytest.raises(
            Invalid, match="rita asked for this and may not approve it: of ann, 2 would have to say yes"
        ):
            await desk.pay()
        assert await desk.stage.inner.count_jobs() == {}
        job = await desk.pay(actor="bob")
        await desk.say(job, "rita")
        await desk.say(job, "ann")
        assert (await desk.stage.job(job.id)).state is State.SCHEDULED


@undelivered
@on_virtual_time
async def test_quorum_of_distinct_people_with_a_delegate(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(quorum=2, approvers=["ann", "bob"])) as desk:
        job = await desk.pay()
        await desk.say(job, "ann")
        await desk.say(job, "ann")
        approval = await desk.approval(job)
        await desk.people.delegate(ACME, approval.id, by="bob", to="carl", comment="on holiday")
        assert (await desk.stage.job(job.id)).state is State.APPROVAL_REQUIRED
        await desk.say(job, "carl")
        assert (await desk.stage.job(job.id)).state is State.SCHEDULED
        assert "approval.delegated" in await desk.stage.kinds(job.id)
        await desk.check(all_ended=False)


@on_virtual_time
async def test_job_that_is_decided_anew_has_no_more_than_the_policy_of_today_gives_it(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.approved()
        stricter = rules(approvers=["boss"])
        stricter["rules"][0]["constraints"] = {"max_attempts": 1}
        desk.policy.publish(stricter)
        await desk.stage.dispatch(job)
        assert (await desk.stage.job(job.id)).max_attempts == 1


@on_virtual_time
async def test_what_was_asked_for_is_kept_beside_what_was_approved(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(quorum=2, effect_preview="${payload.amount} to ${payload.to}")) as desk:
        job = await desk.pay()
        asked = await desk.approval(job)
        assert (asked.original, asked.effect_preview) == (None, "5 to ann")
        for by, amount in (("ann", 6), ("bob", 7)):
            await desk.say(job, by, Choice.EDIT, arguments={"to": "ann", "amount": amount})
        edited = await desk.approval(job)
        await desk.people.decide(
            ACME, edited.id, Said(by="ann", choice=Choice.APPROVE, via="cli"), version=edited.version
        )
        decided = await desk.approval(job)
        assert decided.original == Original(arguments=asked.arguments, digest=asked.digest, policy=asked.policy)
        assert (decided.arguments, decided.digest) == ({"to": "ann", "amount": 7}, edited.digest)
        assert decided.effect_preview == "7 to ann"
        assert decided.verdict is not None
        assert (decided.verdict.by, decided.verdict.via) == ("ann", "cli")
        about = [word.digest for word in decided.words]
        assert about[0] != about[1] == about[2] == decided.digest
        await desk.stage.seen.look()
        [told] = [event.detail for event in desk.stage.seen.events if event.kind == "approval.decided"]
        assert (told["digest"], told["original_digest"], told["via"]) == (decided.digest, asked.digest, "cli")
        now = await desk.stage.job(job.id)
        assert await desk.stage.dispatch(now) is Dispatched.SENT
        used = await desk.approval(job)
        assert (used.state, used.original) == (ApprovalState.CONSUMED, decided.original)
        assert used.consumed_by_fence == (await desk.stage.job(job.id)).fence


@on_virtual_time
async def test_large_arguments_are_edited_as_well(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        job = await desk.pay(payload=msgspec.json.encode({"text": "x" * 5000}))
        await desk.say(job, choice=Choice.EDIT, arguments={"text": "y" * 6000})
        now = await desk.stage.job(job.id)
        assert msgspec.json.decode(now.payload) == {"text": "y" * 6000}
        assert await desk.stage.dispatch(now) is Dispatched.SENT


@on_virtual_time
async def test_worker_sees_the_answer_that_a_rule_asks_for(runtime: VirtualRuntime) -> None:
    form = {"type": "object", "required": ["limit"], "properties": {"fee": {"type": "integer", "default": 1}}}
    async with deciding(runtime, rules(choices=["respond", "reject"], response_schema=form)) as desk:
        job = await desk.pay()
        with pytest.raises(Invalid, match="does not take approve; it takes reject, respond"):
            await desk.say(job)
        with pytest.raises(Invalid, match="the answer does not fit what was asked for"):
            await desk.say(job, choice=Choice.RESPOND, response={"limits": 3})
        assert (await desk.approval(job)).words == ()
        await desk.say(job, choice=Choice.RESPOND, response={"limit": 300})
        now = await desk.stage.job(job.id)
        assert now.decision is not None
        told = now.decision["approval"]
        assert (told["decision"], told["by"], told["response"]) == ("respond", "ann", {"limit": 300, "fee": 1})
        assert await desk.stage.dispatch(now) is Dispatched.SENT


@undelivered
@on_virtual_time
async def test_yes_to_an_answer_is_by_who_has_read_it(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(quorum=2, response_schema={"type": "integer"})) as desk:
        job = await desk.pay()
        await desk.say(job, "bob")
        answered = await desk.say(job, "ann", Choice.RESPOND, response=300)
        with pytest.raises(VersionMismatch, match="was given an answer"):
            await desk.say(job, "carl")
        agreed = await desk.people.decide(
            ACME, answered.id, Said(by="bob", choice=Choice.APPROVE), version=answered.version
        )
        assert (agreed.state, agreed.response) == (ApprovalState.APPROVED, 300)
        now = await desk.stage.job(job.id)
        assert now.decision is not None
        assert (now.decision["approval"]["decision"], now.decision["approval"]["response"]) == ("approve", 300)
        await desk.check(all_ended=False)


@undelivered
@on_virtual_time
async def test_answer_does_not_outlive_the_arguments_it_was_to(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(quorum=2, response_schema={"type": "integer"})) as desk:
        job = await desk.pay()
        await desk.say(job, "ann", Choice.RESPOND, response=300)
        edited = await desk.say(job, "bob", Choice.EDIT, arguments={"to": "ann", "amount": 6})
        decided = await desk.people.decide(
            ACME, edited.id, Said(by="ann", choice=Choice.APPROVE), version=edited.version
        )
        assert (decided.state, decided.response) == (ApprovalState.APPROVED, None)
        now = await desk.stage.job(job.id)
        assert now.decision is not None
        assert "response" not in now.decision["approval"]


@undelivered
@on_virtual_time
async def test_what_a_rule_does_not_allow_is_refused_before_it_is_looked_at(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(choices=["approve", "reject"])) as desk:
        job = await desk.pay()
        with pytest.raises(Invalid, match="does not take edit; it takes approve, reject"):
            await desk.say(job, choice=Choice.EDIT, arguments="not even an object")
        assert (await desk.stage.job(job.id)).payload == job.payload


@undelivered
@on_virtual_time
async def test_reminders_then_the_end(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(expires_s=100)) as desk:
        job = await desk.pay()
        desk.timer.start()
        await asyncio.sleep(120)
        await desk.timer.stop()
        kinds = await desk.stage.kinds(job.id)
        assert kinds.count("approval.reminded") == 2
        assert kinds[-2:] == ["job.timed_out", "approval.expired"]
        ended = await desk.stage.job(job.id)
        assert ended.state is State.TIMEOUT
        assert ended.error is not None
        assert ended.error["code"] == "approval-expired"
        await desk.check()


@pytest.mark.parametrize("unreadable", [1, 7])
@undelivered
@on_virtual_time
async def test_approvals_that_cannot_be_read_do_not_keep_others_from_their_reminders(
    runtime: VirtualRuntime, monkeypatch: pytest.MonkeyPatch, unreadable: int
) -> None:
    monkeypatch.setattr(approvals, "BATCH", 2)
    async with deciding(runtime, rules(expires_s=100)) as desk:
        for n in range(unreadable):
            record = Record(kind=Kind.APPROVAL, tenant=ACME, id=f"x{n}", created_at=0.0, due=float(n), body=b"{}")
            await desk.stage.inner.transact([Transaction(records=[RecordChange(after=record, replaces=0)])])
        job = await desk.pay()
        await asyncio.sleep(60)
        for _ in range(5):
            await desk.timer.tick()
        assert "approval.reminded" in await desk.stage.kinds(job.id)


@undelivered
@on_virtual_time
async def test_reconciler_ends_what_the_timer_does_not_get_to(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, rules(expires_s=100)) as desk:
        job = await desk.pay()
        await asyncio.sleep(99)
        await desk.stage.reconciler.tick()
        assert (await desk.stage.job(job.id)).state is State.APPROVAL_REQUIRED
        await asyncio.sleep(2)
        await desk.stage.reconciler.tick()
        assert (await desk.stage.job(job.id)).state is State.TIMEOUT
        assert (await desk.approval(job)).state is ApprovalState.EXPIRED
        await desk.check()


@undelivered
@on_virtual_time
async def test_cancelled_job_leaves_nothing_on_anybodys_list(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        waiting, approved = await desk.pay(), await desk.approved()
        for job in (waiting, approved):
            await cancel(ACME, job.id, "not needed", store=desk.stage.typed_store)
            assert (await desk.approval(job)).state is ApprovalState.SUPERSEDED
        with pytest.raises(AlreadyDecided):
            await desk.say(waiting)
        await desk.check()


@undelivered
@on_virtual_time
async def test_decision_that_was_lost_is_made_with_its_approval(runtime: VirtualRuntime) -> None:
    """The policy could not be asked at submission; the replayer asks it again."""
    async with deciding(runtime) as desk:
        asking = desk.policy.decide
        desk.policy.decide = lambda job: asking(job)._replace(event=None, failed="closed")  # type: ignore[method-assign]
        job = await desk.pay()
        assert job.state is State.PENDING
        del desk.policy.decide
        await asyncio.sleep(61)
        await desk.stage.replayer.tick()
        assert (await desk.stage.job(job.id)).state is State.APPROVAL_REQUIRED
        await desk.say(job)
        await desk.check(all_ended=False)


@pytest.mark.parametrize(("choice", "told"), [(Choice.RESPOND, "approved"), (Choice.REJECT, "rejected")])
@undelivered
@on_virtual_time
async def test_step_of_a_run_is_told_in_the_same_transaction(
    runtime: VirtualRuntime, choice: Choice, told: str
) -> None:
    async with deciding(runtime) as desk:
        store = desk.stage.inner
        terms = Terms(response_schema={"type": "object", "required": ["ok"]}, expires_s=60)
        step = ask_step(
            "a1", terms, tenant=ACME, run="r1", step="sign", arguments=None, requested_by="", labels={}, now=store.now()
        )
        assert await store.transact([Transaction(records=[RecordChange(after=to_record(step), replaces=0)])]) == [True]
        response = {"ok": True} if choice is Choice.RESPOND else None
        await desk.people.decide(ACME, "a1", Said(by="ann", choice=choice, response=response))
        [result] = await store.list_records(Kind.RESULT, ACME, parent="r1", limit=10)
        body = msgspec.json.decode(result.body)
        assert (result.id, body["step"], body["decision"], body["detail"]["response"]) == ("a1", "sign", told, response)


@undelivered
@on_virtual_time
async def test_step_of_a_run_that_nobody_decides_is_told_so(runtime: VirtualRuntime) -> None:
    async with deciding(runtime) as desk:
        store = desk.stage.inner
        step = ask_step(
            "a1", Terms(expires_s=60), tenant=ACME, run="r1", step="sign", arguments=None, requested_by="", labels={},
            now=store.now(),
        )  # fmt: skip
        assert await store.transact([Transaction(records=[RecordChange(after=to_record(step), replaces=0)])]) == [True]
        await asyncio.sleep(61)
        await desk.timer.tick()
        [result] = await store.list_records(Kind.RESULT, ACME, parent="r1", limit=10)
        assert msgspec.json.decode(result.body)["decision"] == "expired"
        assert [event.kind for event in await store.list_events(after=0, limit=10, run="r1")] == ["approval.expired"]
