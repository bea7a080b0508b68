"""`GET /v1/events` after retention: what is gone is told, what is left is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.conftest import Served
from gateway.test_events import reading
from holdfast.client import AsyncClient
from holdfast.core.retention import Limits
from holdfast.gateway import events


async def cancelled(served: Served) -> str:
    job = await served.client.submit("t")
    await served.client.cancel(job.id)
    return job.id


async def prune(served: Served) -> None:
    """All that has ended, but what the newest event belongs to."""
    now = served.plane.store.now()
    assert (await served.plane.store.prune(Limits(now, now))).jobs > 0


def told(message: dict[str, str]) -> Any:
    return msgspec.json.decode(message["data"])


async def test_reader_that_missed_pruned_events_is_told_and_reads_on(served: Served) -> None:
    first = await served.client.submit("t")
    await cancelled(served)
    last = await served.client.submit("t")
    await prune(served)

    async with reading(served, last_event_id="1") as stream:
        gap = await asyncio.wait_for(anext(stream), 10)
        after = await asyncio.wait_for(anext(stream), 10)
        newest = await served.client.submit("t")
        live = await asyncio.wait_for(anext(stream), 10)

    assert (gap["event"], told(gap)) == ("gap", {"reason": "pruned", "resume_after": 1})
    assert [told(message)["job_id"] for message in (after, live)] == [last.id, newest.id], (
        "told once, and nothing left out"
    )
    assert first.id != last.id


async def test_what_is_left_between_is_shown_after_the_gap(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 2)
    kept = []
    for _ in range(4):
        await cancelled(served)
        kept.append((await served.client.submit("t")).id)
    await prune(served)

    async with reading(served, "?after=0") as stream:
        messages = [await asyncio.wait_for(anext(stream), 10) for _ in range(5)]

    assert messages[0]["event"] == "gap"
    assert [told(message)["job_id"] for message in messages[1:]] == kept


async def test_number_that_was_pruned_is_no_number_of_another_store(served: Served) -> None:
    await cancelled(served)
    last = await served.client.submit("t")
    await prune(served)

    async with reading(served, last_event_id="2") as stream:
        message = await asyncio.wait_for(anext(stream), 10)

    assert told(message)["job_id"] == last.id, "nothing after it is missing"


async def test_reader_is_not_told_of_what_others_have_lost(served: Served) -> None:
    async with AsyncClient(served.url, tenant="other") as other:
        theirs = await other.submit("t")
        await other.cancel(theirs.id)
    ours = await served.client.submit("t")
    await prune(served)

    async with reading(served, "?after=0") as stream:
        assert told(await asyncio.wait_for(anext(stream), 10))["job_id"] == ours.id


async def test_reader_of_one_job_is_told_only_if_that_one_is_gone(served: Served) -> None:
    gone = await cancelled(served)
    kept = await served.client.submit("t")
    await prune(served)

    async with reading(served, f"?after=0&job={kept.id}") as stream:
        assert told(await asyncio.wait_for(anext(stream), 10))["job_id"] == kept.id
    async with reading(served, f"?after=0&job={gone}") as stream:
        assert told(await asyncio.wait_for(anext(stream), 10))["reason"] == "pruned"


async def test_client_reads_on_past_what_was_pruned(served: Served) -> None:
    await cancelled(served)
    last = await served.client.submit("t")
    await prune(served)

    async for event in served.client.watch(after=0):
        assert event.job_id == last.id
        break
