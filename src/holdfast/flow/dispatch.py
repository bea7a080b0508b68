"""Dispatch: hand scheduled jobs to workers, once per attempt.

DISPATCHED is written before anything is published: a crash in between is found by the
reconciler, while the other order would let a redelivery publish twice.

Where the bus is in the store, state and message are one transaction, which excludes every other
scheduler by itself: no lock is taken, and a plane that dies leaves none behind. Where it is not,
publishing comes after the write, and the job's lock is held over both.

A worker whose claim waits in this very process is spared the message: its job is DISPATCHED and
RUNNING in one transaction, and handed over. To have such a claim waiting is the worker's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from holdfast.core.job import Job, JobId, amend, next_fence, step
from holdfast.core.retry import Backoff
from holdfast.core.states import Event, State
from holdfast.core.topic import Topics
from holdfast.errors import BusUnavailable, StoreUnavailable
from holdfast.flow.decide import Policy
from holdfast.flow.execute import starting
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.gate import apply_changes, is_gated, pass_gate
from holdfast.flow.gone import IsGone, evict_gone
from holdfast.locks import LockBusy, LockClass, LockError, Locks
from holdfast.locks.runtime import Runtime
from holdfast.ports import Bus, Change, Delivery, Store, Transaction
from holdfast.telemetry import Telemetry

JOB = LockClass("scheduler.job", ttl=60, renew_every=20, wait=2, risk="high")

PUBLISH_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)

OWED_MAX = 10_000
"""Jobs whose failures wait to be written down. Beyond it the oldest are forgotten; the metrics have them."""
PUT_OFF_MAX = 100_000
"""Jobs that wait for a bus which is away, as far as they are remembered. The others come round by themselves."""
HASTENED_S = 1.0
"""Over this long those come back, once the bus has: not all at once."""
HASTENED_BATCH = 500


class Dispatched(StrEnum):
    SENT = "sent"
    MOVED_ON = "moved_on"
    """Somebody else has dispatched, cancelled or finished it: nothing to do."""
    NOT_NOW = "not_now"
    """It is frozen, another scheduler has its lock, or the bus failed: it comes round again."""
    UNANSWERED = "unanswered"
    """The store did not answer, and nothing was published: better not asked again at once."""


class Placed(NamedTuple):
    job: Job
    worker: str


class Door(Protocol):
    """A place in a claim that waits. It is kept open until one of these is called."""

    def hand(self, job: Job) -> None: ...

    def shut(self, *, in_doubt: bool = False) -> None:
        """Nothing comes; or, in doubt, something may have been started that nobody will hand over."""


class Doors(Protocol):
    def open(self, worker: str) -> Door | None:
        """A place in one of the worker's claims that wait here and start what they are given; None if there is none."""


class Handover(NamedTuple):
    door: Door
    start: Change


class Sending(NamedTuple):
    change: Change
    handover: Handover | None = None

    @property
    def changes(self) -> list[Change]:
        return [self.change] if self.handover is None else [self.change, self.handover.start]


