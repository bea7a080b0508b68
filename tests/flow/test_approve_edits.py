"""Who may edit what an approval is about, and who decides about that then."""

from __future__ import annotations

from typing import Any

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.approving import deciding, rules
from flow.stage import ACME
from flow.telling import undelivered
from holdfast.core.approval import ApprovalState
from holdfast.core.decision import Choice
from holdfast.errors import Invalid, NotApprover
from holdfast.flow.approve import Said


@undelivered
@on_virtual_time
async def test_edit_under_a_rule_for_other_people_is_theirs_to_decide(runtime: VirtualRuntime) -> None:
    """Ann may approve little money. She cannot make it much by editing."""
    document = rules(approvers=["ann"])
    big = {
        "name": "big",
        "when": "payload.amount > 100",
        "action": "require_approval",
        "approval": {"approvers": ["boss"]},
    }
    document["rules"].insert(0, big)
    async with deciding(runtime, document) as desk:
        job = await desk.pay()
        with pytest.raises(NotApprover):
            await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 5000})
        assert (await desk.approval(job)).terms.approvers == ("ann",)
        await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 6})
        assert (await desk.stage.job(job.id)).payload == b'{"to":"ann","amount":6}'


def apart(**big: Any) -> dict[str, Any]:
    """Little money is for ann, bob and eve to approve, much money as `big` says."""
    document = rules(approvers=["ann", "bob", "eve"])
    much = {"name": "much", "when": "payload.amount > 100", "action": "require_approval", "approval": big}
    document["rules"].insert(0, much)
    return document


@undelivered
@on_virtual_time
async def test_who_may_not_decide_cannot_edit_it_into_what_they_may(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, apart(approvers=["boss"])) as desk:
        job = await desk.pay(payload=b'{"to":"rita","amount":5000}')
        with pytest.raises(NotApprover, match="ann is not among those who may decide this: boss"):
            await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 6})

        assert (await desk.stage.job(job.id)).payload == b'{"to":"rita","amount":5000}'
        assert (await desk.approval(job)).state is ApprovalState.PENDING


@undelivered
@on_virtual_time
async def test_edit_into_what_is_decided_apart_needs_a_requester_who_is_known(runtime: VirtualRuntime) -> None:
    async with deciding(runtime, apart(approvers=["ann", "bob"], separate=True)) as desk:
        job = await desk.pay(actor="")
        with pytest.raises(Invalid, match="Holdfast-Actor"):
            await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 5000})

        await desk.say(job, "bob")
        assert (await desk.stage.job(job.id)).payload == b'{"to":"ann","amount":5}'


@undelivered
@on_virtual_time
async def test_nobody_decides_in_the_place_of_a_requester_who_may_not(runtime: VirtualRuntime) -> None:
    """Bob asks, and is on holiday; where he may approve himself, carl may for him, and not any more after an edit."""
    async with deciding(runtime, apart(approvers=["ann", "bob", "eve"], separate=True)) as desk:
        job = await desk.pay(actor="bob")
        first = await desk.approval(job)
        await desk.people.delegate(ACME, first.id, by="bob", to="carl", comment="")
        await desk.people.delegate(ACME, first.id, by="carl", to="dora", comment="")
        edited = await desk.say(job, "ann", Choice.EDIT, arguments={"to": "ann", "amount": 5000})
        for name in ("bob", "carl", "dora"):
            with pytest.raises(NotApprover, match="bob asked for this"):
                await desk.people.decide(ACME, first.id, Said(by=name, choice=Choice.APPROVE), version=edited.version)


@undelivered
@on_virtual_time
async def test_edit_that_others_decide_expires_as_theirs_do_and_has_no_delegates(runtime: VirtualRuntime) -> None:
    document = rules(approvers=["ann", "boss"], quorum=2)
    big = {
        "name": "big",
        "when": "payload.amount > 100",
        "action": "require_approval",
        "reason": "much money moves",
        "approval": {"approvers": ["boss", "bob", "carl"], "quorum": 2, "expires_s": 600},
    }
    document["rules"].insert(0, big)
    async with deciding(runtime, document) as desk:
        job = await desk.pay()
        first = await desk.approval(job)
        await desk.people.delegate(ACME, first.id, by="ann", to="carl", comment="on holiday")
        edited = await desk.say(job, "boss", Choice.EDIT, arguments={"to": "ann", "amount": 5000})
        assert (edited.state, edited.reason, edited.delegates) == (ApprovalState.PENDING, "much money moves", {})
        assert edited.expires_at <= desk.stage.store.now() + 600
        decided = await desk.people.decide(
            ACME, first.id, Said(by="carl", choice=Choice.APPROVE), version=edited.version
        )
        assert decided.state is ApprovalState.APPROVED


@undelivered
@on_virtual_time
async def test_edited_job_has_no_more_than_the_policy_gives_it(runtime: VirtualRuntime) -> None:
    document = rules()
    document["rules"][0]["constraints"] = {"max_attempts": 1, "labels": {"require.zone": "eu"}}
    small = {"name": "small", "when": "payload.amount < 10", "action": "require_approval"}
    document["rules"].insert(0, small)
    async with deciding(runtime, document) as desk:
        job = await desk.pay()
        await desk.say(job, choice=Choice.EDIT, arguments={"to": "ann", "amount": 50})
        now = await desk.stage.job(job.id)
        assert (now.max_attempts, now.labels["require.zone"]) == (1, "eu")
