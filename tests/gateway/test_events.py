"""`GET /v1/events`: nothing left out, nothing twice, and no queue without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.conftest import Served
from holdfast.client import AsyncClient, Client
from holdfast.gateway import events, feed


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
        assert await anext(found) == {"retry": "1000"}
        yield found


async def test_stream_begins_with_what_happens_now(served: Served) -> None:
    await served.client.submit("earlier")
    async with reading(served) as stream:
        await asyncio.sleep(0.05)
        job = await served.client.submit("t")

        message = await asyncio.wait_for(anext(stream), 3)

    event = msgspec.json.decode(message["data"])
    assert (event["job_id"], event["kind"], str(event["number"])) == (job.id, "job.submitted", message["id"])


async def test_stream_is_resumed_without_loss_or_repetition(served: Served) -> None:
    jobs = [await served.client.submit("t", n) for n in range(5)]
    async with reading(served, "?after=0") as stream:
        seen = [await anext(stream) for _ in range(2)]
    jobs += [await served.client.submit("t", n) for n in range(5)]

    async with reading(served, last_event_id=seen[-1]["id"]) as stream:
        seen += [await asyncio.wait_for(anext(stream), 3) for _ in range(8)]
        last = await served.client.submit("t")
        seen.append(await asyncio.wait_for(anext(stream), 3))

    assert [msgspec.json.decode(m["data"])["job_id"] for m in seen] == [job.id for job in [*jobs, last]]


async def test_long_history_is_read_in_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    jobs = [await served.client.submit("t", n) for n in range(8)]

    async with reading(served, "?after=0") as stream:
        seen = [msgspec.json.decode((await asyncio.wait_for(anext(stream), 3))["data"]) for _ in jobs]

    assert [event["job_id"] for event in seen] == [job.id for job in jobs]


async def test_stream_is_filtered(served: Served) -> None:
    async with AsyncClient(served.url, tenant="other") as other:
        await other.submit("t")
    await served.client.submit("t")
    job = await served.client.submit("t")
    await served.client.cancel(job.id)

    async with reading(served, f"?after=0&job={job.id}&kind=job.can*") as stream:
        message = await asyncio.wait_for(anext(stream), 3)

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


async def test_number_of_another_store_is_a_gap(served: Served) -> None:
    async with reading(served, last_event_id="999999") as stream:
        [gap] = [message async for message in stream]

    assert msgspec.json.decode(gap["data"]) == {"reason": "unknown-id", "resume_after": 0}


async def test_silence_is_filled_with_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.02)
    async with reading(served) as stream:
        assert await asyncio.wait_for(anext(stream), 3) == {"": "still here"}


async def test_client_watches_a_job_to_its_end(served: Served) -> None:
    job = await served.client.submit("t")

    async def watched() -> list[str]:
        return [event.kind async for event in served.client.watch(job.id)]

    watching = asyncio.create_task(watched())
    await asyncio.sleep(0.05)
    await served.client.cancel(job.id)

    assert await asyncio.wait_for(watching, 3) == ["job.submitted", "job.cancelled"]

    def watched_by_thread() -> list[str]:
        with Client(served.url) as client:
            return [event.kind for event in client.watch(job.id)]

    assert await asyncio.to_thread(watched_by_thread) == ["job.submitted", "job.cancelled"]


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
