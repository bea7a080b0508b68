"""Approvals to decide on, for the tests of approvals and of ballots."""

from __future__ import annotations

from typing import Any

from plane.jobs import a_job as any_job

from holdfast.core.approval import Approval, Terms, Word, ask
from holdfast.core.ballot import say
from holdfast.core.decision import Choice
from holdfast.core.job import Job, JobId
from holdfast.core.states import Risk, State

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
