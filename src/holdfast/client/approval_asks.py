"""What can be asked about approvals, as values; see `asks`."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from holdfast.api.approvals import (
    ApprovalPage,
    ApprovalView,
    Approve,
    DecideApproval,
    DelegateApproval,
    Edit,
    Reject,
    Respond,
)
from holdfast.client.asks import Ask, get_ask, part, post_ask, read_as, said_by


class ApprovalsWanted(TypedDict, total=False):
    """Filters of a list of approvals."""

    state: str | None
    job: str | None
    assignee: str | None
    cursor: str | None
    limit: int


class Saying(TypedDict, total=False):
    """What is said with a decision, by whom, and through what: without `by` it is the client's `actor`."""

    by: str
    comment: str
    via: str
    """The face that people decide with: ui, slack; `python` if absent."""
    version: int | None
    """Only if the approval still has this version."""


def approvals(**wanted: Unpack[ApprovalsWanted]) -> Ask[ApprovalPage]:
    """A page of approvals, newest first."""
    names = ("state", "job", "assignee", "cursor", "limit")
    return get_ask("/v1/approvals", read_as(ApprovalPage), *((name, wanted.get(name)) for name in names))


def approval(approval_id: str) -> Ask[ApprovalView]:
    """One approval, with everything that was said on it."""
    return get_ask(f"/v1/approvals/{part(approval_id)}", read_as(ApprovalView))


def approve(approval_id: str, **saying: Unpack[Saying]) -> Ask[ApprovalView]:
    """Yes. Raises `AlreadyDecided` if somebody else was first; said again, it is answered the same."""
    return _decide(approval_id, Approve(comment=saying.get("comment", "")), **saying)


def reject(approval_id: str, **saying: Unpack[Saying]) -> Ask[ApprovalView]:
    """No; the comment says why. Raises as `approve`."""
    return _decide(approval_id, Reject(comment=saying.get("comment", "")), **saying)


def edit_approval(approval_id: str, arguments: Any, **saying: Unpack[Saying]) -> Ask[ApprovalView]:
    """Yes, with these arguments instead. Raises as `approve`, and `Invalid` if they do not fit."""
    return _decide(approval_id, Edit(arguments=arguments, comment=saying.get("comment", "")), **saying)


def respond(approval_id: str, response: Any, **saying: Unpack[Saying]) -> Ask[ApprovalView]:
    """Yes, with this answer for the job. Raises as `edit_approval`."""
    return _decide(approval_id, Respond(response=response, comment=saying.get("comment", "")), **saying)


def delegate(approval_id: str, to: str, *, by: str = "", comment: str = "") -> Ask[ApprovalView]:
    """`to` may decide in the caller's place, this once."""
    body = DelegateApproval(to=to, comment=comment)
    path = f"/v1/approvals/{part(approval_id)}:delegate"
    return post_ask(path, read_as(ApprovalView), body, headers=said_by(by), repeatable=True)


def _decide(approval_id: str, body: DecideApproval, **saying: Unpack[Saying]) -> Ask[ApprovalView]:
    headers, version = said_by(saying.get("by", "")), saying.get("version")
    headers["holdfast-via"] = saying.get("via", "python")
    if version is not None:
        headers["if-match"] = f'"{version}"'
    path = f"/v1/approvals/{part(approval_id)}:decide"
    # Repeated, it is answered as the first time, also under a version: the plane knows its own words.
    return post_ask(path, read_as(ApprovalView), body, headers=headers, repeatable=True)
