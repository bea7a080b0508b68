"""Cancel: a person wants a job to stop."""

from __future__ import annotations

from holdfast.core.job import Job, JobId, Tenant, amend, may, step
from holdfast.core.states import Event, State
from holdfast.errors import Conflict, VersionMismatch
from holdfast.flow.audit import Entry, transact
from holdfast.flow.gate import followed
from holdfast.ports import Change, Store

TRIES = 5
"""A person's request is tried again this often when the job moves under it."""


async def cancel(
    tenant: Tenant, job_id: JobId, reason: str, *, store: Store, version: int | None = None, entry: Entry | None = None
) -> Job:
    """End a job that has not started at once; ask the worker of a running one to stop.

    Cancelling a cancelled job is no error. Raises `Conflict` if it ended otherwise, and
    `VersionMismatch` if a version is given and the job has another one.
    """
    for _ in range(TRIES):
        job = await store.get_job(tenant, job_id)
        if version is not None and job.version != version:
            raise VersionMismatch(f"job {job.id} has version {job.version}, not {version}")
        if job.state is State.CANCELLED or (job.state is State.RUNNING and job.cancel_requested):
            return job
        if not may(job, Event.CANCEL):
            raise Conflict(f"job {job.id} is {job.state}: there is nothing left to cancel")
        change = cancelling(job, reason, now=store.now())
        [transaction] = await followed([change], store=store)
        if await transact(transaction, store=store, entry=entry, was=job.state):
            return change.after
    raise Conflict(f"job {job_id} keeps changing; try again")


def cancelling(job: Job, reason: str, *, now: float) -> Change:
    """What a request to stop makes of a job that may be cancelled."""
    error = {"code": "cancelled", "message": reason}
    if job.state is State.RUNNING:
        # The worker is named, so that whoever hears of this event can tell it at once.
        detail = {**error, "worker": job.worker}
        return Change(before=job, after=amend(job, cancel_requested=True), kind="job.cancel_requested", detail=detail)
    after = step(job, Event.CANCEL, now=now, error=error)
    return Change(before=job, after=after, kind="job.cancelled", detail=error)
