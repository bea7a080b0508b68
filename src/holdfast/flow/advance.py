"""Advance: what has happened to a run becomes its next version, in one transaction with all that follows from it.

Only under the run's lock, and only on the version that was read. The lock's fence is written into the
run: an engine whose lock was lost while it did not notice finds a higher one, and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.advance import refusal
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import RUN_TERMINAL, Run, Step, run_of
from holdfast.core.run_result import About, happening_of
from holdfast.core.run_words import Happening, TimerDue
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.flow.kept_locks import KeptLocks
from holdfast.flow.run_draft import RunDraft, Tools
from holdfast.ports import Transaction
from holdfast.telemetry import Telemetry

logger = logging.getLogger("holdfast")

REMEMBERED_MAX = 1000
REMEMBERED_INPUT_BYTES = 64 << 10
"""Of a run that is remembered; one with more is read again."""
TRIES = 5
"""A person's request is tried again this often when the run moves under it."""


class Turn(NamedTuple):
    """What one run is told at once."""

    tenant: Tenant
    run: str
    happenings: Sequence[Happening]
    consumed: Sequence[Record] = ()
    """Where it was read: taken away by the transaction that makes the run know."""


class TurnEnd(StrEnum):
    WRITTEN = "written"
    NO_NEWS = "no_news"
    """The run knew it all, and there was nothing to consume."""
    LEFT = "left"
    """It stays as it was, and so do the results it was to consume: somebody else has its lock, or it has
    moved on since it was read."""
    DEFERRED = "deferred"
    """As LEFT, but because its turn could not be worked out, or this engine's lock is an old one: better not
    asked for again at once."""


class Advanced(NamedTuple):
    before: Run
    after: Run
    steps: Mapping[str, Step | None]


class Remembered(NamedTuple):
    """A run as it was last written here. Good for as long as the lock is the same one: nobody else has it."""

    run: Run
    steps: Mapping[str, Step | None]


class StaleEngine(Conflict):
    """A run carries a higher fence than the lock under which it is to be written."""


