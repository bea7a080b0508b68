"""Approvals: what they are bound to, who may decide them, and what becomes of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from plane.jobs import a_job as any_job

from holdfast.core.approval import (
    REMIND_AT,
    Approval,
    ApprovalState,
    Terms,
    Word,
    ask,
    ask_step,
    consume,
    end,
    follow,
    from_record,
    result_record,
    to_record,
    why_unusable,
)
from holdfast.core.ballot import answered, delegate, is_answered, is_assigned, is_repeated, say
from holdfast.core.decision import Choice
from holdfast.core.job import Job, JobId, Tenant, step
from holdfast.core.preview import PREVIEW_MAX
from holdfast.core.record import Kind
from holdfast.core.states import Event, Risk, State
from holdfast.errors import AlreadyDecided, Conflict, Invalid, NotApprover

NOW = 1_000.0


def a_job(**changes: Any) -> Job:
    payout = {
        "id": JobId("j1"),
        "topic": "pay",
        "payload": b'{"to":"ann","amount":5}',
        "risk": Risk.HIGH,
        "state": State.APPROVAL_REQUIRED,
        "actor": "rita",
        "decision": {"action": "require_approval", "rule": "payouts", "policy": 7, "hash": "x"},
    }
    return any_job(**{**payout, **changes})


def asked(job: Job | None = None, **terms: Any) -> Approval:
    return ask(job or a_job(), Terms(**terms), now=NOW)


def word(approval: Approval, by: str, choice: Choice = Choice.APPROVE, at: float = NOW + 1) -> Word:
    return Word(by=by, at=at, choice=choice, content=approval.digest)


def approved(approval: Approval, by: str = "ann") -> Approval:
    return say(approval, word(approval, by))


# -- what it is bound to ---------------------------------------------------------------------------


def test_same_question_is_the_same_approval() -> None:
    assert asked() == asked()
    assert asked().id.startswith("j1-")


@pytest.mark.parametrize(
    "other",
    [
        a_job(payload=b'{"to":"ann","amount":6}'),
        a_job(tenant=Tenant("globex")),
        a_job(topic="refund"),
        a_job(decision={"policy": 8}),
    ],
)
def test_digest_is_over_arguments_tenant_tool_and_policy(other: Job) -> None:
    assert asked(other).digest != asked().digest
    assert asked(other).id != asked().id


@pytest.mark.parametrize(
    "same",
    [
        a_job(payload=b'{ "amount": 5, "to": "ann" }'),
        a_job(labels={"description": "the model's words of today"}),
        a_job(actor="somebody-else"),
        a_job(decision={"policy": 7, "reason": "other words"}),
    ],
)
def test_digest_is_not_over_words_or_the_order_of_keys(same: Job) -> None:
    assert asked(same).digest == asked().digest


def test_second_round_is_another_approval() -> None:
    first = consume(approved(asked()), fence=3)
    second = ask(a_job(fence=3), Terms(), now=NOW + 9, earlier=first)
    assert (second.round, second.digest) == (2, first.digest)
    assert second.id != first.id


def test_separation_needs_a_known_requester() -> None:
    with pytest.raises(Invalid, match="Holdfast-Actor"):
        ask(a_job(actor=""), Terms(separate=True), now=NOW)


@pytest.mark.parametrize(
    ("approvers", "quorum", "enough"),
    [
        (("rita",), 1, False),
        (("rita", "ann"), 1, True),
        (("rita", "ann"), 2, False),
        (("rita", "ann", "ann"), 2, False),
        (("ann", "bob"), 2, True),
        (("rita", "fin-*"), 2, True),  # who is among them nobody knows
        ((), 2, True),
    ],
)
def test_what_too_few_could_approve_without_the_requester_is_not_asked_for(
    approvers: tuple[str, ...], quorum: int, enough: bool
) -> None:
    terms = Terms(approvers=approvers, quorum=quorum, separate=True)
    refused = nullcontext() if enough else pytest.raises(Invalid, match="rita asked for this and may not approve it")
    with refused:
        ask(a_job(), terms, now=NOW)
    with refused:
        ask_step(
            "a1", terms, tenant=Tenant("t"), run="r", step="s", arguments=1, requested_by="rita", labels={}, now=NOW
        )
    ask(a_job(), replace(terms, separate=False), now=NOW)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("", ""),
        ("${payload.amount} EUR go to ${payload.to}, asked by ${actor}", "5 EUR go to ann, asked by rita"),
        ("${payload}", '{"to":"ann","amount":5}'),
        ("to ${payload.iban}", "(no preview: it reads a field that is not there; ask has(…) first)"),
    ],
)
def test_preview_is_made_of_what_the_approval_is_bound_to(template: str, shown: str) -> None:
    assert asked(effect_preview=template).effect_preview == shown
    assert asked(effect_preview=template).digest == asked().digest


def test_preview_that_is_cut_says_so() -> None:
    long = asked(a_job(payload=msgspec.json.encode("x" * 5000)), effect_preview="${payload}").effect_preview
    assert len(long) == PREVIEW_MAX
    assert long.endswith("x (cut)")


# -- who decides, and when it is decided -----------------------------------------------------------


def test_one_yes_decides_and_the_second_is_told_who_was_first() -> None:
    decided = approved(asked())
    assert decided.state is ApprovalState.APPROVED
    with pytest.raises(AlreadyDecided) as refused:
        say(decided, word(decided, "bob", Choice.REJECT, at=NOW + 2))
    assert (refused.value.decided_by, refused.value.decision, refused.value.decided_at) == ("ann", "approve", NOW + 1)


@pytest.mark.parametrize(
    ("by", "choice", "repeated"),
    [
        ("ann", Choice.APPROVE, True),
        ("ann", Choice.REJECT, False),
        ("bob", Choice.APPROVE, False),
    ],
)
def test_only_the_same_word_of_the_same_person_is_a_repetition(by: str, choice: Choice, *, repeated: bool) -> None:
    decided = approved(asked())
    assert is_repeated(decided, word(decided, by, choice)) is repeated


def test_yes_that_came_to_nothing_is_not_repeated() -> None:
    pending = approved(asked(quorum=2))
    expired = end(pending, ApprovalState.EXPIRED, why="approval-expired", now=NOW + 9)
    assert not is_repeated(expired, word(expired, "ann"))


def test_quorum_counts_distinct_people() -> None:
    once = approved(asked(quorum=2))
    assert once.state is ApprovalState.PENDING
    assert is_repeated(once, word(once, "ann"))
    assert approved(once, "bob").state is ApprovalState.APPROVED


def test_one_no_ends_a_quorum() -> None:
    once = approved(asked(quorum=3))
    assert say(once, word(once, "bob", Choice.REJECT)).state is ApprovalState.REJECTED


def test_edit_takes_back_what_was_said_of_other_arguments() -> None:
    once = approved(asked(quorum=2))
    edited = replace(once, digest="another")
    edited = say(edited, replace(word(edited, "bob", Choice.EDIT), content="edit"))
    assert edited.state is ApprovalState.PENDING
    assert not is_repeated(edited, word(edited, "ann"))
    assert approved(edited, "ann").state is ApprovalState.APPROVED


def test_requester_may_not_approve_where_the_policy_separates() -> None:
    approval = asked(separate=True)
    with pytest.raises(NotApprover, match="rita"):
        approved(approval, "rita")
    assert approved(asked(), "rita").state is ApprovalState.APPROVED


def test_editor_may_not_approve_the_edit_where_the_policy_separates() -> None:
    edited = say(asked(separate=True), word(asked(), "ann", Choice.EDIT))
    assert edited.state is ApprovalState.PENDING
    with pytest.raises(NotApprover, match="ann has edited"):
        approved(edited, "ann")
    assert approved(edited, "bob").state is ApprovalState.APPROVED
    assert say(edited, word(edited, "ann", Choice.REJECT)).state is ApprovalState.REJECTED


def test_an_edit_that_nobody_else_could_approve_is_refused() -> None:
    approval = delegate(asked(approvers=("ann", "rita"), separate=True), "ann", "carl")
    for name in ("ann", "carl"):
        with pytest.raises(Invalid, match="nobody could approve what you make of it"):
            say(approval, word(approval, name, Choice.EDIT))
    assert approved(approval, "carl").state is ApprovalState.APPROVED


def test_only_those_named_decide() -> None:
    approval = asked(approvers=("ann", "finance/*"))
    with pytest.raises(NotApprover):
        approved(approval, "bob")
    assert approved(approval, "finance/joe").state is ApprovalState.APPROVED


def test_delegate_decides_in_the_place_of_who_named_them_and_counts_once() -> None:
    approval = delegate(asked(approvers=("ann", "bob"), quorum=2), "ann", "carl")
    assert is_assigned(approval, "carl")
    both = approved(approved(approval, "ann"), "carl")
    assert both.state is ApprovalState.PENDING
    assert approved(both, "bob").state is ApprovalState.APPROVED


def test_delegation_is_refused_where_it_would_be_a_way_around() -> None:
    approval = asked(approvers=("ann", "bob"), separate=True)
    with pytest.raises(NotApprover):
        delegate(approval, "ann", "rita")
    with pytest.raises(NotApprover):
        delegate(approval, "zoe", "carl")
    with pytest.raises(Conflict):
        delegate(approval, "ann", "bob")
    with pytest.raises(Invalid):
        delegate(asked(), "ann", "carl")
    named = delegate(approval, "ann", "carl")
    assert delegate(named, "ann", "carl") is named
    with pytest.raises(Conflict):
        delegate(named, "carl", "ann")


def test_answer_must_fit_and_must_have_been_asked_for() -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]}
    approval = asked(response_schema=schema)
    assert say(answered(approval, {"limit": 3}), word(approval, "ann", Choice.RESPOND)).response == {"limit": 3}
    with pytest.raises(Invalid):
        answered(approval, {"limit": "three"})
    with pytest.raises(Invalid):
        answered(asked(), {"limit": 3})
    with pytest.raises(Invalid, match="does not take respond; it takes approve, reject, edit"):
        say(asked(), word(asked(), "ann", Choice.RESPOND))


@pytest.mark.parametrize(
    ("terms", "choice", "told"),
    [
        ({"choices": (Choice.APPROVE, Choice.REJECT)}, Choice.EDIT, "edit; it takes approve, reject"),
        ({"choices": (Choice.EDIT, Choice.REJECT)}, Choice.APPROVE, "approve; it takes reject, edit"),
        ({"choices": (Choice.APPROVE,)}, Choice.REJECT, "reject; it takes approve"),
        (
            {"choices": (Choice.RESPOND, Choice.REJECT), "response_schema": {}},
            Choice.APPROVE,
            "approve; it takes reject, respond",
        ),
    ],
)
def test_what_the_terms_do_not_allow_is_refused_with_what_they_do(
    terms: dict[str, Any], choice: Choice, told: str
) -> None:
    approval = asked(**terms)
    with pytest.raises(Invalid, match=f"does not take {told}$"):
        say(approval, word(approval, "ann", choice))


def answer(approval: Approval, by: str, limit: int) -> Approval:
    said = replace(word(approval, by, Choice.RESPOND), content=f"limit {limit}")
    return say(answered(approval, {"limit": limit}), said)


def test_yes_is_to_the_answer_that_stands_and_to_no_other() -> None:
    approval = asked(response_schema={}, quorum=2)
    other = answer(answer(approval, "ann", 300), "bob", 900)
    assert (other.state, other.response) == (ApprovalState.PENDING, {"limit": 900})
    agreed = approved(other, "carl")
    assert (agreed.state, agreed.response, is_answered(agreed)) == (ApprovalState.APPROVED, {"limit": 900}, True)
    assert answer(answer(approval, "ann", 300), "bob", 300).state is ApprovalState.APPROVED
    assert answer(approved(approval, "ann"), "bob", 300).state is ApprovalState.PENDING


def test_word_that_an_answer_overtook_is_said_anew_by_who_has_read_the_answer() -> None:
    overtaken = answer(approved(asked(response_schema={}, quorum=2)), "bob", 300)
    assert is_repeated(overtaken, word(overtaken, "ann"))
    assert not is_repeated(overtaken, word(overtaken, "ann"), anew=True)
    assert approved(overtaken, "ann").state is ApprovalState.APPROVED


# -- at dispatch, and with its job -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("approval", "job", "now", "why"),
    [
        (approved(asked()), a_job(), NOW + 2, ""),
        (None, a_job(), NOW + 2, "approval-missing"),
        (asked(), a_job(), NOW + 2, "approval-pending"),
        (say(asked(), word(asked(), "ann", Choice.REJECT)), a_job(), NOW + 2, "approval-rejected"),
        (consume(approved(asked()), 3), a_job(), NOW + 2, "approval-consumed"),
        (approved(asked(expires_s=60)), a_job(), NOW + 60, "approval-expired"),
        (approved(asked()), a_job(payload=b'{"to":"ann","amount":500}'), NOW + 2, "approval-digest"),
    ],
)
def test_approval_is_good_for_what_was_approved_and_for_nothing_else(
    approval: Approval | None, job: Job, now: float, why: str
) -> None:
    assert why_unusable(approval, job, now=now) == why


def dispatched() -> tuple[Approval, Job]:
    job = a_job(state=State.DISPATCHED, fence=9)
    return consume(approved(asked()), 9), job


@pytest.mark.parametrize("event", [Event.REQUEUE, Event.ROLL_BACK])
def test_dispatch_that_nobody_began_on_gives_the_approval_back(event: Event) -> None:
    used, job = dispatched()
    back = follow(used, job, step(job, event, now=NOW), why="", now=NOW)
    assert back is not None
    assert (back.state, back.consumed_by_fence) == (ApprovalState.APPROVED, None)


@pytest.mark.parametrize("event", [Event.RETRY, Event.LOSE, Event.HAND_BACK])
def test_attempt_that_began_has_used_it_up(event: Event) -> None:
    used, job = dispatched()
    running = step(job, Event.START, now=NOW)
    assert follow(used, job, running, why="", now=NOW) is None
    assert follow(used, running, step(running, event, now=NOW), why="", now=NOW) is None


@pytest.mark.parametrize(
    ("why", "state"), [("cancelled", ApprovalState.SUPERSEDED), ("approval-expired", ApprovalState.EXPIRED)]
)
def test_approval_ends_with_its_job(why: str, state: ApprovalState) -> None:
    job = a_job()
    ended = follow(asked(), job, step(job, Event.CANCEL, now=NOW), why=why, now=NOW)
    assert ended is not None
    assert (ended.state, ended.due) == (state, None)


# -- time, and the record --------------------------------------------------------------------------


def test_reminders_come_before_the_end() -> None:
    approval = asked(expires_s=100)
    dues = [replace(approval, reminders=n).due for n in range(len(REMIND_AT) + 1)]
    assert dues == [NOW + 50, NOW + 90, NOW + 100]
    assert approved(approval).due is None


def test_record_has_all_of_it_and_grows_by_one_version() -> None:
    approval = approved(asked(approvers=("ann",)))
    record = to_record(approval)
    assert (record.kind, record.version, record.state, record.parent) == (Kind.APPROVAL, 1, "approved", "j1")
    assert from_record(record) == replace(approval, version=1)


def test_record_from_before_the_original_was_kept_is_read() -> None:
    approval = approved(asked(response_schema={"type": "integer"}))
    old = msgspec.json.decode(to_record(approval).body)
    del old["original"], old["effect_preview"]
    for name in ("effect_preview", "response_schema"):
        del old["terms"][name]
    for word_or_verdict in (*old["words"], old["verdict"]):
        word_or_verdict.pop("via")
        word_or_verdict.pop("digest", None)
    read = from_record(replace(to_record(approval), body=msgspec.json.encode(old)))
    assert (read.original, read.verdict and read.verdict.via, read.words[0].digest) == (None, "", "")
    assert why_unusable(read, a_job(), now=NOW + 2) == ""


def test_step_of_a_run_is_told_and_not_edited() -> None:
    approval = ask_step(
        "a1", Terms(), tenant=Tenant("acme"), run="r1", step="sign", arguments={"n": 1}, requested_by="", labels={},
        now=NOW,
    )  # fmt: skip
    with pytest.raises(Invalid):
        say(approval, word(approval, "ann", Choice.EDIT))
    record = result_record(approved(approval), now=NOW)
    assert (record.kind, record.parent, record.id, record.due) == (Kind.RESULT, "r1", "a1", NOW)
    assert msgspec.json.decode(record.body)["decision"] == "approved"
