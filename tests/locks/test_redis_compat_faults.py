"""The drop-in for redis-py's Lock, over a connection that fails: an acquire that raises leaves no lock behind."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import servers
from harness import eventually, make_backend
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.locks.redis_compat import AsyncLock, Lock
from locks.faults import Proxy


class Moody(Proxy):
    """Resets so many new connections, then serves again."""

    refusals = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusals:
            self.refusals -= 1
            writer.transport.abort()
        else:
            await super()._accept(reader, writer)


@pytest.fixture
def url(running: dict[str, servers.Server | None], tmp_path: Path) -> str:
    return make_backend("redis", running, tmp_path).url


@pytest.fixture
async def direct(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(url) as opened:
        yield opened


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Moody]:
    port = redis.asyncio.Redis.from_url(url).connection_pool.connection_kwargs["port"]
    async with Moody(port) as opened:
        yield opened


class Asking:
    """Either lock, without a timeout and with a client that never repeats by itself, called from a test's loop."""

    def __init__(self, kind: str, address: str, name: str) -> None:
        self._kind = kind
        self.lock: Lock | AsyncLock
        if kind == "threads":
            self.client: Any = redis.Redis.from_url(address, retry=Retry(NoBackoff(), 0))
            self.lock = Lock(self.client, name, thread_local=False)  # it is not always called by the same thread
        else:
            self.client = redis.asyncio.Redis.from_url(address, retry=AsyncRetry(NoBackoff(), 0))
            self.lock = AsyncLock(self.client, name)

    async def call(self, verb: Callable[..., Any], **options: object) -> Any:
        if self._kind == "threads":
            return await asyncio.to_thread(verb, **options)
        return await verb(**options)

    async def settle(self) -> None:
        if isinstance(self.lock, AsyncLock) and self.lock._undoing:
            await asyncio.wait(self.lock._undoing)

    async def close(self) -> None:
        await self.settle()
        await self.call(self.client.close if self._kind == "threads" else self.client.aclose)


@pytest.fixture(params=["threads", "asyncio"])
async def asking(request: pytest.FixtureRequest, proxy: Moody, url: str) -> AsyncIterator[Asking]:
    name = f"compat:{request.node.name}:{os.getpid()}"
    made = Asking(request.param, proxy.url(url), name)
    # Connected, and the script loaded.
    assert await made.call(made.lock.acquire)
    await made.call(made.lock.release)
    yield made
    await made.close()


async def lose_reply(proxy: Moody, asking: Asking, direct: redis.asyncio.Redis, **options: object) -> None:
    """An acquire that is carried out, and whose reply never comes. Raises what it raises."""

    async def scripts_run() -> int:
        return int((await direct.info("commandstats"))["cmdstat_evalsha"]["calls"])

    before = await scripts_run()

    async def carried_out() -> bool:
        return await scripts_run() > before

    proxy.mute = True
    acquiring = asyncio.ensure_future(asking.call(asking.lock.acquire, **options))
    await eventually(carried_out)
    proxy.mute = False
    proxy.cut()
    await acquiring


@pytest.mark.parametrize("refusals", [0, 2])
async def test_an_acquire_whose_reply_is_lost_leaves_no_lock_behind(
    proxy: Moody, asking: Asking, direct: redis.asyncio.Redis, refusals: int
) -> None:
    """redis-py leaves the key: without a timeout, for ever."""
    proxy.refusals = refusals
    with pytest.raises(redis.exceptions.ConnectionError):
        await lose_reply(proxy, asking, direct)

    await asking.settle()
    assert not await direct.exists(asking.lock.name)
    assert await asking.call(asking.lock.acquire, blocking=False)
    await asking.call(asking.lock.release)


async def test_a_server_that_stays_away_is_not_tried_for_long_and_the_first_error_is_raised(
    proxy: Moody, asking: Asking, direct: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.locks")
    proxy.refusing = True
    began = time.monotonic()
    with pytest.raises(redis.exceptions.ConnectionError) as raised:
        await lose_reply(proxy, asking, direct)

    async def told() -> bool:
        return "lock.undo_failed" in caplog.messages

    await eventually(told)
    assert time.monotonic() - began < 5
    # What it raises is what went wrong with the acquire, not with its undoing: that could not even connect.
    assert "connecting" not in str(raised.value)
    await direct.delete(asking.lock.name)


async def test_a_lock_that_is_held_is_not_undone_by_asking_for_it_again(
    proxy: Moody, asking: Asking, direct: redis.asyncio.Redis
) -> None:
    lock = asking.lock
    assert await asking.call(lock.acquire, token="mine")
    with pytest.raises(redis.exceptions.ConnectionError):
        await lose_reply(proxy, asking, direct, token="mine")

    await asking.settle()
    assert await direct.get(lock.name) == b"mine"
    await asking.call(lock.release)
    assert not await direct.exists(lock.name)
