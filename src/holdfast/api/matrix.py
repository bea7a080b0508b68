"""The policy matrix."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.api.freezes import WEEK_S
from holdfast.api.policies import Reason
from holdfast.api.words import Reply, Request

Selector = Annotated[str, Meta(pattern=r"^(risk=(low|medium|high)|namespace=[a-z][a-z0-9_.-]{0,63})$(?!\n)")]


class MatrixRules(Request, kw_only=True):
    """What a cell changes; null: nothing."""

    failures: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Consecutive failed renewals after which a lease is given up."""
    action: Annotated[str, Meta(pattern=r"^(fence|continue)$(?!\n)")] | None = None
    reacquire_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """How long the lock is waited for, also after a loss."""
    fallback: Annotated[str, Meta(pattern=r"^(fail|local)$(?!\n)")] | None = None


class SetCell(Request, kw_only=True):
    """`POST /v1/matrix:set`."""

    cell: Selector
    """`risk=RISK` or `namespace=LOCK-CLASS`."""
    rules: MatrixRules
    reason: Reason
    for_s: Annotated[float, Meta(gt=0, le=WEEK_S)] | None = None
    """null: until it is reset."""


class ResetCell(Request, kw_only=True):
    cell: Selector
    reason: Reason


class SimulateCell(Request, kw_only=True):
    cell: Selector
    rules: MatrixRules


class CellView(Reply, kw_only=True):
    cell: str
    rules: MatrixRules
    reason: str
    by: str
    since: float
    until: float | None


class MatrixRow(Reply, kw_only=True):
    """One lock class: what it was declared with, and what the plane that answers goes by."""

    namespace: str
    risk: str
    failures: int
    action: str
    release: str
    """After a loss: always `skip`."""
    reacquire_s: float
    fallback: str
    declared: MatrixRules
    cells: list[str]
    """Those that have a word on it, the last word last."""


class MatrixView(Reply, kw_only=True):
    items: list[MatrixRow]
    cells: list[CellView]


class EpisodeView(Reply, kw_only=True):
    """Renewals that failed, in the last day: how often, how they ended, and how they would have."""

    namespace: str
    failures: int
    """One after the other."""
    count: int
    was: str
    would: str
    changed: bool


class MatrixSimulation(Reply, kw_only=True):
    items: list[EpisodeView]
    seen: int
    changed: int
