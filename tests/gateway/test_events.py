"""`GET /v1/events`: nothing left out, nothing twice, and no queue without an end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.conftest import Served
from holdfast.client import AsyncClient, Client
from holdfast.core.job import Tenant
from holdfast.gateway import events, feed, pages


async def test_newest_event_is_known_also_where_the_word_of_it_has_not_come(served: Served) -> None:
    told = feed.Feed(served.plane.store)
    await served.client.submit("t")
    assert await told.last_number() == told.heard_until > 0

    told.close()  # it hears nothing any more
    for _ in range(5):
        await served.client.submit("t")

    newest = (await served.plane.store.list_events(after=0, limit=100))[-1].number
    assert await told.last_number() == newest > told.heard_until


@asynccontextmanager
async def reading(served: Served, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    """The stream's messages as dicts of their fields; comments under the empty name."""

    async def messages() -> AsyncIterator[dict[str, str]]:
        message: dict[str, str] = {}
        async for line in stream.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                message[name.rstrip(":")] = value
            else:
                yield message
                message = {}

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.http.stream("GET", f"/v1/events{query}", headers=named) as stream:
        assert stream.status_code == 200, await stream.aread()
        assert stream.headers["content-type"].startswith("text/event-stream")
        found = messages()
        assert (await anext(found))["retry"] == "1000"
        yield found


async def test_stream_begins_with_what_happens_now(served: Served) -> None:
    await served.client.submit("earlier")
    async with reading(served) as stream:
        await asyncio.sleep(0.05)
        job = await served.client.submit("t")

        message = await asyncio.wait_for(anext(stream), 10)

    event = msgspec.json.decode(message["data"])
    assert (event["job_id"], event["kind"], str(event["number"])) == (job.id, "job.submitted", message["id"])


async def test_history_that_is_large_is_read_in_smaller_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    monkeypatch.setattr(pages, "FIRST_PART", 2)
    jobs = [await served.client.submit("t") for _ in range(5)]

    wanted = feed.Wanted(tenant=Tenant("default"), job_id=None, kinds=())
    parts = [text async for _, text in events._history(served.plane.store, wanted, 0)]

    assert max(text.count(b"data: ") for text in parts) == 2
    assert [job.id.encode() in b"".join(parts) for job in jobs] == [True] * 5


async def test_stream_is_resumed_without_loss_or_repetition(served: Served) -> None:
    jobs = [await served.client.submit("t", n) for n in range(5)]
    async with reading(served, "?after=0") as stream:
        seen = [await anext(stream) for _ in range(2)]
    jobs += [await served.client.submit("t", n) for n in range(5)]

    async with reading(served, last_event_id=seen[-1]["id"]) as stream:
        seen += [await asyncio.wait_for(anext(stream), 10) for _ in range(8)]
        last = await served.client.submit("t")
        seen.append(await asyncio.wait_for(anext(stream), 10))

    assert [msgspec.json.decode(m["data"])["job_id"] for m in seen] == [job.id for job in [*jobs, last]]


async def test_stream_lost_before_its_first_event_is_resumed_without_loss(served: Served) -> None:
    await served.client.submit("earlier")
    async with served.http.stream("GET", "/v1/events") as stream:
        place = [line async for line in first_lines(stream, 2)][-1].removeprefix("id: ")
    job = await served.client.submit("t")

    async with reading(served, last_event_id=place) as stream:
        message = await asyncio.wait_for(anext(stream), 10)

    assert msgspec.json.decode(message["data"])["job_id"] == job.id


async def first_lines(stream: httpx2.Response, count: int) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        yield line
        count -= 1
        if not count:
            return


SUBMIT = """
import asyncio, sys
from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Submission
from holdfast.stores import open_store
from plane.jobs import a_job

async def submit() -> None:
    store = open_store(sys.argv[1], topics=Topics(), runtime=SYSTEM)
    await store.open()
    await store.submit([Submission(job=a_job(id="theirs", tenant="default"), key=None, digest="")])
    await store.close()

asyncio.run(submit())
"""


async def test_what_another_process_wrote_is_neither_lost_nor_late(served: Served, tmp_path: Path) -> None:
    """Two planes may share a file; each hears only of its own commits."""
    first = await served.client.submit("t")
    async with reading(served, "?after=0") as stream:
        seen = [await asyncio.wait_for(anext(stream), 10)]
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", SUBMIT, f"sqlite:///{tmp_path}/plane.db"],
            check=True,
            cwd=Path(__file__).parents[1],
        )
        last = await served.client.submit("t")
        seen += [
            message for message in [await asyncio.wait_for(anext(stream), 10) for _ in range(3)] if "data" in message
        ]

    ids = [msgspec.json.decode(message["data"])["job_id"] for message in seen]
    assert ids == [first.id, "theirs", last.id]