class Advancer:
    def __init__(self, *, tools: Tools, locks: KeptLocks, telemetry: Telemetry) -> None:
        self._tools = tools
        self._store = tools.store
        self._locks = locks
        self._telemetry = telemetry
        self._remembered: dict[str, Remembered] = {}

    async def advance(self, turns: Sequence[Turn]) -> list[TurnEnd]:
        """Give each run its turn, all in one call of the store."""
        fences: dict[str, int] = {}

        async def take(run: str) -> None:
            fence = await self._locks.try_take(run)
            if fence is not None:
                fences[run] = fence

        try:
            await asyncio.gather(*(take(run) for run in dict.fromkeys(turn.run for turn in turns)))
            return await self._take_turns(turns, fences)
        finally:
            for run in fences:
                self._locks.put_back(run)

    async def _take_turns(self, turns: Sequence[Turn], fences: Mapping[str, int]) -> list[TurnEnd]:
        ends = [TurnEnd.LEFT] * len(turns)
        mine = [(n, fences[turn.run]) for n, turn in enumerate(turns) if turn.run in fences]
        drafts = await asyncio.gather(*(self._try_draft(turns[n], fence) for n, fence in mine))
        ready: list[tuple[int, Advanced | None, Transaction]] = []
        for (n, _), draft in zip(mine, drafts, strict=True):
            if draft is None:
                ends[n] = TurnEnd.DEFERRED
            elif not draft[1].records:
                ends[n] = TurnEnd.NO_NEWS
            else:
                ready.append((n, *draft))
        written = await self._store.transact([transaction for _, _, transaction in ready]) if ready else []
        for (n, advanced, _), ok in zip(ready, written, strict=True):
            self._tell(advanced, written=ok)
            if ok:
                ends[n] = TurnEnd.WRITTEN
        return ends

    async def ask(self, tenant: Tenant, run: str, wish: Happening) -> Run:
        """A person's wish, after waiting for the lock. Raises `LockBusy`, `NotFound`, and `Conflict` where the
        run is not in a state that allows it."""
        # What is no run has no lock either: its name may be anything.
        await self._store.get_record(Kind.RUN, tenant, run)
        for _ in range(TRIES):
            async with self._locks.hold(run) as fence:
                try:
                    advanced, transaction = await self._draft(Turn(tenant, run, [wish]), fence, asked=True)
                except StaleEngine:
                    await self._locks.drop(run)
                    continue
                assert advanced is not None
                [written] = await self._store.transact([transaction])
                self._tell(advanced, written=written)
                if written:
                    return advanced.after
        raise Conflict(f"run {run} keeps changing; try again")

    async def read_results(self, records: Sequence[Record]) -> list[Happening | None]:
        """What each result says; None where there is nothing left to say."""
        ids = [JobId(record.id) for record in records if record.state == About.JOB]
        jobs = dict(zip(ids, await self._store.find_jobs(ids), strict=True)) if ids else {}
        return [happening_of(record, jobs.get(JobId(record.id))) for record in records]

    async def _try_draft(self, turn: Turn, fence: int) -> tuple[Advanced | None, Transaction] | None:
        try:
            return await self._draft(turn, fence)
        except StaleEngine:
            self._telemetry.run_write_refused(turn.run, reason="stale-fence")
            await self._locks.drop(turn.run)
        except HoldfastError as error:
            # One run that cannot go on now must not keep the others; it comes round again.
            logger.warning("run.deferred %s", error, extra={"event": "run.deferred", "run": turn.run})
        except Exception:
            logger.exception("run.advance_failed", extra={"event": "run.advance_failed", "run": turn.run})
        return None

    async def _draft(self, turn: Turn, fence: int, *, asked: bool = False) -> tuple[Advanced | None, Transaction]:
        draft = RunDraft(self._tools, turn.tenant)
        draft.consume(turn.consumed)
        known = self._remembered.pop(turn.run, None)
        remembered = known is not None and not asked and known.run.fence == fence
        if known is None or not remembered:
            [record] = await self._store.find_records(Kind.RUN, turn.tenant, [turn.run])
            if record is None:
                if not turn.consumed:
                    raise NotFound(f"no run {turn.run}")
                return None, draft.transaction()  # removed by retention: nobody waits for this result
            known = Remembered(run_of(record), {})
        before = known.run
        if fence < before.fence:
            raise StaleEngine(f"run {before.id} was written under fence {before.fence}; this lock has {fence}")
        graph = await self._tools.workflows.graph(turn.tenant, before.workflow, before.revision)
        for happening in turn.happenings if asked else ():
            if why := refusal(graph, before, happening):
                raise Conflict(why)
        happenings = turn.happenings
        if before.deadline is not None and self._store.now() >= before.deadline:
            # Its time ran out first, whatever else is told: the jobs that end now had no more of it.
            happenings = [TimerDue(), *happenings]
        after = await draft.go_on(graph, before, happenings, fence=fence, known=known.steps)
        if after.version == before.version and remembered:
            # No news to a run as it is remembered. Where its lock was lost unnoticed (`continue`) it may have moved on,
            # and no version is compared where nothing of it is written: so the result is not thrown away unseen.
            return await self._draft(turn, fence, asked=asked)
        return Advanced(before, after, draft.steps_after), draft.transaction()

    def _tell(self, advanced: Advanced | None, *, written: bool) -> None:
        if advanced is None:
            return
        after = advanced.after
        if written and after.version > advanced.before.version and not after.is_terminal:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            if len(bytes(after.input)) <= REMEMBERED_INPUT_BYTES:
                self._remembered[after.id] = Remembered(after, advanced.steps)
        if not written:
            self._telemetry.run_write_refused(advanced.before.id, reason="moved-on")
        elif advanced.after.state in RUN_TERMINAL and advanced.before.state not in RUN_TERMINAL:
            self._telemetry.run_ended(advanced.after)
