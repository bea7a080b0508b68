"""Approvals: what they are bound to, who may decide them, and what becomes of them."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest
from msgspec.structs import replace

from core.asking import NOW, a_job, approved, asked, word
from holdfast.core.approval import (
    REMIND_AT,
    Approval,
    ApprovalState,
    Terms,
    ask,
    ask_step,
    consume,
    follow,
    from_record,
    result_record,
    to_record,
    why_unusable,
)
from holdfast.core.ballot import say
from holdfast.core.decision import Choice
from holdfast.core.job import Job, Tenant, step
from holdfast.core.preview import PREVIEW_MAX
from holdfast.core.record import Kind
from holdfast.core.states import Event, State
from holdfast.errors import Invalid

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
