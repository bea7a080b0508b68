"""The policy: its versions, and what a draft would change."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import NOT_BLANK, Reply, Request

Reason = Annotated[str, Meta(pattern=NOT_BLANK, max_length=500)]
"""Why; kept in the history, for the next person to read."""


class PolicyInUse(Reply, kw_only=True):
    """What the plane that answers decides by. Once every plane says the same version, all have converged."""

    version: int
    """0: none was ever published, and everything is allowed."""
    hash: str
    since: float | None
    """When this plane began to use it; null: it could not read one yet, and jobs wait."""


class PolicyView(Reply, kw_only=True):
    """`GET /v1/policy`: what is active, by the store, and what this plane uses."""

    version: int
    hash: str
    newest: int
    """The highest version there is."""
    since: float | None
    by: str
    reason: str
    document: Any
    """Null: none was ever published."""
    here: PolicyInUse


class PolicyVersionView(Reply, kw_only=True):
    version: int
    hash: str
    published_at: float
    by: str
    reason: str
    file: str
    """The file that a plane published it from at its start; empty if it came otherwise."""
    rules: int
    active: bool
    document: Any = None
    """Only where one version is asked for."""


class PolicyVersionPage(Reply, kw_only=True):
    items: list[PolicyVersionView]
    next_cursor: str | None


class PublishPolicy(Request, kw_only=True):
    """`POST /v1/policy:publish`. With If-Match, only if that version is the active one."""

    document: Any
    reason: Reason


class RollBackPolicy(Request, kw_only=True):
    """`POST /v1/policy:rollback`. With If-Match, only if that version is the active one."""

    version: Annotated[int, Meta(ge=1, le=10**9)]
    reason: Reason


class SimulatePolicy(Request, kw_only=True):
    """`POST /v1/policy:simulate`: ask a draft about the tenant's newest jobs. Changes nothing."""

    document: Any
    jobs: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class ChangedDecision(Reply, kw_only=True):
    """A job that the draft would decide otherwise."""

    job_id: str
    topic: str
    before: str
    """allow, deny, require_approval; wait, if the policy could not be asked."""
    rule_before: str
    after: str
    rule_after: str
    reason: str


class Simulation(Reply, kw_only=True):
    jobs: int
    """That were looked at."""
    before: dict[str, int]
    """How many of them, by action."""
    after: dict[str, int]
    by_rule: dict[str, int]
    """How many jobs each rule of the draft would decide."""
    failed: int
    """Jobs that the draft could not be evaluated for."""
    changed: int
    examples: list[ChangedDecision]
    """The newest of those that change."""
