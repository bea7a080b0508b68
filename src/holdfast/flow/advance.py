"""Advance: what has happened to a run becomes its next version, in one transaction with all that follows from it.

Only under the run's lock, and only on the version that was read. The lock's fence is written into the
run: an engine whose lock was lost while it did not notice finds a higher one, and writes nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.advance import refusal
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import RUN_TERMINAL, Run, Step, run_of
from holdfast.core.run_result import About, happening_of, job_ended
from holdfast.core.run_words import Happening, TimerDue
from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound
from holdfast.flow.audit import Entry
from holdfast.flow.kept_locks import KeptLocks
from holdfast.flow.run_draft import RunDraft
from holdfast.flow.run_tools import Tools
from holdfast.ports import Change, RecordChange, Transaction
from holdfast.telemetry import Telemetry

logger = logging.getLogger("holdfast")

REMEMBERED_MAX = 1000
REMEMBERED_INPUT_BYTES = 64 << 10
"""Of a run that is remembered; one with more is read again."""
ENDS_MAX = 16
"""Jobs of one run that are ended in one transaction with it."""
TOLD_MAX = 1000
TRIES = 5
"""A person's request is tried again this often when the run moves under it."""


class Turn(NamedTuple):
    """What one run is told at once."""

    tenant: Tenant
    run: str
    happenings: Sequence[Happening]
    consumed: Sequence[Record] = ()
    """Where it was read: taken away by the transaction that makes the run know."""
    ends: Sequence[Change] = ()
    """Jobs of the run whose ends are among the happenings, and are not written yet: they are by that transaction."""


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


class NoNews(Conflict):
    """A run that was told of the end of a job has nothing to write: the job is ended as if it had none."""


class StaleEngine(Conflict):
    """A run carries a higher fence than the lock under which it is to be written."""


class Unreadable(NamedTuple):
    """A result that nobody here can make out, as one of something newer."""

    why: Exception


