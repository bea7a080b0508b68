"""Ballots: who may decide an approval, what they may say, and when it is decided. Once.

Everything here is from one version of an approval to the next; whoever stores it does so by compare
and set, so that of two who decide at once one is told that the other was first.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import replace

from holdfast.core.approval import Approval, ApprovalState, Verdict, Word
from holdfast.core.decision import Choice, are_enough
from holdfast.core.schema import compile_schema
from holdfast.errors import AlreadyDecided, Conflict, Invalid, NotApprover

_PLAIN_YES = (Choice.APPROVE, Choice.RESPOND)
WORDS_MAX = 100
"""Of one approval: it is written anew with each of them. Likewise delegations."""


def is_assigned(approval: Approval, name: str) -> bool:
    """Whether they are among those who may decide, or sit in the place of somebody who is."""
    seat = _seat(approval, name)
    return any(fnmatchcase(seat, approver) for approver in approval.terms.approvers)


def check_approver(approval: Approval, by: str) -> None:
    """Raises `NotApprover`."""
    # Nor who sits in their place: before an edit they may have had one to give away.
    if approval.terms.separate and approval.requested_by in _places(approval, by):
        raise NotApprover(f"{approval.requested_by} asked for this, and somebody else must decide it")
    if approval.terms.approvers and not is_assigned(approval, by):
        raise NotApprover(f"{by} is not among those who may decide this: {', '.join(approval.assignees)}")


def is_repeated(approval: Approval, word: Word, *, anew: bool = False) -> bool:
    """Whether the same person has said the same before, and it was not in vain.

    While it is open, a word on what it was about before an edit or another answer is taken for that word coming in
    twice, and not for a change of mind; unless it is said `anew`, by somebody who has read the approval as it is.
    """
    words = approval.words if approval.verdict is None and not anew else words_that_count(approval)
    said = any((w.by, w.choice, w.content) == (word.by, word.choice, word.content) for w in words)
    if approval.verdict is None:
        return said
    decision = approval.verdict.decision
    by_people = decision in set(Choice)
    return said and by_people and (word.choice is Choice.REJECT) == (decision == Choice.REJECT)


def say(approval: Approval, word: Word) -> Approval:
    """The approval after one more word on it: decided, or nearer to its quorum.

    Raises `AlreadyDecided`, `NotApprover` and `Invalid`. An edit or an answer comes in with
    `edited` or `answered`, not here.
    """
    check_open(approval)
    check_approver(approval, word.by)
    check_allowed(approval, word.choice)
    if word.choice is not Choice.REJECT and len(approval.words) >= WORDS_MAX:
        raise Conflict(
            f"{WORDS_MAX} words were said on this approval, and none decided it; reject it, or let it expire"
        )
    if approval.terms.separate and word.choice in _PLAIN_YES and _seat(approval, word.by) == _editor(approval):
        raise NotApprover(f"{word.by} has edited this, and somebody else must approve it")
    heard = replace(approval, words=(*approval.words, replace(word, digest=approval.digest)))
    if word.choice is Choice.EDIT and approval.terms.separate:
        without = {approval.requested_by, _seat(approval, word.by)}
        if not are_enough(approval.terms.approvers, approval.terms.quorum, without=without):
            raise Invalid("nobody could approve what you make of it: whoever edits this may not, and too few are left")
    if word.choice is Choice.REJECT:
        state = ApprovalState.REJECTED
    elif len(seats_in_favour(heard)) >= approval.terms.quorum:
        state = ApprovalState.APPROVED
    else:
        return heard
    verdict = Verdict(by=word.by, at=word.at, decision=word.choice, comment=word.comment, via=word.via)
    return replace(heard, state=state, verdict=verdict)


def check_open(approval: Approval) -> None:
    """Raises `AlreadyDecided`, with who decided."""
    if approval.state is not ApprovalState.PENDING:
        verdict = approval.verdict
        assert verdict is not None
        raise AlreadyDecided(approval.id, by=verdict.by, decision=verdict.decision, at=verdict.at)


def check_allowed(approval: Approval, choice: Choice) -> None:
    """Raises `Invalid`, with what may be said instead."""
    if not approval.terms.allows(choice):
        raise Invalid(f"this approval does not take {choice}; it takes {', '.join(choices_of(approval))}")


def choices_of(approval: Approval) -> list[Choice]:
    return [choice for choice in Choice if approval.terms.allows(choice)]


def seats_in_favour(approval: Approval) -> set[str]:
    """Whose yes is in. A delegate sits in the place of whoever named them: the two of them are one."""
    words = words_that_count(approval)
    seats = {_seat(approval, word.by) for word in words if word.choice is not Choice.REJECT}
    # Whoever words a request asks for it: where that must not be who approves it, an edit is no yes.
    return seats - {_editor(approval)} if approval.terms.separate else seats


def words_that_count(approval: Approval) -> tuple[Word, ...]:
    """Those on what it is about by now. An edit is another question, and another answer another yes: what was said
    before was said of something else, and nobody is taken to have agreed to what they have not seen."""
    first, answer = 0, ""
    for n, word in enumerate(approval.words):
        if word.choice is Choice.EDIT:
            first, answer = n, ""
        elif word.choice is Choice.RESPOND and word.content != answer:
            first, answer = n, word.content
    return approval.words[first:]


def is_answered(approval: Approval) -> bool:
    """Whether `response` is somebody's answer; null may be one."""
    return any(word.choice is Choice.RESPOND for word in words_that_count(approval))


def _editor(approval: Approval) -> str | None:
    """Whose arguments it is about by now; None: those it was asked for with."""
    edits = [word for word in approval.words if word.choice is Choice.EDIT]
    return _seat(approval, edits[-1].by) if edits else None


def _seat(approval: Approval, name: str) -> str:
    return _places(approval, name)[-1]


def _places(approval: Approval, name: str) -> list[str]:
    """They, whoever named them, and so on. Chains end: nobody delegates to somebody who has a seat already."""
    places = [name]
    while places[-1] in approval.delegates:
        places.append(approval.delegates[places[-1]])
    return places


def answered(approval: Approval, response: Any) -> Approval:
    """The approval with an answer. Raises `Invalid` if it does not fit, or nobody asked for one."""
    check_allowed(approval, Choice.RESPOND)
    schema = approval.terms.response_schema
    assert schema is not None, "without one, nobody is asked for an answer"
    try:
        bound = compile_schema(schema).bind(response)
    except Invalid as error:
        raise Invalid(f"the answer does not fit what was asked for: {error}") from None
    return replace(approval, response=bound)


def delegate(approval: Approval, by: str, to: str) -> Approval:
    """`to` may decide in the place of `by`. Raises as `say`."""
    check_open(approval)
    check_approver(approval, by)
    if not approval.terms.approvers:
        raise Invalid("anybody may decide this one: there is nothing to delegate")
    if approval.terms.separate and to == approval.requested_by:
        raise NotApprover(f"{to} asked for this, and somebody else must decide it")
    if approval.delegates.get(to) == by:
        return approval
    if is_assigned(approval, to):
        raise Conflict(f"{to} may decide this already")
    if len(approval.delegates) >= WORDS_MAX:
        raise Conflict(f"this approval was delegated {WORDS_MAX} times; decide it, or let it expire")
    return replace(approval, delegates={**approval.delegates, to: by})
