"""The control plane, done wrong: each of these has been somebody's bug, or nearly ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from holdfast.core.effect import Ruling
from holdfast.core.job import Job
from holdfast.core.recovery import NOTHING, Action, Remedy, recover
from holdfast.core.states import State
from holdfast.errors import BusUnavailable
from holdfast.flow import execute, record
from holdfast.flow.cancel import cancel, cancelling
from holdfast.flow.dispatch import Dispatched, Dispatcher, Sending
from holdfast.flow.execute import Standing
from holdfast.flow.record import End
from holdfast.flow.submit import Submitter
from holdfast.ports import Accepted, Change, Delivery
from holdfast.stores.rows import values_anew
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.rows import REPLACE_JOB
from simulation.mutant import Mutant

# -- the store ---------------------------------------------------------------------------------------


def _replace_blindly(self: SqliteLedger, before: Job, after: Job, topic_of: Any, *, heard: bool = False) -> bool:
    """Last writer wins: the version is not looked at."""
    [(version,)] = self.execute("SELECT version FROM holdfast_jobs WHERE id = ?", (before.id,))
    self.execute(REPLACE_JOB, (*values_anew(after), None if after.is_terminal else 0.0, before.id, version))
    return True


def _submit_without_key(self: SqliteLedger, submission: Any, topic_of: Any) -> Any:
    return _submit_one(self, replace_key(submission), topic_of)


def replace_key(submission: Any) -> Any:
    return type(submission)(job=submission.job, key=None, digest=submission.digest)


def _tell_with_gaps(self: SqliteLedger, job: Job, kind: str, detail: dict[str, Any]) -> None:
    _tell(self, job, kind, detail)
    if kind == "job.started":
        assert self._last_number is not None
        self._last_number += 1


def _renew_whatever(self: SqliteLedger, job_id: Any, fence: int, topic_of: Any) -> Job | None:
    """A renewal is answered yes whoever asks."""
    return self.reads.find_job(job_id)


_submit_one, _tell = SqliteLedger.submit_one, SqliteLedger.tell
_LEDGER = "holdfast.stores.sqlite.jobs.SqliteLedger"

# -- dispatch ----------------------------------------------------------------------------------------


def _same_fence(self: Dispatcher, job: Job, worker: str, fence: int) -> Change:
    return _dispatching(self, job, worker, job.fence or fence)


async def _roll_back_blindly(self: Dispatcher, sent: Job, why: BusUnavailable) -> None:
    """Whatever became of it meanwhile: back to SCHEDULED."""
    [now] = await self._store.find_jobs([sent.id])
    if now is not None:
        back = replace(now, state=State.SCHEDULED, version=now.version + 1, worker="", since=self._store.now())
        await self._store.apply([Change(before=now, after=back, kind="dispatch.rolled_back")])


async def _never_roll_back(self: Dispatcher, sent: Job, why: BusUnavailable) -> None:
    return


async def _publish_first(self: Dispatcher, job: Job, worker: str) -> Dispatched:
    if job.state is not State.SCHEDULED:
        return Dispatched.MOVED_ON
    change = self._dispatching(job, worker, job.fence + 1)
    await self._publish(change)
    [written] = await self._write([Sending(change)])
    return written


async def _publish_whatever(self: Dispatcher, sendings: Sequence[Sending]) -> list[Dispatched]:
    """A write that fails is taken for done."""
    outcomes = await _write(self, sendings)
    return [Dispatched.SENT if outcome is Dispatched.UNANSWERED else outcome for outcome in outcomes]


_dispatching, _write = Dispatcher._dispatching, Dispatcher._write
_DISPATCHER = "holdfast.flow.dispatch.Dispatcher"

# -- execute, record -----------------------------------------------------------------------------------


def _fits_always(delivery: Delivery, job: Job) -> bool:
    return not job.is_terminal


async def _start_unasked(jobs: Sequence[Job], **given: Any) -> list[Standing]:
    """Who has the message may run it, whatever became of the claim."""
    with suppress(Exception):
        await _start(jobs, **given)
    lease_until = given["store"].now() + 6.0
    return [Standing(job.id, replace(job, state=State.RUNNING, attempts=1, lease_until=lease_until)) for job in jobs]


async def _settle_first(worker: str, limit: int, **given: Any) -> list[Job]:
    """The message is acknowledged as it comes; whoever dies with it takes it along."""
    deliveries = await given["bus"].take(worker, limit=limit)
    await given["bus"].settle(deliveries)
    given.pop("start")
    standings = await execute.start_attempts(worker, [execute.Attempt(d.job_id, d.fence) for d in deliveries], **given)
    return [standing.job for standing in standings if standing.job is not None]


def _conclude_at_cost(job: Job, outcome: Any, topic: Any, **given: Any) -> Change:
    """Handing back costs an attempt."""
    change = _conclude(job, outcome, topic, **given)
    if outcome.end is End.HANDED_BACK:
        return replace(change, after=replace(change.after, attempts=job.attempts))
    return change


async def _accept_late(job: Job, outcome: Any, *, store: Any, telemetry: Any) -> Standing:
    """The last word counts, whoever says it."""
    ended = replace(job, state=State.SUCCEEDED, version=job.version + 1, result=outcome.result)
    await store.apply([Change(before=job, after=ended, kind="job.succeeded")])
    return Standing(job.id, ended)


async def _thank_the_late(job: Job, outcome: Any, **_: Any) -> Standing:
    """Answered as accepted, and forgotten."""
    return Standing(job.id, job)


_start, _conclude = execute._start, record.conclude

# -- submit ------------------------------------------------------------------------------------------


async def _acknowledge_first(self: Submitter, orders: Sequence[Any]) -> list[Any]:
    """The answer goes out, and the job is stored when there is time."""
    submissions = [await self.prepare(order) for order in orders]
    with suppress(Exception):
        await self._store.submit(submissions)
    return [Accepted(submission.job, repeated=False) for submission in submissions]


# -- cancel ------------------------------------------------------------------------------------------


async def _promise_to_cancel(tenant: Any, job_id: Any, reason: str, *, store: Any, **options: Any) -> Job:
    """Answered as done, without a look at whether the write found its version: it did not."""
    job = await store.get_job(tenant, job_id)
    if job.is_terminal:
        return await cancel(tenant, job_id, reason, store=store, **options)
    return cancelling(job, reason, now=store.now()).after


# -- recover -----------------------------------------------------------------------------------------


async def _rest(self: Any) -> None:
    return


def _recover_eagerly(job: Job, topic: Any, *, now: float, is_sent: bool) -> Action:
    if job.state is State.RUNNING and now - job.since >= 0.5:
        return Action(Remedy.RETRY, "lease-expired")
    return recover(job, topic, now=now, is_sent=is_sent)


def _recover_not_running(job: Job, topic: Any, *, now: float, is_sent: bool) -> Action:
    return NOTHING if job.state is State.RUNNING else recover(job, topic, now=now, is_sent=is_sent)


def _recover_not_dispatched(job: Job, topic: Any, *, now: float, is_sent: bool) -> Action:
    return NOTHING if job.state is State.DISPATCHED else recover(job, topic, now=now, is_sent=is_sent)


def _look_never(job: Job, topic_of: Any) -> float | None:
    return None


# -- effects and workers -----------------------------------------------------------------------------


def _repeat_always(*_: Any, **__: Any) -> Ruling:
    return Ruling.RUN


async def _pay_without_asking(self: Any, key: str, fn: Any, *args: Any, **_: Any) -> Any:
    return await fn(*args)


_RECOVER = "holdfast.flow.recover.recover"

MUTANTS = (
    Mutant("write states without looking at the version", "J1", {f"{_LEDGER}._replace": _replace_blindly}),
    Mutant("ignore idempotency keys", "J4", {f"{_LEDGER}.submit_one": _submit_without_key}),
    Mutant("leave gaps in the history", "U1", {f"{_LEDGER}.tell": _tell_with_gaps}),
    Mutant("renew for whoever asks", "P2", {f"{_LEDGER}._renew": _renew_whatever}),
    Mutant("use a fence again", "J4", {f"{_DISPATCHER}._dispatching": _same_fence}),
    Mutant("roll back blindly", "J7", {f"{_DISPATCHER}._roll_back": _roll_back_blindly}),
    Mutant("neither roll back nor recover what was dispatched", "J8", {f"{_DISPATCHER}._roll_back": _never_roll_back, _RECOVER: _recover_not_dispatched}),
    Mutant("publish before the state is written", "J3", {f"{_DISPATCHER}._dispatch_locked": _publish_first}),
    Mutant("publish whatever became of the write", "J3", {f"{_DISPATCHER}._write": _publish_whatever}),
    Mutant("run what was not claimed", "J6", {"holdfast.flow.execute._start": _start_unasked}),
    Mutant("run stale deliveries unclaimed", "J6", {"holdfast.flow.execute._fits": _fits_always, "holdfast.flow.execute._start": _start_unasked}),
    Mutant("charge for handing back", "J4", {"holdfast.flow.record.conclude": _conclude_at_cost}),
    Mutant("let late results overwrite the end", "J2", {"holdfast.flow.record._answer_late": _accept_late}),
    Mutant("say yes to what comes too late", "H1", {"holdfast.flow.record._answer_late": _thank_the_late}),
    Mutant("answer a cancel that was not written", "H1", {"holdfast.gateway.jobs.cancel": _promise_to_cancel}),
    Mutant("acknowledge before the commit", "J11", {"holdfast.flow.submit.Submitter.submit": _acknowledge_first}),
    Mutant("no reconciler", "J8", {"holdfast.reconciler.Reconciler.tick": _rest}),
    Mutant("no rule for what runs", "J8", {_RECOVER: _recover_not_running}),
    Mutant("an index that forgets live jobs", "J8", {"holdfast.stores.ledger.look_at": _look_never}),
    Mutant("take jobs away from those who work", "J10", {_RECOVER: _recover_eagerly, "holdfast.stores.ledger.look_at": lambda job, topic_of: None if job.is_terminal else 0.0}),
    Mutant("repeat every effect", "P9", {"holdfast.stores.effects.rule_on_repeat": _repeat_always}),
    Mutant("pay without the ledger", "P9", {"holdfast.worker.context.Job.once": _pay_without_asking}),
    Mutant("settle a delivery before it is claimed", "J11", {"holdfast.flow.execute.claim": _settle_first}),
)  # fmt: skip
