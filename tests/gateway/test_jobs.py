"""`/v1/jobs` as a caller sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.conftest import Served
from holdfast.core.job import Job, JobId, Tenant
from holdfast.gateway.waiting import Hints


async def test_submission_is_accepted_with_its_address(served: Served) -> None:
    answer = await served.post("/v1/jobs", {"topic": "t", "payload": {"n": 1}})

    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["etag"] == f'"{job["version"]}"'
    assert (job["state"], job["payload"]) == ("SCHEDULED", {"n": 1})


async def test_repeated_key_gives_the_first_job(served: Served) -> None:
    first = await served.post("/v1/jobs", {"topic": "t", "payload": {"a": 1, "b": 2}}, idempotency_key="k")
    again = await served.post("/v1/jobs", {"payload": {"b": 2.0, "a": 1}, "topic": "t"}, idempotency_key="k")
    other = await served.post("/v1/jobs", {"topic": "t", "payload": {"a": 1, "b": 3}}, idempotency_key="k")

    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 422)
    assert again.json()["id"] == first.json()["id"]
    assert other.json()["code"] == "idempotency-key-reused"
    assert len((await served.client.list()).items) == 1


async def test_key_is_per_tenant(served: Served) -> None:
    mine = await served.post("/v1/jobs", {"topic": "t"}, idempotency_key="k", holdfast_tenant="mine")
    yours = await served.post("/v1/jobs", {"topic": "t"}, idempotency_key="k", holdfast_tenant="yours")

    assert (mine.status_code, yours.status_code) == (202, 202)
    stolen = await served.http.get(mine.headers["location"], headers={"Holdfast-Tenant": "yours"})
    assert (stolen.status_code, stolen.json()["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"topic": "not a topic"}, "Expected at most 128 letters, digits and _.:@/-"),
        ({"risk": "lo"}, "Expected one of low, medium, high - at `$.risk`"),
        (
            {"labels": {"a b": "c"}},
            "letters, digits and _.:@/-, the first a letter or a digit - at `key` in `$.labels`",
        ),
        # Postgres has none: what one store takes must be what all take, or a plane could not be moved.
        ({"labels": {"a": "c\0"}}, "Expected text without NUL - at `$.labels[...]`"),
        ({"session": "s\0"}, "Expected text without NUL - at `$.session`"),
    ],
)
async def test_what_a_field_must_be_is_told_in_words(served: Served, field: dict[str, Any], words: str) -> None:
    answer = await served.post("/v1/jobs", {"topic": "t", **field})

    assert answer.status_code == 422
    assert words in answer.json()["detail"]


async def test_batch_answers_for_each_member(served: Served) -> None:
    members: list[dict[str, Any]] = [
        {"topic": "t", "idempotency_key": "a"},
        {"topic": "t", "idempotency_key": "b", "payload": 2},
        {"topic": "u"},
    ]
    await served.post("/v1/jobs", members[0])
    await served.post("/v1/jobs", {**members[1], "payload": 1})

    answer = await served.post("/v1/jobs:batch", {"jobs": members})

    [repeated, refused, new] = answer.json()["jobs"]
    assert (repeated["repeated"], refused["job"], new["repeated"]) == (True, None, False)
    assert refused["error"]["code"] == "idempotency-key-reused"


async def test_batch_refuses_a_key_for_the_whole(served: Served) -> None:
    answer = await served.post("/v1/jobs:batch", {"jobs": [{"topic": "t"}]}, idempotency_key="k")

    assert answer.status_code == 422
    assert (await served.client.list()).items == []


async def test_pages_hold_every_job_once(served: Served) -> None:
    submitted = [(await served.client.submit("t", n)).id for n in range(7)]

    listed, cursor = [], None
    while True:
        page = await served.client.list(limit=3, cursor=cursor)
        listed += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert listed == submitted[::-1]


async def test_list_is_filtered(served: Served) -> None:
    blue = await served.client.submit("mail.send", labels={"team": "blue"})
    await served.client.submit("mail.send", labels={"team": "red"})
    gone = await served.client.submit("other", labels={"team": "blue"})
    await served.client.cancel(gone.id)

    async def ids(**wanted: Any) -> list[str]:
        return [job.id for job in (await served.client.list(**wanted)).items]

    assert await ids(topic="mail.*", labels={"team": "blue"}) == [blue.id]
    assert await ids(state="CANCELLED") == [gone.id]


async def test_unchanged_job_is_not_sent_again(served: Served) -> None:
    job = await served.client.submit("t")

    answer = await served.http.get(f"/v1/jobs/{job.id}", headers={"If-None-Match": f'"{job.version}"'})

    assert (answer.status_code, answer.content) == (304, b"")


async def test_long_poll_answers_when_the_job_has_ended(served: Served) -> None:
    job = await served.client.submit("t")
    waiting = asyncio.create_task(served.http.get(f"/v1/jobs/{job.id}?wait=30"))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    await served.client.cancel(job.id)

    assert (await asyncio.wait_for(waiting, 10)).json()["state"] == "CANCELLED"


async def test_long_poll_with_a_version_answers_at_any_change(served: Served) -> None:
    job = await served.client.submit("t")
    poll = served.http.get(f"/v1/jobs/{job.id}?wait=30", headers={"If-None-Match": f'"{job.version}"'})
    waiting = asyncio.create_task(poll)
    await asyncio.sleep(0.05)

    await served.introduce()

    assert (await asyncio.wait_for(waiting, 10)).json()["state"] == "DISPATCHED"


async def test_long_poll_ends_when_its_time_is_over(served: Served) -> None:
    job = await served.client.submit("t")

    answer = await served.http.get(f"/v1/jobs/{job.id}?wait=0.05")

    assert (answer.status_code, answer.json()["state"]) == (200, "SCHEDULED")


async def test_long_poll_that_missed_its_hint_still_looks_at_its_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await served.client.submit("t")
    get_job, looks = served.plane.store.get_job, 0

    async def cancelled_after_the_first_look(tenant: Tenant, job_id: JobId) -> Job:
        nonlocal looks
        found, looks = await get_job(tenant, job_id), looks + 1
        if looks == 1:
            await served.client.cancel(job.id)
        return found

    monkeypatch.setattr(Hints, "give", lambda *_: None)
    monkeypatch.setattr(served.plane.store, "get_job", cancelled_after_the_first_look)
    answer = await served.http.get(f"/v1/jobs/{job.id}?wait=0.05")

    assert answer.json()["state"] == "CANCELLED"


async def test_draining_answers_those_who_wait(served: Served) -> None:
    job = await served.client.submit("t")
    waiting = asyncio.create_task(served.http.get(f"/v1/jobs/{job.id}?wait=30"))
    await asyncio.sleep(0.05)

    served.gateway.drain()

    assert (await asyncio.wait_for(waiting, 10)).status_code == 200
    assert (await served.http.get("/readyz")).status_code == 503
    assert (await served.http.get("/livez")).status_code == 200


async def test_cancel_honours_the_version_it_names(served: Served) -> None:
    job = await served.client.submit("t")

    refused = await served.post(f"/v1/jobs/{job.id}:cancel", if_match='"999"')
    assert (refused.status_code, refused.json()["code"]) == (412, "version-mismatch")
    assert (await served.client.get(job.id)).state == "SCHEDULED"

    taken = await served.post(f"/v1/jobs/{job.id}:cancel", {"reason": "no need"}, if_match=f'"{job.version}"')
    assert (taken.status_code, taken.json()["error"]["message"]) == (200, "no need")


async def test_retry_submits_anew_once(served: Served) -> None:
    job = await served.client.submit("t", {"n": 1}, labels={"a": "b"})
    early = await served.post(f"/v1/jobs/{job.id}:retry")
    await served.client.cancel(job.id)

    first = await served.post(f"/v1/jobs/{job.id}:retry")
    again = await served.post(f"/v1/jobs/{job.id}:retry")

    assert (early.status_code, first.status_code, again.status_code) == (409, 202, 200)
    assert first.json()["id"] == again.json()["id"] != job.id
    assert (first.json()["replay_of"], first.json()["payload"]) == (job.id, {"n": 1})


async def test_history_is_paged(served: Served) -> None:
    job = await served.client.submit("t")
    await served.client.cancel(job.id, reason="enough")

    first = await served.client.events(job.id, limit=1)
    rest = await served.client.events(job.id, cursor=first.next_cursor)

    assert [event.kind for event in first.items + rest.items] == ["job.submitted", "job.cancelled"]
    assert rest.next_cursor is None


@pytest.mark.parametrize("path", ["", "/events"])
async def test_unknown_job_is_not_found(served: Served, path: str) -> None:
    answer = await served.http.get(f"/v1/jobs/nothing{path}")

    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
