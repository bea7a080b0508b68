"""Jobs as a whole: lists leave out large payloads, and some of who reads them has to know what they say."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.job import Job
from holdfast.ports import Store


async def with_payloads(jobs: Sequence[Job], *, store: Store) -> list[Job | None]:
    """The same versions of them; None for one that has moved on and whose payload was left out."""
    left_out = {job.id: job.version for job in jobs if not job.payload}
    if not left_out:
        return list(jobs)
    found = {job.id: job for job in await store.find_jobs(list(left_out)) if job is not None}
    known = {job_id: job for job_id, job in found.items() if job.version == left_out[job_id]}
    return [job if job.payload else known.get(job.id) for job in jobs]
