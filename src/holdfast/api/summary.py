"""How a plane stands, on one page: what `holdfast top` shows."""

from __future__ import annotations

from holdfast.api.freezes import FreezeView
from holdfast.api.looking import LockView, WorkerInfo
from holdfast.api.words import Reply


class WarningView(Reply, kw_only=True):
    code: str
    summary: str
    next: str


class Summary(Reply, kw_only=True):
    """Jobs, effects and approvals of the caller's tenant; workers, locks, freezes and totals of the plane."""

    at: float
    states: dict[str, int]
    """Live jobs by state."""
    topics: dict[str, int]
    """Live jobs by topic, those with the most."""
    waiting_longest_s: float | None
    """Of the jobs that could be dispatched now; None: there are none."""
    totals: dict[str, int]
    """submitted, dispatched, ended: since this process began. Two of them a while apart make a rate."""
    workers: list[WorkerInfo]
    locks_held: int
    locks_contended: list[LockView]
    """Those that others wait for, most of them first."""
    approvals_pending: int
    effects_unknown: int
    freezes: list[FreezeView]
    warnings: list[WarningView]
