"""Why something is as it is: one shape for jobs, runs, locks, approvals and workers."""

from __future__ import annotations

from typing import Any

from holdfast.api.words import Reply


class FindingView(Reply, kw_only=True):
    code: str
    """Stable; docs/reference/why.md has them all."""
    weight: str
    """blocked, waiting, working, ended or note."""
    summary: str
    since: float | None
    until: float | None
    who: str
    next: list[str]
    evidence: dict[str, Any]


class AttemptLine(Reply, kw_only=True):
    """One attempt of a job: who had it, and how it ended."""

    fence: int
    worker: str
    sent_at: float
    began_at: float | None
    ended_at: float | None
    ending: str
    reason: str
    refused: int
    refused_at: float | None


class WhyView(Reply, kw_only=True):
    subject: str
    id: str
    state: str
    at: float
    findings: list[FindingView]
    """The cause first. Never empty."""
    attempts: list[AttemptLine]
    """Of a job, in the order of their fences."""
