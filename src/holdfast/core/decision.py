"""Decisions: what the policy says of one job, and how a job keeps it (`Job.decision`).

A job keeps the whole of it, so that whoever acts on it later (approvals, the scheduler, a person who
asks why) needs neither the policy nor its version of then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.job import Job
from holdfast.core.states import Event

DEFAULT_RULE = "default"
EXPIRES_S = 24 * 3600.0
"""How long there is to decide on an approval, and to use it, where nobody says otherwise."""


class Per(StrEnum):
    """Whose jobs are counted together by a throttle."""

    TENANT = "tenant"
    ACTOR = "actor"
    TOPIC = "topic"
    ALL = "all"


class Choice(StrEnum):
    """What a person may say on an approval."""

    APPROVE = "approve"
    REJECT = "reject"
    EDIT = "edit"
    """Yes, with these arguments instead."""
    RESPOND = "respond"
    """Yes, with this answer for the job."""


CHOICES = (Choice.APPROVE, Choice.REJECT, Choice.EDIT)
"""Where nobody says otherwise. Where an answer is asked for, RESPOND as well."""


def are_enough(approvers: Sequence[str], quorum: int, *, without: Collection[str] = ()) -> bool:
    """Whether so many of these could say yes, if those do not. Of a glob nobody knows who it stands for, nor of none at all."""
    if not approvers or any("*" in name for name in approvers):
        return True
    return len({*approvers}.difference(without)) >= quorum


class ApprovalDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Who must say yes, how many of them, until when, and what they may say."""

    approvers: list[str] = []
    """Names, or globs of names; empty: anybody."""
    quorum: int = 1
    expires_s: float = EXPIRES_S
    separate: bool = False
    """Who asked for the job may not approve it."""
    choices: tuple[Choice, ...] = CHOICES
    response_schema: dict[str, Any] | UnsetType = UNSET
    """What an answer must look like; with one, RESPOND is a choice as well."""
    effect_preview: str | UnsetType = UNSET
    """A template: what a yes would do."""


class Rate(msgspec.Struct, frozen=True):
    """`burst` jobs at once, and one more every `every_s`."""

    every_s: float
    burst: int


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that hold for all jobs with the same `key` together."""

    key: str
    rate: Rate | None = None
    concurrency: int | None = None


class Constraints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job may at most have; it gets no more than it asked for."""

    max_attempts: int | None = None
    priority_max: int | None = None
    timeout_s: float | None = None
    """Until its deadline, from its submission on."""
    labels: dict[str, str] = {}
    """Set on the job, whatever it said: `require.zone` sends it to workers of that zone."""


class Decision(NamedTuple):
    event: Event | None
    """ALLOW, REQUIRE_APPROVAL or DENY. None: nobody knows now; the job waits and is asked about again."""
    reason: str = ""
    rule: str = ""
    """The name of the rule that matched; `default` if none did."""
    version: int = 0
    """Of the policy; 0: none was ever published."""
    hash: str = ""
    """Of the policy's document."""
    approval: ApprovalDemand | None = None
    """With REQUIRE_APPROVAL."""
    throttle: Throttle | None = None
    constraints: Constraints | None = None
    failed: str = ""
    """How the policy failed to decide: open, closed; empty where it did decide."""


class Concurrency(msgspec.Struct, frozen=True):
    limit: int
    key: str


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """`Job.decision`, as a type."""

    action: str
    """allow, deny, require_approval; or wait, while the policy could not be asked."""
    rule: str
    policy: int
    hash: str
    reason: str | UnsetType = UNSET
    approval: ApprovalDemand | UnsetType = UNSET
    concurrency: Concurrency | UnsetType = UNSET
    constraints: Constraints | UnsetType = UNSET
    failed: str | UnsetType = UNSET


def recorded(decision: Decision) -> dict[str, Any] | None:
    """What `Job.decision` is to be. None where no policy was ever published: then there is nothing to tell."""
    if decision.version == 0 and not decision.failed:
        return None
    throttle = decision.throttle
    limit = None if throttle is None else throttle.concurrency
    kept = Recorded(
        action="wait" if decision.event is None else decision.event,
        rule=decision.rule,
        policy=decision.version,
        hash=decision.hash[:16],
        reason=decision.reason or UNSET,
        approval=decision.approval or UNSET,
        concurrency=UNSET if throttle is None or limit is None else Concurrency(limit, throttle.key),
        constraints=decision.constraints or UNSET,
        failed=decision.failed or UNSET,
    )
    built: dict[str, Any] = msgspec.to_builtins(kept)
    return built


def demand_of(job: Job) -> ApprovalDemand | None:
    """What approval the job's last decision asks for, if any."""
    asked = (job.decision or {}).get("approval")
    return None if asked is None else msgspec.convert(asked, ApprovalDemand)


def told(job: Job) -> dict[str, Any]:
    """The decision as an event tells it: in short."""
    kept = job.decision or {}
    return {name: kept[name] for name in ("action", "rule", "policy", "hash", "reason", "failed") if name in kept}