class Advancer:
    def __init__(self, *, tools: Tools, locks: KeptLocks, telemetry: Telemetry) -> None:
        self._tools = tools
        self._store = tools.store
        self._locks = locks
        self._telemetry = telemetry
        self._remembered: dict[str, Remembered] = {}
        self._told: dict[str, None] = {}
        """Jobs whose ends were written here together with what their runs made of them."""

    async def advance(self, turns: Sequence[Turn]) -> list[TurnEnd]:
        """Give each run its turn, all in one call of the store."""
        fences: dict[str, int] = {}

        async def take(run: str) -> None:
            fence = await self._locks.try_take(run)
            if fence is not None:
                fences[run] = fence

        try:
            runs = dict.fromkeys(turn.run for turn in turns)
            # All of them end before one that failed is told of: what was taken later would not be put back.
            taken = await asyncio.gather(*map(take, runs), return_exceptions=True)
            for failure in taken:
                if failure is not None:
                    raise failure
            return await self._take_turns(turns, fences)
        finally:
            for run in fences:
                self._locks.put_back(run)

    async def expect(self, runs: Sequence[str]) -> None:
        """Runs begin here, and may hear of something at once: have their locks at hand."""
        if self._tools.giver is not None:
            await asyncio.gather(*map(self._locks.keep, runs))

    async def end_jobs(self, ends: Sequence[Change]) -> list[bool]:
        """Write the ends of jobs, each together with what its run makes of it: one commit instead of two. One answer
        each; False: nothing was written of it, and the job is to be ended by itself.

        Only where the run's lock is at hand: whoever waits for the answer does not wait for a lock, too.
        """
        by_run: dict[tuple[Tenant, str], list[int]] = {}
        for n, change in enumerate(ends):
            if change.after.run and change.after.is_terminal:
                by_run.setdefault((change.after.tenant, change.after.run), []).append(n)
        answers = [False] * len(ends)
        fences: dict[str, int] = {}
        turns: list[tuple[Turn, list[int]]] = []
        try:
            for (tenant, run), places in by_run.items():
                # All of them would have to be at the version that was read: many would fail one another.
                fence = await self._locks.take_kept(run) if len(places) <= ENDS_MAX else None
                if fence is not None:
                    fences[run] = fence
                    ended = [ends[n] for n in places]
                    # Before it is written: whoever listens to the store is told of it as soon as it is.
                    self._tell_of(ended)
                    told = [job_ended(change.after) for change in ended]
                    turns.append((Turn(tenant, run, told, ends=ended), places))
            written = await self._take_turns([turn for turn, _ in turns], fences)
        finally:
            for run in fences:
                self._locks.put_back(run)
        for (_, places), end in zip(turns, written, strict=True):
            for n in places:
                answers[n] = end is TurnEnd.WRITTEN
                if not answers[n]:
                    self._told.pop(ends[n].after.id, None)
        return answers

    def has_told(self, job_id: str) -> bool:
        """Whether the run of the job has heard of its end by `end_jobs`: there is no result of it to look for."""
        return job_id in self._told

    async def _take_turns(self, turns: Sequence[Turn], fences: Mapping[str, int]) -> list[TurnEnd]:
        ends = [TurnEnd.LEFT] * len(turns)
        mine = [(n, fences[turn.run]) for n, turn in enumerate(turns) if turn.run in fences]
        drafting = [self._try_draft(turns[n], fence) for n, fence in mine]
        # A task for the only one would be another turn of the loop, and somebody waits for the end of a step.
        drafts = [await drafting[0]] if len(drafting) == 1 else await asyncio.gather(*drafting)
        ready: list[tuple[int, Advanced | None, Transaction]] = []
        for (n, _), draft in zip(mine, drafts, strict=True):
            if draft is None:
                ends[n] = TurnEnd.DEFERRED
            elif not draft[1].records:
                ends[n] = TurnEnd.NO_NEWS
            else:
                ready.append((n, *draft))
        written = await self._write_turns([transaction for _, _, transaction in ready])
        for (n, advanced, _), ok in zip(ready, written, strict=True):
            if ok is None:
                ends[n] = TurnEnd.DEFERRED
                self._warn(turns[n].run, "this cannot be stored")
                continue
            self._tell(advanced, written=ok)
            if ok:
                ends[n] = TurnEnd.WRITTEN
        return ends

    async def _write_turns(self, transactions: Sequence[Transaction]) -> Sequence[bool | None]:
        """None: it has something in it that no store can keep."""
        if not transactions:
            return []
        try:
            return await self._tools.transact(transactions)
        except Invalid:
            if len(transactions) == 1:
                await self._tools.withdraw(transactions)
                return [None]
        # Nothing was written. They are of different runs, and perhaps tenants: none is to suffer for another.
        return [ok for one in transactions for ok in await self._write_turns([one])]

    async def ask(self, tenant: Tenant, run: str, wish: Happening, *, entry: Entry | None = None) -> Run:
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
                # What the run knows already changes nothing, and leaves no line.
                changed = advanced.after.version > advanced.before.version
                written = await self._write(transaction, entry if changed else None)
                self._tell(advanced, written=written)
                if written:
                    return advanced.after
        raise Conflict(f"run {run} keeps changing; try again")

    async def _write(self, transaction: Transaction, entry: Entry | None) -> bool:
        async def write(audited: Sequence[RecordChange] = ()) -> bool:
            [written] = await self._tools.attempt([replace(transaction, records=[*transaction.records, *audited])])
            return written

        written = await (write() if entry is None else entry.add(write))
        if not written:
            await self._tools.withdraw([transaction])
        return written

    async def read_results(self, records: Sequence[Record]) -> list[Happening | Unreadable | None]:
        """What each result says; None where there is nothing left to say."""
        ids = [JobId(record.id) for record in records if record.state == About.JOB]
        jobs = dict(zip(ids, await self._store.find_jobs(ids), strict=True)) if ids else {}
        return [_try_read(record, jobs.get(JobId(record.id))) for record in records]

    async def _try_draft(self, turn: Turn, fence: int) -> tuple[Advanced | None, Transaction] | None:
        try:
            return await self._draft(turn, fence)
        except StaleEngine:
            self._telemetry.run_write_refused(turn.run, reason="stale-fence")
            await self._locks.drop(turn.run)
        except NoNews:
            pass
        except HoldfastError as error:
            # One run that cannot go on now must not keep the others; it comes round again.
            self._warn(turn.run, str(error))
        except Exception:
            logger.exception("run.advance_failed", extra={"event": "run.advance_failed", "run": turn.run})
        return None

    async def _draft(self, turn: Turn, fence: int, *, asked: bool = False) -> tuple[Advanced | None, Transaction]:
        draft = RunDraft(self._tools, turn.tenant)
        draft.consume(turn.consumed)
        draft.end(turn.ends)
        known = self._remembered.pop(turn.run, None)
        remembered = known is not None and not asked and known.run.fence == fence
        if known is None or not remembered:
            [record] = await self._store.find_records(Kind.RUN, turn.tenant, [turn.run])
            if record is None:
                if not turn.consumed or turn.ends:
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
        if after.version == before.version and turn.ends:
            raise NoNews(f"run {before.id} does not wait for that")
        return Advanced(before, after, draft.steps_after), draft.transaction()

    def _warn(self, run: str, why: str) -> None:
        logger.warning("run.deferred %s", why, extra={"event": "run.deferred", "run": run})

    def _tell_of(self, ended: Sequence[Change]) -> None:
        if len(self._told) >= TOLD_MAX:
            self._told = dict(itertools.islice(self._told.items(), TOLD_MAX // 2, None))
        self._told |= dict.fromkeys(change.after.id for change in ended)

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


def _try_read(record: Record, job: Job | None) -> Happening | Unreadable | None:
    try:
        return happening_of(record, job)
    except (msgspec.MsgspecError, ValueError) as error:
        return Unreadable(error)
