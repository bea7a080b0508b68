"""Effects: what a job does to the world outside, once. prepared → committed, or *unknown*."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from holdfast.core.job import JobId, Tenant
from holdfast.core.states import EffectState, Risk


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    job_id: JobId
    key: str
    state: EffectState
    fence: int
    """Of the attempt that prepared it last."""
    attempt: int
    idempotency_key: str
    """The same for every attempt: what the other side may use to recognise a repetition."""
    result: bytes | None
    prepared_at: float
    settled_at: float | None
    note: str = ""
    """Who resolved it, and why."""


UNSETTLED = (EffectState.PREPARED, EffectState.UNKNOWN)
"""The states of an effect of which nobody knows, or not yet, whether it happened."""

EffectPlace = tuple[float, JobId, str]
"""Where an effect stands in a list: when it was prepared, of which job, and its key."""


def place_of(effect: Effect) -> EffectPlace:
    return effect.prepared_at, effect.job_id, effect.key


def idempotency_key(tenant: Tenant, job_id: JobId, key: str) -> str:
    """Stable over attempts and replays of a message, different for everything else."""
    material = f"{tenant}\0{job_id}\0{key}".encode()
    return hashlib.sha256(material).hexdigest()[:40]


class Ruling(StrEnum):
    RUN = "run"
    """Go ahead, with the idempotency key."""
    REMEMBERED = "remembered"
    """It happened in an earlier attempt: here is its result."""
    BLOCKED = "blocked"
    """An earlier attempt may have done it. A person decides."""


def rule_on_repeat(effect: Effect, *, fence: int, risk: Risk, idempotent: bool) -> Ruling:
    """May an attempt with this fence perform an effect that is already in the ledger?

    `idempotent` is the caller's word that the other side honours the idempotency key. Low risk
    may be repeated; a high one never without a person, whatever the caller says.
    """
    if effect.state is EffectState.COMMITTED:
        return Ruling.REMEMBERED
    if effect.state is EffectState.ABSENT or (effect.state is EffectState.PREPARED and effect.fence == fence):
        return Ruling.RUN
    return Ruling.RUN if may_repeat(risk, idempotent=idempotent) else Ruling.BLOCKED


def may_repeat(risk: Risk, *, idempotent: bool) -> bool:
    """May an effect be performed that was begun before, while nobody knows whether it happened?"""
    return risk is Risk.LOW or (risk is Risk.MEDIUM and idempotent)
