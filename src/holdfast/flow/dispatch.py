"""Dispatch: hand a scheduled job to a worker, once per attempt.

DISPATCHED is written before anything is published: a crash in between is found by the
reconciler, while the other order would let a redelivery publish twice.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job import Event, Job, State, step
from holdfast.core.retry import Backoff
from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.locks import LockClass, LockError, Locks
from holdfast.locks.runtime import Runtime
from holdfast.ports import Bus, Change, Delivery, Store
from holdfast.telemetry import Telemetry

JOB = LockClass("scheduler.job", ttl=60, renew_every=20, wait=2, risk="high")

PUBLISH_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)


class Dispatched(StrEnum):
    SENT = "sent"
    MOVED_ON = "moved_on"
    """Somebody else has dispatched, cancelled or finished it: nothing to do."""
    NOT_NOW = "not_now"
    """Another scheduler has its lock, or the store or bus failed: it comes round again."""


async def dispatch(
    job: Job, worker: str, *, store: Store, bus: Bus, locks: Locks, telemetry: Telemetry, runtime: Runtime
) -> Dispatched:
    """Send one attempt of a SCHEDULED job to a worker. Safe to repeat: redelivery finds it gone."""
    if job.state is not State.SCHEDULED:
        return Dispatched.MOVED_ON
    try:
        async with locks.hold(JOB, job.id) as lease:
            return await _send(job, worker, lease.fence, store=store, bus=bus, telemetry=telemetry, runtime=runtime)
    except LockError as error:
        # Busy, unavailable or lost: whoever has the lock does it, or the next round does.
        telemetry.dispatch_deferred(job, reason=error.code)
        return Dispatched.NOT_NOW


async def _send(
    job: Job, worker: str, fence: int, *, store: Store, bus: Bus, telemetry: Telemetry, runtime: Runtime
) -> Dispatched:
    delivery = Delivery(worker, job.id, fence)
    sent = step(
        job,
        Event.DISPATCH,
        now=store.now(),
        fence=fence,
        worker=worker,
        schedulings=job.schedulings + 1,
        lease_until=0.0,
    )
    change = Change(
        before=job, after=sent, kind="job.dispatched", detail={"worker": worker}, send=delivery if bus.atomic else None
    )
    try:
        [written] = await store.apply([change])
    except StoreUnavailable as error:
        # Nothing is published. If it was written after all, the dispatch timeout brings it back.
        telemetry.dispatch_retried(job, phase="dispatched_write", error=error)
        return Dispatched.NOT_NOW
    if not written:
        return Dispatched.MOVED_ON
    if not bus.atomic:
        try:
            await bus.publish([delivery])
        except BusUnavailable as error:
            await _roll_back(sent, error, store=store, telemetry=telemetry, runtime=runtime)
            return Dispatched.NOT_NOW
    telemetry.job_dispatched(sent, waited_s=sent.since - max(job.since, job.not_before))
    return Dispatched.SENT


async def _roll_back(sent: Job, why: BusUnavailable, *, store: Store, telemetry: Telemetry, runtime: Runtime) -> None:
    """Back to SCHEDULED, but only from the very version this dispatch wrote: if the publish got
    through after all and a worker has started it, the job has moved on and stays so."""
    failures = sent.retries.get("publish", 0) + 1
    now = store.now()
    back = step(
        sent,
        Event.ROLL_BACK,
        now=now,
        worker="",
        retries={**sent.retries, "publish": failures},
        not_before=now + PUBLISH_BACKOFF.delay(failures, 2 * runtime.jitter(1.0) - 1.0),
        # The fence stays: a delivery that did get through carries it, and a lower one never comes again.
        schedulings=sent.schedulings + 1,
    )
    change = Change(
        before=sent, after=back, kind="dispatch.rolled_back", detail={"phase": "publish", "error": why.code}
    )
    try:
        [written] = await store.apply([change])
    except StoreUnavailable as error:
        telemetry.rollback_failed(sent, error=error)
        return
    if written:
        telemetry.rolled_back(sent)
