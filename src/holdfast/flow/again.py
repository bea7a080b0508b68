"""Again: a job that ended badly is submitted anew, once per ending."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import State
from holdfast.errors import Conflict, VersionMismatch
from holdfast.flow.audit import Entry
from holdfast.flow.submit import Order, Submitter
from holdfast.ports import Accepted, DeadLetter, RecordChange, Store, Submission, Transaction

REPEATABLE = frozenset({State.FAILED, State.TIMEOUT, State.CANCELLED})


async def retry(
    tenant: Tenant, job_id: JobId, *, store: Store, submitter: Submitter, entry: Entry | None = None
) -> Accepted:
    """A new job like this one. Repeated, it gives the job of the first time.

    Raises `Conflict` for a job that is not FAILED, TIMEOUT or CANCELLED.
    """
    job = await store.get_job(tenant, job_id)
    if job.state not in REPEATABLE:
        raise Conflict(f"job {job.id} is {job.state}: only FAILED, TIMEOUT and CANCELLED jobs are retried")
    order = order_again(job, by="" if entry is None else entry.act.by)
    if entry is None:
        return await submitter.submit_one(order)
    # Asked first: a tenant at its limit is given the answer of the first time as well.
    if (first := await submitter.find_repeated(order)) is not None:
        return first
    submission = await submitter.admit(order)
    try:
        await _submit_once(submission, store=store, entry=entry)
    except Conflict:
        await submitter.withdraw([submission.job])
        raise
    [stored] = await store.find_jobs([submission.job.id])
    if stored is not None:
        return Accepted(stored, repeated=False)
    await submitter.withdraw([submission.job])
    [answer] = await store.submit([submission])  # somebody else was quicker: this is what they were given
    assert isinstance(answer, Accepted), "the key is made of the job, and so is what it was used for"
    return answer


async def _submit_once(submission: Submission, *, store: Store, entry: Entry) -> None:
    """With its line in the audit. What repeats a submission that is there leaves no line: it changes nothing."""

    async def write(records: Sequence[RecordChange]) -> bool:
        audited = _with_records(submission, records)
        [written] = await store.transact([Transaction(submissions=[audited])])
        return written

    if not await entry.add(write, retried_as=submission.job.id):
        raise Conflict(f"job {submission.job.replay_of} is retried by somebody else; look at it again")


def _with_records(submission: Submission, records: Sequence[RecordChange]) -> Submission:
    return replace(submission, records=[*submission.records, *records])


async def replay(
    tenant: Tenant, number: int, *, store: Store, submitter: Submitter, entry: Entry | None = None
) -> Accepted:
    """The job of a dead letter, submitted anew. Repeated, it gives the job of the first time. Raises `TooMany`."""
    letter = await store.get_dead_letter(tenant, number)
    if letter.replayed_as is not None:
        return Accepted(await store.get_job(tenant, letter.replayed_as), repeated=True)
    submission = await submitter.admit(order_again(letter.job, by="" if entry is None else entry.act.by))
    try:
        answer = await _replay_once(letter, submission, store=store, entry=entry)
    except Conflict:
        await submitter.withdraw([submission.job])
        raise
    if answer.repeated:
        await submitter.withdraw([submission.job])
    return answer


async def _replay_once(letter: DeadLetter, submission: Submission, *, store: Store, entry: Entry | None) -> Accepted:
    tenant, number = letter.tenant, letter.number
    if entry is None:
        return await store.replay_dead_letter(tenant, number, submission)
    answers: list[Accepted] = []

    async def write(records: Sequence[RecordChange]) -> bool:
        try:
            answers.append(await store.replay_dead_letter(tenant, number, _with_records(submission, records)))
        except VersionMismatch:
            return False
        return True

    if not await entry.add(write, job=letter.job_id, replayed_as=submission.job.id):
        raise Conflict(f"dead letter {number} keeps changing; try again")
    return answers[-1]


def order_again(job: Job, *, by: str = "") -> Order:
    """What its caller once ordered; time limits count from now. Whoever wants it again is answerable for it: else
    who submitted it first could not approve it, and who wants it now could."""
    return Order(
        tenant=job.tenant,
        topic=job.topic,
        payload=job.payload,
        labels=job.labels,
        priority=job.priority,
        risk=job.risk,
        max_attempts=job.max_attempts,
        timeout_s=None if job.deadline is None else job.deadline - job.created_at,
        # No caller's key begins with a control character, so none can stand in for this one.
        key=f"\x1fagain:{job.id}",
        trace=job.trace,
        actor=by or job.actor,
        replay_of=job.origin,
        # Behind the live ones of its session: nobody asked to stop them when this was ordered.
        session=job.session,
    )
