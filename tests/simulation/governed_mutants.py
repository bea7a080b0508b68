"""Approvals, policy, workflows, schedules and tenants, done wrong. Where two things keep one promise, both are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from holdfast.core.approval import Approval, ApprovalState, why_unusable
from holdfast.core.ballot import is_assigned
from holdfast.core.job import Job, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.run import Fan, RunState
from holdfast.core.run_follow import _verdict
from holdfast.core.run_stop import end_run
from holdfast.core.run_turn import Turn as RunTurn
from holdfast.core.schedule import schedule_from, schedule_record
from holdfast.core.share import Turns
from holdfast.errors import NotApprover
from holdfast.flow.advance import Advancer, Turn, TurnEnd
from holdfast.flow.approve import Approvals, Said, _answer_late, _word
from holdfast.flow.fire import Fired, _job, _run, _start, _told
from holdfast.flow.run_draft import RunDraft
from holdfast.ports import Change, RecordChange, Transaction
from holdfast.stores.rows import record_of
from holdfast.stores.sqlite.rows import SELECT_RECORD
from holdfast.stores.transactions import may_change_records
from holdfast.timetable import BATCH, Timetable
from simulation.governed_story import no_lock
from simulation.mutant import Mutant

# -- approvals ---------------------------------------------------------------------------------------


async def _decide_blindly(
    self: Approvals, tenant: Tenant, approval_id: str, said: Said, *, version: int | None = None, entry: object = None
) -> Approval:
    """Without the lock, and whatever became of the write."""
    approval = await self.get(tenant, approval_id)
    now = self._store.now()
    if approval.state is not ApprovalState.PENDING:
        return _answer_late(approval, said, now=now)
    job = await self._find_waiting(approval)
    after, transaction = self._decide(approval, job, said, _word(approval, said, now=now))
    await self._store.transact([transaction])
    return after


async def _get_unexpired(self: Approvals, tenant: Tenant, approval_id: str) -> Approval:
    return replace(await _get(self, tenant, approval_id), expires_at=1e12)


def _usable_again(approval: Approval | None, job: Job, *, now: float) -> str:
    """What was used once may be used once more."""
    if approval is not None and approval.state is ApprovalState.CONSUMED:
        approval = replace(approval, state=ApprovalState.APPROVED)
    return why_unusable(approval, job, now=now)


def _usable_for_anything(approval: Approval | None, job: Job, *, now: float) -> str:
    why = why_unusable(approval, job, now=now)
    return "" if why == "approval-digest" else why


def _anybody_approves(approval: Approval, by: str) -> None:
    if not is_assigned(approval, by):
        raise NotApprover(by)


_get = Approvals.get

# -- runs --------------------------------------------------------------------------------------------


def ignoring(*kinds: Kind) -> Callable[..., bool]:
    """Versions of these are not compared. What is new must still be new."""

    def may_change(ledger: Any, changes: Sequence[RecordChange]) -> bool:
        return may_change_records(ledger, [c for c in changes if not c.replaces or c.after.kind not in kinds])

    return may_change


async def _consume_first(self: Advancer, turns: Sequence[Turn]) -> list[TurnEnd]:
    """Results are taken away as they are read; a run that is busy then never hears of them."""
    taken = [RecordChange(after=r, replaces=r.version, remove=True) for turn in turns for r in turn.consumed]
    if taken:
        await self._store.transact([Transaction(records=[change]) for change in taken])
    return await _advance(self, [turn._replace(consumed=()) for turn in turns])


def _consume_never(self: RunDraft, records: Any) -> None:
    return


async def _submit_apart(self: Advancer, turn: Turn, fence: int) -> Any:
    """The jobs of the next step are ordered before it is certain that there is a next step."""
    draft = await _try_draft(self, turn, fence)
    if draft is None:
        return None
    advanced, transaction = draft
    if transaction.submissions:
        await self._store.submit(transaction.submissions)
    return advanced, replace(transaction, submissions=())


def _count_twice(turn: RunTurn, owner: Any, fan: Fan, *, broken: bool) -> bool | None:
    """Each part counts for two."""
    done, succeeded = min(fan.total, 2 * fan.done), min(fan.total, 2 * fan.succeeded)
    return _verdict(turn, owner, replace(fan, done=done, succeeded=succeeded), broken=broken)


def _end_without_undoing(turn: RunTurn) -> None:
    if not turn.run.active and turn.run.state is RunState.CANCELLING:
        assert turn.run.ending is not None
        end_run(turn, turn.run.ending)


async def _no_key(self: Any, order: Any) -> None:
    return None


def _keep_no_keys(self: RunDraft, record: Record) -> None:
    if record.kind is not Kind.KEY:
        _keep(self, record)


async def _end_unheard(self: Advancer, ends: Sequence[Change]) -> list[bool]:
    """The end of a job is written as if its run knew."""
    return await self._store.apply([replace(change, heard=True) for change in ends])


_advance, _try_draft, _keep = Advancer.advance, Advancer._try_draft, RunDraft.keep
_LOCK = "holdfast.flow.kept_locks.KeptLocks._lease"
_VERSIONS = "holdfast.stores.transactions.may_change_records"

# -- schedules, sessions, tenants --------------------------------------------------------------------


async def _tick_everywhere(self: Timetable) -> None:
    """In each replica, without its window."""
    for record in await self._store.list_due(Kind.SCHEDULE, limit=BATCH):
        await self._obey(schedule_from(record))


async def _fire_apart(schedule: Any, due: Any, *, store: Any, submitter: Any, runs: Any, **_: Any) -> Fired:
    """What a tick makes first, and then the schedule moves on, if it is still there."""
    made: list[str] = []
    for tick in due.ticks:
        if schedule.job is not None:
            order = with_fields(_job(schedule, schedule.job, tick), key=None)
            made.append((await submitter.submit_one(order)).job.id)
        else:
            made += await _start(_run(schedule, schedule.run, tick), runs)
    after = replace(schedule, next_at=due.next_at)
    moved = RecordChange(after=schedule_record(after), replaces=schedule.version)
    await store.transact([Transaction(records=[moved], notes=[_told(schedule, due, made, "")])])
    return Fired(after, tuple(made), "")


def _all_of_a_session(execute: Callable[..., Any], job: Job) -> None:
    execute("UPDATE holdfast_jobs SET behind = 0 WHERE tenant = ? AND session = ?", (job.tenant, job.session))


def _by_priority_alone(self: Turns, jobs: Sequence[Job]) -> Iterator[Job]:
    return iter(sorted(jobs, key=lambda job: -job.priority))


def _find_anywhere(execute: Callable[..., Any], kind: Kind, tenant: Tenant, record_id: str) -> Record | None:
    """The tenant is missing from the key."""
    row = execute(f"{SELECT_RECORD} WHERE kind = ? AND id = ?", (kind.value, record_id)).fetchone()
    return None if row is None else record_of(row)


_APPROVALS = "holdfast.flow.approve.Approvals"

MUTANTS = (
    Mutant("decide without lock and version", "A1", {f"{_APPROVALS}.decide": _decide_blindly, _VERSIONS: ignoring(Kind.APPROVAL)}),
    Mutant("decide what has expired", "A1", {f"{_APPROVALS}.get": _get_unexpired}),
    Mutant("dispatch without using the approval up", "A2", {"holdfast.flow.gate.consume": lambda approval, _: approval}),
    Mutant("use an approval again", "A2", {"holdfast.flow.gate.why_unusable": _usable_again}),
    Mutant("approve one thing and run another", "A2", {"holdfast.flow.approve.edited": lambda approval, *_: approval, "holdfast.flow.gate.why_unusable": _usable_for_anything}),
    Mutant("count a yes to what was edited since", "A2", {"holdfast.flow.approve._check_read": lambda *_: None}),
    Mutant("dispatch by the policy of yesterday", "A2", {"holdfast.flow.gate.still_allows": lambda *_: True}),
    Mutant("let requesters approve", "A3", {"holdfast.core.ballot.check_approver": _anybody_approves}),
    Mutant("advance runs without lock and version", "W2", {_LOCK: no_lock, _VERSIONS: ignoring(Kind.RUN, Kind.STEP)}),
    Mutant("take results away before the run knows", "W1", {"holdfast.flow.advance.Advancer.advance": _consume_first}),
    Mutant("leave results where they are", "W1", {"holdfast.flow.run_draft.RunDraft.consume": _consume_never}),
    Mutant("end a job as if its run had heard of it", "W1", {"holdfast.flow.advance.Advancer.end_jobs": _end_unheard}),
    Mutant("order jobs before their step is written", "W1", {_LOCK: no_lock, "holdfast.flow.advance.Advancer._try_draft": _submit_apart}),
    Mutant("count each part of a fan-in twice", "W1", {"holdfast.core.run_follow._verdict": _count_twice}),
    Mutant("end a run that failed without undoing it", "W1", {"holdfast.core.run_follow.conclude": _end_without_undoing}),
    Mutant("forget the keys of runs", "J4", {"holdfast.flow.runs.Runs._find_by_key": _no_key, "holdfast.flow.run_draft.RunDraft.keep": _keep_no_keys}),
    Mutant("fire schedules in each replica", "R1", {"holdfast.timetable.Timetable.tick": _tick_everywhere, "holdfast.timetable.fire": _fire_apart}),
    Mutant("run a session's jobs at once", "S2", {"holdfast.stores.sqlite.jobs.arrange": _all_of_a_session, "holdfast.stores.sqlite.jobs.is_at_work": lambda *_: False}),
    Mutant("ignore the quotas of tenants", "T2", {"holdfast.core.share.Shares._look": lambda *_: None}),
    Mutant("go by priority alone", "T2", {"holdfast.scheduler.Turns.arrange": _by_priority_alone}),
    Mutant("find what belongs to others", "T1", {"holdfast.stores.sqlite.records.find": _find_anywhere}),
)  # fmt: skip
