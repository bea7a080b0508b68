"""Dispatch: hand scheduled jobs to workers, once per attempt.

DISPATCHED is written before anything is published: a crash in between is found by the
reconciler, while the other order would let a redelivery publish twice.

Where the bus is in the store, state and message are one transaction, which excludes every other
scheduler by itself: no lock is taken, and a plane that dies leaves none behind. Where it is not,
publishing comes after the write, and the job's lock is held over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.job import Job, JobId, next_fence, step
from holdfast.core.retry import Backoff
from holdfast.core.states import Event, State
from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.locks import LockClass, LockError, Locks
from holdfast.locks.runtime import Runtime
from holdfast.ports import Bus, Change, Delivery, Store
from holdfast.telemetry import Telemetry

JOB = LockClass("scheduler.job", ttl=60, renew_every=20, wait=2, risk="high")

PUBLISH_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)

OWED_MAX = 10_000
"""Jobs whose failures wait to be written down. Beyond it the oldest are forgotten; the metrics have them."""


class Dispatched(StrEnum):
    SENT = "sent"
    MOVED_ON = "moved_on"
    """Somebody else has dispatched, cancelled or finished it: nothing to do."""
    NOT_NOW = "not_now"
    """Another scheduler has its lock, or the bus failed: it comes round again."""
    UNANSWERED = "unanswered"
    """The store did not answer, and nothing was published: better not asked again at once."""


class Placed(NamedTuple):
    job: Job
    worker: str


class Dispatcher:
    def __init__(self, *, store: Store, bus: Bus, locks: Locks, telemetry: Telemetry, runtime: Runtime) -> None:
        self._store = store
        self._bus = bus
        self._locks = locks
        self._telemetry = telemetry
        self._runtime = runtime
        self._owed: dict[JobId, dict[str, int]] = {}
        """Retries by phase that could not be written when they happened. The next write takes them along."""

    async def dispatch(self, placed: Sequence[Placed]) -> list[Dispatched]:
        """Send one attempt of each SCHEDULED job to its worker. Safe to repeat: redelivery finds it gone."""
        if not self._bus.atomic:
            return list(await asyncio.gather(*(self._dispatch_locked(*one) for one in placed)))
        now = self._store.now()
        outcomes = [Dispatched.MOVED_ON] * len(placed)
        waiting = [n for n, (job, _) in enumerate(placed) if job.state is State.SCHEDULED]
        changes = [self._dispatching(*placed[n], next_fence(placed[n].job, now=now)) for n in waiting]
        for n, outcome in zip(waiting, await self._write(changes), strict=True):
            outcomes[n] = outcome
        return outcomes

    async def _dispatch_locked(self, job: Job, worker: str) -> Dispatched:
        if job.state is not State.SCHEDULED:
            return Dispatched.MOVED_ON
        try:
            async with self._locks.hold(JOB, job.id) as lease:
                change = self._dispatching(job, worker, max(lease.fence, job.fence + 1))
                [written] = await self._write([change])
                return await self._publish(change) if written is Dispatched.SENT else written
        except LockError as error:
            # Busy, unavailable or lost: whoever has the lock does it, or the next round does.
            self._telemetry.dispatch_deferred(job, reason=error.code)
            return Dispatched.NOT_NOW

    def _dispatching(self, job: Job, worker: str, fence: int) -> Change:
        owed = self._owed.get(job.id)
        sent = step(
            job,
            Event.DISPATCH,
            now=self._store.now(),
            fence=fence,
            worker=worker,
            schedulings=job.schedulings + 1,
            retries=_added(job.retries, owed) if owed else job.retries,
            lease_until=0.0,
        )
        return Change(
            before=job,
            after=sent,
            kind="job.dispatched",
            detail={"worker": worker, "retried": owed} if owed else {"worker": worker},
            send=Delivery(worker, job.id, fence) if self._bus.atomic else None,
        )

    async def _write(self, changes: Sequence[Change]) -> list[Dispatched]:
        """DISPATCHED, for all that have not moved on."""
        if not changes:
            return []
        try:
            written = await self._store.apply(changes)
        except StoreUnavailable as error:
            # Nothing is published. If it was written after all, the dispatch timeout brings it back.
            for change in changes:
                self._owe(change.before.id, "dispatched_write")
                self._telemetry.dispatch_retried(change.before, phase="dispatched_write", error=error)
            return [Dispatched.UNANSWERED] * len(changes)
        for change, done in zip(changes, written, strict=True):
            self._owed.pop(change.before.id, None)
            if done and self._bus.atomic:
                self._tell(change)
        return [Dispatched.SENT if done else Dispatched.MOVED_ON for done in written]

    async def _publish(self, change: Change) -> Dispatched:
        sent = change.after
        try:
            await self._bus.publish([Delivery(sent.worker, sent.id, sent.fence)])
        except BusUnavailable as error:
            await self._roll_back(sent, error)
            return Dispatched.NOT_NOW
        self._tell(change)
        return Dispatched.SENT

    async def _roll_back(self, sent: Job, why: BusUnavailable) -> None:
        """Back to SCHEDULED, but only from the very version this dispatch wrote: if the publish got
        through after all and a worker has started it, the job has moved on and stays so."""
        retries = _added(sent.retries, {"publish": 1})
        now = self._store.now()
        back = step(
            sent,
            Event.ROLL_BACK,
            now=now,
            worker="",
            retries=retries,
            not_before=now + PUBLISH_BACKOFF.delay(retries["publish"], 2 * self._runtime.jitter(1.0) - 1.0),
            # The fence stays: a delivery that did get through carries it, and a lower one never comes again.
            schedulings=sent.schedulings + 1,
        )
        detail = {"phase": "publish", "error": why.code}
        change = Change(before=sent, after=back, kind="dispatch.rolled_back", detail=detail)
        try:
            [written] = await self._store.apply([change])
        except StoreUnavailable as error:
            self._owe(sent.id, "publish")
            self._owe(sent.id, "rollback_write")
            self._telemetry.rollback_failed(sent, error=error)
            return
        if written:
            self._telemetry.rolled_back(sent)

    def _tell(self, change: Change) -> None:
        ready_at = max(change.before.since, change.before.not_before)
        self._telemetry.job_dispatched(change.after, waited_s=change.after.since - ready_at)

    def _owe(self, job_id: JobId, phase: str) -> None:
        self._owed[job_id] = _added(self._owed.pop(job_id, {}), {phase: 1})
        if len(self._owed) > OWED_MAX:
            del self._owed[next(iter(self._owed))]


def _added(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {**counts, **{phase: counts.get(phase, 0) + count for phase, count in more.items()}}