class Dispatcher:
    def __init__(
        self,
        *,
        store: Store,
        bus: Bus,
        locks: Locks,
        topics: Topics,
        policy: Policy,
        doors: Doors,
        freezes: LiveFreezes,
        telemetry: Telemetry,
        runtime: Runtime,
        is_gone: IsGone,
    ) -> None:
        self._store = store
        self._is_gone = is_gone
        self._freezes = freezes
        self._topics = topics
        self._policy = policy
        self._doors = doors
        self._bus = bus
        self._locks = locks
        self._telemetry = telemetry
        self._runtime = runtime
        self._owed: dict[JobId, dict[str, int]] = {}
        """Retries by phase that could not be written when they happened. The next write takes them along."""
        self._put_off: dict[JobId, int] = {}
        """Jobs that were rolled back here, with their versions after it."""

    async def dispatch(self, placed: Sequence[Placed]) -> list[Dispatched]:
        """Send one attempt of each SCHEDULED job to its worker. Safe to repeat: redelivery finds it gone."""
        if not self._bus.atomic:
            return list(await asyncio.gather(*(self._dispatch_locked(*one) for one in placed)))
        now = self._store.now()
        outcomes = [Dispatched.NOT_NOW if self._freezes.of(job) else Dispatched.MOVED_ON for job, _ in placed]
        waiting = [
            n
            for n, (job, _) in enumerate(placed)
            if job.state is State.SCHEDULED and outcomes[n] is Dispatched.MOVED_ON
        ]
        changes = {n: self._dispatching(*placed[n], next_fence(placed[n].job, now=now)) for n in waiting}
        gated = {n: change for n, change in changes.items() if is_gated(change.before)}
        free = {n: change for n, change in changes.items() if n not in gated} if gated else changes
        written = await self._write([self._sending(change) for change in free.values()])
        passed = await self._write_gated(list(gated.values()))
        for n, outcome in zip((*free, *gated), (*written, *passed), strict=True):
            outcomes[n] = outcome
        return outcomes

    async def hasten(self) -> bool:
        """The bus is back: what was put off because it was away waits no longer than a moment.

        A batch of them; True if there are more. Those that are forgotten on the way come round by themselves.
        """
        versions = dict(islice(self._put_off.items(), HASTENED_BATCH))
        for job_id in versions:
            del self._put_off[job_id]
        now = self._store.now()
        found = await self._store.find_jobs(list(versions))
        put_off = [job for job in found if job is not None and job.version == versions[job.id]]
        changes = [
            Change(
                before=job,
                after=amend(job, not_before=now + self._runtime.jitter(HASTENED_S)),
                kind="dispatch.hastened",
            )
            for job in put_off
            if job.not_before > now + HASTENED_S
        ]
        await apply_changes(changes, store=self._store)
        return bool(self._put_off)

    def give(self, job: Job, worker: str) -> Sending | None:
        """How a job that is about to be stored is dispatched in the very transaction that stores it; and started, where a
        claim waits for it. None if it cannot be. Whoever writes it calls `gave`."""
        if not self._bus.atomic or job.state is not State.SCHEDULED or is_gated(job):
            return None
        return self._sending(self._dispatching(job, worker, next_fence(job, now=self._store.now())))

    def gave(self, sending: Sending, *, written: bool | None) -> None:
        """Whether it was written; None: nobody knows."""
        if written:
            self._tell(sending.change)
        if sending.handover is None:
            return
        if written is None:
            sending.handover.door.shut(in_doubt=True)
        else:
            self._hand_over(sending.handover, started=written)

    def _sending(self, change: Change) -> Sending:
        """By way of a claim that waits for it, else as a delivery. What was listed without its payload is left for the
        claim to read: what a look at the queue keeps in memory must not grow with what waits there."""
        door = self._doors.open(change.after.worker) if change.before.payload else None
        if door is None:
            return Sending(change)
        # The lease begins after the door was opened: the claim counts from there.
        start = starting(change.after, self._topics, now=self._store.now())
        return Sending(replace(change, send=None), Handover(door, start))

    async def _dispatch_locked(self, job: Job, worker: str) -> Dispatched:
        if job.state is not State.SCHEDULED:
            return Dispatched.MOVED_ON
        try:
            async with self._locks.hold(JOB, job.id) as lease:
                if self._freezes.of(job):  # while the lock was waited for
                    return Dispatched.NOT_NOW
                change = self._dispatching(job, worker, max(lease.fence, job.fence + 1))
                [written] = await (self._write_gated([change]) if is_gated(job) else self._write([Sending(change)]))
                return await self._publish(change) if written is Dispatched.SENT else written
        except LockError as error:
            # Busy, unavailable or lost: whoever has the lock does it, or the next round does.
            self._telemetry.dispatch_deferred(job, reason=error.code)
            if isinstance(error, LockBusy):
                with suppress(LockError):
                    await evict_gone(error, JOB, job.id, locks=self._locks, is_gone=self._is_gone)
            return Dispatched.NOT_NOW

    def _dispatching(self, job: Job, worker: str, fence: int) -> Change:
        owed = self._owed.get(job.id)
        self._put_off.pop(job.id, None)
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

    async def _write(self, sendings: Sequence[Sending]) -> list[Dispatched]:
        """DISPATCHED, for all that have not moved on; and RUNNING, for those that are handed over."""
        if not sendings:
            return []
        try:
            written = await self._write_together(sendings)
        except BaseException as error:
            for _, handover in sendings:
                if handover is not None:
                    handover.door.shut(in_doubt=True)
            if not isinstance(error, StoreUnavailable):
                raise
            return self._unanswered([change for change, _ in sendings], error)
        for (change, handover), done in zip(sendings, written, strict=True):
            self._owed.pop(change.before.id, None)
            if done and self._bus.atomic:
                self._tell(change)
            if handover is not None:
                self._hand_over(handover, started=done)
        return [Dispatched.SENT if done else Dispatched.MOVED_ON for done in written]

    def _unanswered(self, changes: Sequence[Change], error: StoreUnavailable) -> list[Dispatched]:
        # Nothing is published. If it was written after all, the dispatch timeout brings it back.
        for change in changes:
            self._owe(change.before.id, "dispatched_write")
            self._telemetry.dispatch_retried(change.before, phase="dispatched_write", error=error)
        return [Dispatched.UNANSWERED] * len(changes)

    async def _write_gated(self, changes: Sequence[Change]) -> list[Dispatched]:
        """As `_write`, for jobs that need an approval: each is dispatched on it, or decided anew."""
        if not changes:
            return []
        try:
            passages = await pass_gate(changes, store=self._store, policy=self._policy)
            written = await self._store.transact([passage.transaction for passage in passages])
        except StoreUnavailable as error:
            return self._unanswered(changes, error)
        outcomes = []
        for change, passage, done in zip(changes, passages, written, strict=True):
            self._owed.pop(change.before.id, None)
            if passage.refused:
                if done and passage.transaction.changes:
                    self._telemetry.approval_refused(change.before, reason=passage.refused)
            elif done and self._bus.atomic:
                self._tell(change)
            outcomes.append(Dispatched.SENT if done and not passage.refused else Dispatched.MOVED_ON)
        return outcomes

    async def _write_together(self, sendings: Sequence[Sending]) -> list[bool]:
        if not any(handover for _, handover in sendings):
            return await self._store.apply([change for change, _ in sendings])
        return await self._store.transact([Transaction(changes=sending.changes) for sending in sendings])

    def _hand_over(self, handover: Handover, *, started: bool) -> None:
        if started:
            self._telemetry.job_started(handover.start.after, waited_s=0.0)
            handover.door.hand(handover.start.after)
        else:
            handover.door.shut()

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
            [written] = await apply_changes([change], store=self._store)
        except StoreUnavailable as error:
            self._owe(sent.id, "publish")
            self._owe(sent.id, "rollback_write")
            self._telemetry.rollback_failed(sent, error=error)
            return
        if written:
            self._telemetry.rolled_back(sent, error=why)
            if len(self._put_off) < PUT_OFF_MAX:
                self._put_off[back.id] = back.version

    def _tell(self, change: Change) -> None:
        ready_at = max(change.before.since, change.before.not_before)
        self._telemetry.job_dispatched(change.after, waited_s=change.after.since - ready_at)

    def _owe(self, job_id: JobId, phase: str) -> None:
        self._owed[job_id] = _added(self._owed.pop(job_id, {}), {phase: 1})
        if len(self._owed) > OWED_MAX:
            del self._owed[next(iter(self._owed))]


def _added(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {**counts, **{phase: counts.get(phase, 0) + count for phase, count in more.items()}}