async def test_long_history_is_read_in_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    jobs = [await served.client.submit("t", n) for n in range(8)]

    async with reading(served, "?after=0") as stream:
        seen = [msgspec.json.decode((await asyncio.wait_for(anext(stream), 10))["data"]) for _ in jobs]

    assert [event["job_id"] for event in seen] == [job.id for job in jobs]


async def test_stream_is_filtered(served: Served) -> None:
    async with AsyncClient(served.url, tenant="other") as other:
        await other.submit("t")
    await served.client.submit("t")
    job = await served.client.submit("t")
    await served.client.cancel(job.id)

    async with reading(served, f"?after=0&job={job.id}&kind=job.can*") as stream:
        message = await asyncio.wait_for(anext(stream), 10)

    event = msgspec.json.decode(message["data"])
    assert (event["job_id"], event["kind"]) == (job.id, "job.cancelled")


async def test_reader_too_slow_is_told_where_to_go_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "QUEUE_MAX", 3)
    async with reading(served) as stream:
        await asyncio.sleep(0.05)
        batch = [{"topic": "t"} for _ in range(10)]
        await served.post("/v1/jobs:batch", {"jobs": batch})
        messages = [message async for message in stream]

    *before, gap = messages
    assert gap["event"] == "gap"
    resume: dict[str, Any] = msgspec.json.decode(gap["data"])
    assert resume == {"reason": "too-slow", "resume_after": int(before[-1]["id"])}
    assert len(before) == 3


async def test_queue_of_a_reader_is_limited_in_bytes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "QUEUE_BYTES_MAX", 500)
    async with reading(served) as stream:
        await asyncio.sleep(0.05)
        await served.post("/v1/jobs:batch", {"jobs": [{"topic": "t"} for _ in range(10)]})
        *before, gap = [message async for message in stream]

    assert gap["event"] == "gap"
    assert 0 < len(before) < 10


async def test_stream_about_nobody_is_not_found(served: Served) -> None:
    answer = await served.http.get("/v1/events?job=nobody")

    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


async def test_head_of_a_stream_ends(served: Served) -> None:
    answer = await asyncio.wait_for(served.http.head("/v1/events"), 10)

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")


async def test_number_of_another_store_is_a_gap(served: Served) -> None:
    async with reading(served, last_event_id="999999") as stream:
        [gap] = [message async for message in stream]

    assert msgspec.json.decode(gap["data"]) == {"reason": "unknown-id", "resume_after": 0}


async def test_silence_is_filled_with_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.02)
    async with reading(served) as stream:
        assert await asyncio.wait_for(anext(stream), 10) == {"": "still here", "id": "0"}


async def test_client_watches_a_job_to_its_end(served: Served) -> None:
    job = await served.client.submit("t")

    async def watched() -> list[str]:
        return [event.kind async for event in served.client.watch(job.id)]

    watching = asyncio.create_task(watched())
    await asyncio.sleep(0.05)
    await served.client.cancel(job.id)

    assert await asyncio.wait_for(watching, 10) == ["job.submitted", "job.cancelled"]

    def watched_by_thread() -> list[str]:
        with Client(served.url) as client:
            return [event.kind for event in client.watch(job.id)]

    assert await asyncio.to_thread(watched_by_thread) == ["job.submitted", "job.cancelled"]


async def test_what_unicode_calls_the_end_of_a_line_ends_no_message(served: Served) -> None:
    why = "a\u2028b\u2029c\u0085d"
    job = await served.client.submit("t")
    await served.client.cancel(job.id, reason=why)

    heard = [event async for event in served.client.watch(job.id)]

    assert [event.detail.get("message") for event in heard] == [None, why]


async def test_client_reads_on_after_a_gap(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "QUEUE_MAX", 3)

    async def watched(count: int) -> list[int]:
        numbers: list[int] = []
        async for event in served.client.watch(after=0):
            numbers.append(event.number)
            if len(numbers) == count:
                break
        return numbers

    watching = asyncio.create_task(watched(20))
    await asyncio.sleep(0.05)
    await served.post("/v1/jobs:batch", {"jobs": [{"topic": "t"} for _ in range(20)]})

    assert await asyncio.wait_for(watching, 10) == list(range(1, 21))
