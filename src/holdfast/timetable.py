"""The timetable: obeys the ticks of schedules when they come.

One replica at a time, by a window (`ttl_hold`). What it does is compare-and-set all the same: a
replica that was paused in its tick and goes on in somebody else's window fires nothing twice.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.freeze import Frozen
from holdfast.core.record import Kind, Record
from holdfast.core.schedule import Overlap, Schedule, due_ticks, schedule_from, schedule_record
from holdfast.errors import Conflict, Invalid, StoreUnavailable, TooMany
from holdfast.flow.fire import Starts, fire, last_lives
from holdfast.flow.freeze import LiveFreezes
from holdfast.flow.submit import Submitter
from holdfast.locks import LockClass, LockError, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Loop
from holdfast.ports import RecordChange, Store, Transaction
from holdfast.telemetry import Telemetry

POLL_S = 1.0
DEFER_S = 5.0
BATCH = 200
WINDOW = LockClass("timetable", ttl=2 * POLL_S, pattern="ttl_hold")


class Timetable(Loop):
    def __init__(
        self,
        *,
        store: Store,
        locks: Locks,
        submitter: Submitter,
        runs: Starts,
        freezes: LiveFreezes,
        telemetry: Telemetry,
        runtime: Runtime,
    ) -> None:
        super().__init__("timetable", every_s=POLL_S, runtime=runtime)
        self._freezes = freezes
        self._store = store
        self._locks = locks
        self._submitter = submitter
        self._runs = runs
        self._telemetry = telemetry

    async def tick(self) -> None:
        if await self._locks.claim(WINDOW, "default") is None:
            return
        frozen = await self._freezes.current()
        # Longest overdue first: those that cannot be obeyed now do not keep others waiting for long.
        for record in await self._store.list_due(Kind.SCHEDULE, limit=BATCH):
            try:
                await self._look_after(schedule_from(record), frozen)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  (it cannot be read here, or …)
                self.log_failed(record, error)
                await self._defer(replace(record, version=record.version + 1))

    async def _look_after(self, schedule: Schedule, frozen: Frozen) -> None:
        if frozen.find(schedule.tenant, "" if schedule.job is None else schedule.job.topic):
            await self._defer(schedule_record(replace(schedule, held=True)))
        else:
            await self._obey(schedule)

    async def _obey(self, schedule: Schedule) -> None:
        lives = schedule.overlap is Overlap.SKIP and await last_lives(schedule, store=self._store)
        try:
            due = due_ticks(schedule, now=self._store.now(), last_lives=lives)
            fired = await fire(schedule, due, store=self._store, submitter=self._submitter, runs=self._runs)
        except (Invalid, TooMany, Conflict, LockError) as error:
            # Its next tick is in the past by now: whoever looks at it is to see why.
            await self._defer(schedule_record(replace(schedule, last_error=f"{error.code}: {error}")))
            return
        if fired is not None:
            self._telemetry.schedule_ticked("failed" if fired.error else "fired" if due.ticks else "skipped")

    async def _defer(self, schedule: Record) -> None:
        """It is frozen, its tenant is full, or something of it is busy or broken. The ticks stay, and by and by they are
        missed ones; but it stands behind the others."""
        later = replace(schedule, due=self._store.now() + DEFER_S)
        await self._store.transact([Transaction(records=[RecordChange(after=later, replaces=later.version - 1)])])
        self._telemetry.schedule_ticked("deferred")
