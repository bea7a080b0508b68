"""Again: a job that ended badly is submitted anew, once per ending."""

from __future__ import annotations

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import State
from holdfast.errors import Conflict
from holdfast.flow.submit import Order, Submitter
from holdfast.ports import Accepted, Store

REPEATABLE = frozenset({State.FAILED, State.TIMEOUT, State.CANCELLED})


async def retry(tenant: Tenant, job_id: JobId, *, store: Store, submitter: Submitter) -> Accepted:
    """A new job like this one. Repeated, it gives the job of the first time.

    Raises `Conflict` for a job that is not FAILED, TIMEOUT or CANCELLED.
    """
    job = await store.get_job(tenant, job_id)
    if job.state not in REPEATABLE:
        raise Conflict(f"job {job.id} is {job.state}: only FAILED, TIMEOUT and CANCELLED jobs are retried")
    return await submitter.submit_one(order_again(job))


async def replay(tenant: Tenant, number: int, *, store: Store, submitter: Submitter) -> Accepted:
    """The job of a dead letter, submitted anew. Repeated, it gives the job of the first time."""
    letter = await store.get_dead_letter(tenant, number)
    return await store.replay_dead_letter(tenant, number, submitter.prepare(order_again(letter.job)))


def order_again(job: Job) -> Order:
    """What its caller once ordered; time limits count from now."""
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
        actor=job.actor,
        replay_of=job.origin,
    )
