"""The workflow engine: tells runs what has happened. Any number of replicas may run.

What happens to a run is in the store before anybody tells it: the end of a job, a decision, a timer
that is due. An engine finds it there, so a wake-up that is lost costs a moment and no result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import RUN_TERMINAL, RunState
from holdfast.core.run_result import About, size_of
from holdfast.core.run_words import Happening, TimerDue
from holdfast.core.states import TERMINAL
from holdfast.errors import StoreUnavailable
from holdfast.flow.advance import Advancer, Turn, TurnEnd, Unreadable
from holdfast.flow.kept_locks import KeptLocks
from holdfast.flow.recover_runs import Missed, find_missed, tell_missed
from holdfast.flow.stop_jobs import stop_jobs
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import Runtime
from holdfast.loops import Listener, Loop, Overdue
from holdfast.ports import JobEvent, Store
from holdfast.telemetry import Telemetry

POLL_S = 0.25
"""The floor under the wake-ups: a timer that is due, or a result whose wake-up was lost, waits this long."""
LOOK_MAX = 1000
LOOK_BYTES_MAX = 8 << 20
"""Of what is told at one look, more or less: a thousand results may be a gigabyte."""
READ_MAX = 50
"""Jobs that are read together. Each may have a megabyte of payload and one of result."""
BUSY_S = 0.1
"""A run whose lock somebody else has is left alone for so long: he takes what there is, mostly."""
DEFERRED_S = 1.0
"""The same for a run that could not be advanced: whatever is wrong with it, or with the store, may stay so."""
AGAIN_S_MIN = 0.001
"""Between two looks of its own accord. What is left of a wait may be less than the clock of the loop can add to itself: it
would look again and again, and the time would not come."""
PASSED_OVER_MAX = 10 * LOOK_MAX
WORDS_TO_RUNS = frozenset(
    {"approval.decided", "approval.expired"}
    | {f"run.{state}" for state in (*RUN_TERMINAL, RunState.CANCELLING, RunState.COMPENSATING)}
)
"""Events beside the ends of jobs with which somebody may have left a word for a run."""
RECONCILE_S = 1.0
BATCH = 200
ROUNDS = 10
"""Batches of one tick: what is left is there at the next one."""
WINDOW = LockClass(
    "workflow.reconciler", ttl=2 * RECONCILE_S, pattern="ttl_hold", key_prefix="workflow-engine:reconciler:"
)

_ALONE_S = {TurnEnd.LEFT: BUSY_S, TurnEnd.DEFERRED: DEFERRED_S}


class WorkflowEngine(Listener):
    def __init__(self, *, store: Store, advancer: Advancer, locks: Sequence[KeptLocks], runtime: Runtime) -> None:
        """`locks` are given back when it stops."""
        super().__init__("workflow-engine", store=store, every_s=POLL_S, runtime=runtime)
        self._advancer = advancer
        self._locks = locks
        self._now = runtime.now
        self._busy_until: dict[str, float] = {}
        """Runs that are left alone, and for how long."""
        self._passed_over: dict[Kind, int] = {}
        """How much of what is due is theirs. The next look goes so much further, else it would hide the rest."""
        self._due = {kind: Overdue(kind, store=store, runtime=runtime) for kind in (Kind.RESULT, Kind.STEP)}
        self._again: asyncio.TimerHandle | None = None
        self._timers_at = 0.0

    async def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
        await super().stop()
        for locks in self._locks:
            await locks.close()

    async def tick(self) -> None:
        """Tell runs what there is to tell them."""
        while True:
            turns, is_all = await self._look()
            ends = await self._advancer.advance(turns) if turns else []
            now = self._now()
            for turn, end in zip(turns, ends, strict=True):
                if end in _ALONE_S:
                    self._busy_until[turn.run] = now + _ALONE_S[end]
            if is_all or TurnEnd.WRITTEN not in ends:
                break
        if self._busy_until and self._again is None:
            wait_s = max(AGAIN_S_MIN, min(self._busy_until.values()) - self._now())
            self._again = asyncio.get_running_loop().call_later(wait_s, self._look_again)

    async def _look(self) -> tuple[list[Turn], bool]:
        """What has happened to whom, by run: several things at once are one turn. True if that is all."""
        now = self._now()
        self._busy_until = {run: until for run, until in self._busy_until.items() if until > now}
        found, is_all = await self._list_due(Kind.RESULT)
        for wish in (record for record in found if record.state == About.STOP):
            await self._stop_jobs(wish)
        results = [record for record in found if record.state != About.STOP]
        told: dict[tuple[Tenant, str], tuple[list[Happening], list[Record]]] = {}
        size = 0
        for chunk in (results[n : n + READ_MAX] for n in range(0, len(results), READ_MAX)):
            if size > LOOK_BYTES_MAX:
                is_all = False  # the others are there at the next look
                break
            for record, happening in zip(chunk, await self._advancer.read_results(chunk), strict=True):
                if isinstance(happening, Unreadable):
                    # It stays where it is: whoever can read it, or a person, may still need it.
                    self._leave(record, happening.why)
                    continue
                happenings, consumed = told.setdefault((record.tenant, record.parent), ([], []))
                consumed.append(record)
                if happening is not None:
                    happenings.append(happening)
                    size += size_of(happening)
        if now >= self._timers_at:
            timers, are_all = await self._list_due(Kind.STEP)
            # Results wake it up all the time; timers need no more than their poll.
            self._timers_at = now + (POLL_S / 2 if are_all else 0.0)
            is_all = is_all and are_all
            for record in timers:
                step = record.id.partition("/")[2]
                told.setdefault((record.tenant, record.parent), ([], []))[0].append(TimerDue(step))
        return [Turn(tenant, run, *heard) for (tenant, run), heard in told.items()], is_all

    async def _list_due(self, kind: Kind) -> tuple[list[Record], bool]:
        """What is due of runs that are not left alone now. True if that is all."""
        limit = LOOK_MAX + self._passed_over.get(kind, 0)
        found = await self._due[kind].list(limit=limit)
        due = [record for record in found if record.parent not in self._busy_until]
        self._passed_over[kind] = min(len(found) - len(due), PASSED_OVER_MAX)
        return due, len(found) < limit

    async def _stop_jobs(self, wish: Record) -> None:
        try:
            await stop_jobs([wish], store=self._store)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  (it cannot be read here, say: others want their results)
            self._leave(wish, error)

    def _leave(self, record: Record, error: Exception) -> None:
        self.log_failed(record, error)
        self._due[record.kind].leave(record)

    def _look_again(self) -> None:
        self._again = None
        self.wake()

    def heard(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if not event.run:
                continue
            ends = event.state in TERMINAL and not self._advancer.has_told(event.job_id)
            if ends or event.kind in WORDS_TO_RUNS:
                self.wake()
                return


class RunReconciler(Loop):
    """Looks at runs whose time has come: at their deadline, and when nothing was heard of them for long.

    One replica at a time; what it does is compare-and-set all the same.
    """

    def __init__(
        self, *, store: Store, advancer: Advancer, locks: Locks, telemetry: Telemetry, runtime: Runtime
    ) -> None:
        super().__init__("run-reconciler", every_s=RECONCILE_S, runtime=runtime)
        self._store = store
        self._advancer = advancer
        self._locks = locks
        self._telemetry = telemetry
        self._overdue = Overdue(Kind.RUN, store=store, runtime=runtime)

    async def tick(self) -> None:
        if await self._locks.claim(WINDOW, "default") is None:
            return
        for _ in range(ROUNDS):
            overdue = await self._overdue.list(limit=BATCH)
            found = [(record, await self._try_look(record)) for record in overdue]
            missed = [(record, one) for record, one in found if one is not None]
            ends = await tell_missed([one for _, one in missed], advancer=self._advancer, telemetry=self._telemetry)
            for (record, _), end in zip(missed, ends, strict=True):
                if end in _ALONE_S:
                    self._overdue.leave(record, _ALONE_S[end])
            if len(overdue) < BATCH:
                return

    async def _try_look(self, record: Record) -> Missed | None:
        try:
            return await find_missed(record, store=self._store)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  (it cannot be read here, say: the others have their deadlines as well)
            self.log_failed(record, error)
            self._overdue.leave(record)
            return None
