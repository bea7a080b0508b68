"""Jobs as they were handed to workers here: who says how one ended need not wait until it has been read.

A memory, and not the truth. What is made of it is written only if the job still has the version that is remembered;
whoever finds that it has not reads the job then.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from holdfast.core.job import Job, JobId

REMEMBERED_MAX = 2000
REMEMBERED_BYTES = 4 << 10
"""Of a job's payload; one with more is read again."""


class Handed:
    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}

    def remember(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if len(job.payload) <= REMEMBERED_BYTES:
                self._jobs[job.id] = job
        if len(self._jobs) > REMEMBERED_MAX:
            self._jobs = dict(islice(self._jobs.items(), REMEMBERED_MAX // 2, None))

    def take(self, ids: Iterable[JobId]) -> dict[JobId, Job]:
        """Those of them that are remembered, and are not any more."""
        return {job_id: job for job_id in ids if (job := self._jobs.pop(job_id, None)) is not None}
