"""What the gateway remembers of the jobs that it has handed out, and what that must not change."""

from __future__ import annotations

from typing import Any

import pytest
from plane.jobs import a_job

from gateway.conftest import Served
from holdfast.core.job import Job, JobId
from holdfast.flow.recover import lose_attempts
from holdfast.gateway.handed import REMEMBERED_BYTES, REMEMBERED_MAX, Handed


def outcome_of(delivery: dict[str, Any], outcome: str = "succeeded") -> dict[str, Any]:
    return {"job_id": delivery["job_id"], "fence": delivery["fence"], "outcome": outcome}


async def test_end_of_a_job_that_was_handed_out_here_is_written_without_reading_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await served.started()
    find_jobs, read = served.plane.store.find_jobs, []

    async def noting(ids: list[JobId]) -> list[Job | None]:
        read.extend(ids)
        return await find_jobs(ids)

    monkeypatch.setattr(served.plane.store, "find_jobs", noting)
    await served.work("complete", worker="w1", outcomes=[outcome_of(delivery)])

    assert read == []
    assert (await served.client.get(delivery["job_id"])).state == "SUCCEEDED"


async def test_word_on_a_job_that_somebody_has_asked_to_stop_since_is_heard_as_such(served: Served) -> None:
    delivery = await served.started()
    await served.client.cancel(delivery["job_id"])

    await served.work("complete", worker="w1", outcomes=[outcome_of(delivery, "failed")])

    assert (await served.client.get(delivery["job_id"])).state == "CANCELLED"


async def test_word_on_a_job_that_was_taken_away_since_is_refused(served: Served) -> None:
    delivery = await served.started()
    plane = served.plane
    running = await plane.store.find_jobs([JobId(delivery["job_id"])])
    taken = [job for job in running if job is not None]
    await lose_attempts(taken, reason="worker-died", store=plane.store, telemetry=plane.telemetry)

    answer = await served.post("/v1/work/complete", {"worker": "w1", "outcomes": [outcome_of(delivery)]})

    assert (answer.status_code, answer.json()["code"]) == (409, "stale-fence")
    assert (await served.client.get(delivery["job_id"])).state != "SUCCEEDED"


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    handed = Handed()
    jobs = [a_job() for _ in range(REMEMBERED_MAX + 1)]
    large = a_job(payload=b"x" * (REMEMBERED_BYTES + 1))

    handed.remember([*jobs, large])

    known = handed.take(job.id for job in (*jobs, large))
    assert len(known) == REMEMBERED_MAX // 2 + 1
    assert known[jobs[-1].id] == jobs[-1]
    assert handed.take(known) == {}, "taken once"
