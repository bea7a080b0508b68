"""Who may decide an approval, what they may say, and when it is decided."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.asking import NOW, approved, asked, word
from holdfast.core.approval import (
    Approval,
    ApprovalState,
    end,
)
from holdfast.core.ballot import answered, delegate, is_answered, is_assigned, is_repeated, say
from holdfast.core.decision import Choice
from holdfast.errors import AlreadyDecided, Conflict, Invalid, NotApprover


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
