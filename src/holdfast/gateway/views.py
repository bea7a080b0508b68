"""The plane's own values as what travels over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import api
from holdfast.api.freezes import FreezeView
from holdfast.core.effect import Effect
from holdfast.core.freeze import Freeze
from holdfast.core.job import Job
from holdfast.core.topic import Topics
from holdfast.flow.execute import Standing
from holdfast.gateway.pages import to_cursor
from holdfast.locks import Locks, UndeclaredClass
from holdfast.locks.port import Holder
from holdfast.ports import DeadLetter, JobEvent


def weight_of(job: Job) -> int:
    """In bytes, near enough."""
    return len(job.payload) + len(job.result or b"")


def job_view(job: Job) -> api.JobView:
    return api.JobView(
        id=job.id,
        topic=job.topic,
        state=job.state,
        payload=msgspec.Raw(job.payload),
        labels=job.labels,
        priority=job.priority,
        risk=job.risk,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        schedulings=job.schedulings,
        retries=job.retries,
        worker=job.worker,
        fence=job.fence,
        created_at=job.created_at,
        since=job.since,
        not_before=job.not_before,
        deadline=job.deadline,
        lease_until=job.lease_until or None,
        cancel_requested=job.cancel_requested,
        progress=job.progress,
        result=api.json_value(job.result),
        error=job.error,
        replay_of=job.replay_of,
        version=job.version,
        actor=job.actor,
        session=job.session,
        run=job.run,
        step=job.step,
        decision=job.decision,
        approval=job.approval,
    )


def event_view(event: JobEvent) -> api.EventView:
    return api.EventView(
        number=event.number,
        job_id=event.job_id,
        run=event.run,
        kind=event.kind,
        state=event.state,
        attempt=event.attempt,
        fence=event.fence,
        at=event.at,
        detail=event.detail,
    )


def event_page(events: Sequence[JobEvent], last: int | None) -> api.EventPage:
    """`last` is where it ends, if there are more."""
    more = None if last is None else to_cursor(last)
    return api.EventPage(items=[event_view(event) for event in events], next_cursor=more)


def delivery_view(job: Job, topics: Topics, *, started: bool) -> api.DeliveryView:
    topic = topics.get(job.topic)
    return api.DeliveryView(
        job_id=job.id,
        fence=job.fence,
        topic=job.topic,
        payload=msgspec.Raw(job.payload),
        attempt=job.attempts if started else job.attempts + 1,
        max_attempts=job.max_attempts,
        lease_s=topic.lease_s,
        running_timeout_s=topic.running_timeout_s,
        labels=job.labels,
        risk=job.risk,
        trace=job.trace,
        decision=job.decision,
    )


def standing_view(standing: Standing) -> api.AttemptStanding:
    return api.AttemptStanding(
        job_id=standing.job_id,
        status=standing.code,
        cancel=standing.job is not None and standing.job.cancel_requested,
        current_fence=standing.current_fence,
    )


def effect_view(effect: Effect) -> api.EffectView:
    return api.EffectView(
        job_id=effect.job_id,
        key=effect.key,
        state=effect.state,
        fence=effect.fence,
        attempt=effect.attempt,
        idempotency_key=effect.idempotency_key,
        result=api.json_value(effect.result),
        prepared_at=effect.prepared_at,
        settled_at=effect.settled_at,
        note=effect.note,
    )


def dead_letter_view(letter: DeadLetter, events: list[JobEvent]) -> api.DeadLetterView:
    return api.DeadLetterView(
        number=letter.number,
        job_id=letter.job_id,
        topic=letter.topic,
        reason=letter.reason,
        at=letter.at,
        job=job_view(letter.job),
        events=[event_view(event) for event in events],
        replayed_as=letter.replayed_as,
    )


def class_of(key: str, locks: Locks) -> str:
    """The name of the lock class that declares the key; empty if none does."""
    try:
        return locks.named(key)[0].name
    except UndeclaredClass:
        return ""


def freeze_view(found: Freeze) -> FreezeView:
    return FreezeView(scope=found.scope, reason=found.reason, by=found.by, since=found.since, until=found.until)


def lock_view(holder: Holder, locks: Locks) -> api.LockView:
    return api.LockView(
        key=holder.key,
        lock_class=class_of(holder.key, locks),
        fence=holder.fence,
        holder=holder.holder,
        token_digest=holder.token_digest,
        remaining_s=holder.remaining_ms / 1000,
        waiters=holder.waiters,
    )
