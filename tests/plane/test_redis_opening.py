"""Opening a plane's Redis store and being cancelled: nobody closes what was not opened, so nothing may be left behind."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from harness import eventually

from holdfast.core.topic import Topics
from holdfast.locks.errors import Unavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.ports import JobEvent
from holdfast.stores import open_store
from holdfast.stores.redis.database import RedisDatabase, namespace_of
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.line import Line
from holdfast.stores.redis.link import PlaneLink
from holdfast.stores.server_clock import ServerClock
from plane.redis_namespaces import raw, url  # noqa: F401


async def test_opening_that_is_cancelled_leaves_no_connection_behind(url: str, raw: redis.Redis) -> None:
    def connections() -> set[str]:
        return {client["id"] for client in raw.client_list() if client["name"] == "holdfast"}

    before, was_opened = connections(), False
    for turns in (2**n for n in range(30)):
        store = open_store(url, topics=Topics(), runtime=SYSTEM)
        opening = asyncio.create_task(store.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            was_opened = True
            await store.close()
            break

    async def are_those_of_before() -> bool:
        return connections() <= before

    assert was_opened, "until then it was cancelled, later each time"
    await eventually(are_those_of_before)


async def test_opening_that_is_cancelled_leaves_no_reader_of_news_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.Event()

    async def read_for_ever(_: RedisDatabase, _after: int, _limit: int) -> list[JobEvent]:
        reading.set()
        await asyncio.Event().wait()
        return []

    async def never_start(_: ServerClock, *_args: Any, **_more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RedisDatabase, "_read_events", read_for_ever)
    monkeypatch.setattr(ServerClock, "start", never_start)
    before = asyncio.all_tasks()
    opening = asyncio.create_task(open_store(url, topics=Topics(), runtime=SYSTEM).open())
    await asyncio.wait_for(reading.wait(), 10)
    opening.cancel()
    await asyncio.wait([opening])

    assert opening.cancelled()
    assert asyncio.all_tasks() == before


async def test_line_that_stands_only_when_its_store_is_closed_is_hung_up(url: str) -> None:
    keys = Keys(namespace_of(url))
    caller = Caller(url, holder="", prefix=keys.prefix, runtime=SYSTEM, timeout_s=10.0)
    lines: list[Line] = []

    async def close_meanwhile(line: Line) -> None:
        lines.append(line)
        await link.close()

    link = PlaneLink(parse_url(url), caller, slot=slot_of(keys.head), prepare=close_meanwhile)
    link.open()
    with pytest.raises(Unavailable, match="the store was closed"):
        await link.connected()
    await asyncio.wait_for(lines[0].connection.ended, 10)
