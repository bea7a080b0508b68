"""What one process has of one Redis server: its connections, its clock, and who is told of its writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from holdfast.core.retention import Limits
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError
from holdfast.locks.errors import LockError
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.ports import Delivery, JobEvent, Pruned, Snapshot
from holdfast.stores import NAMESPACE
from holdfast.stores.batch_writer import BatchWriter, InDoubt
from holdfast.stores.news import News
from holdfast.stores.redis import retention, run_retention
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.keys import Keys, inbox_member
from holdfast.stores.redis.line import Line
from holdfast.stores.redis.link import SNAPSHOT, Asking, PlaneLink
from holdfast.stores.redis.load import Ask
from holdfast.stores.redis.reads import RedisReads
from holdfast.stores.redis.records import RedisRecords
from holdfast.stores.redis.schema import adopt_topics, prepare
from holdfast.stores.redis.writer import BATCH_MAX, Draft, Moved, RedisBatches, adopt
from holdfast.stores.retention import LOOSE, RECORDS, Found
from holdfast.stores.server_clock import ServerClock

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

CLOCK_S = 15.0
"""Between two looks at the server's clock."""
LISTEN_S = 0.25
"""Between two looks whether the line on which others are heard still stands."""


def namespace_of(url: str) -> str:
    """Raises `ValueError` for one that would not be a hash tag."""
    [name] = parse_qs(urlsplit(url).query).get("namespace", [NAMESPACE])
    if "{" in name or "}" in name:
        raise ValueError("the namespace must not contain braces")
    return name


class RedisDatabase:
    def __init__(self, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        self._topics = topics
        self._runtime = runtime
        self._timeout_s = timeout_s
        target = parse_url(url)
        self._keys = keys = Keys(namespace_of(url), database=(target.account or target.addresses[0]).db)
        caller = Caller(url, holder="plane", prefix=keys.prefix, runtime=runtime, timeout_s=timeout_s)
        caller.channel = keys.news
        slot = slot_of(keys.head)
        self.subject = caller.subject
        self.clock = ServerClock(runtime.now)
        self.news = News(runtime.token()[:16], self._read_events)
        self._writing = PlaneLink(target, caller, slot=slot, prepare=self._adopt)
        self._reading = PlaneLink(target, caller, slot=slot)
        # On a line of its own: of one that listens, a server gives up what does not read 32 MB at once.
        self._listening = PlaneLink(target, caller, slot=slot, heard=self.news.heard)
        self._asking = Asking(self._reading)
        self.reads = RedisReads(self._asking, keys)
        self.records = RedisRecords(self._asking, keys)
        self._batches: RedisBatches | None = None
        self.writer: BatchWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        if self.writer is not None:
            return
        for link in (self._writing, self._reading, self._listening):
            link.open()
        batches = RedisBatches(
            self._writing,
            self._keys,
            runtime=self._runtime,
            timeout_s=self._timeout_s,
            now=self.clock.now,
            words=self.news.words,
            told=self.news.last,
        )
        try:
            start = await prepare(self._writing, self._keys, self._runtime)
            await adopt_topics(self._writing, batches, self._keys, self._topics)
            self.news.start(start.number)
            await self._listening.connected()
            # A server may come up with a clock that is behind: what is in its memory has happened before.
            await self.clock.start(self._look_at_clock, not_before=start.at)
        except BaseException as failure:  # nobody closes what was not opened
            await self.news.close()
            for link in (self._writing, self._reading, self._listening):
                await link.close()
            if isinstance(failure, LockError | HoldfastError | Moved | InDoubt):
                raise batches.translated(failure, applied=False) from None
            raise
        self._batches = batches
        self.writer = BatchWriter(
            self.subject, batches, batch_max=BATCH_MAX, timeout_s=self._timeout_s, committed=self.news.committed
        )
        self._tasks = [
            asyncio.create_task(self._follow_clock(), name="holdfast-redis-clock"),
            asyncio.create_task(self._listen(), name="holdfast-redis-listener"),
        ]

    async def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        async with AsyncExitStack() as last:  # whoever has no time to wait for one of them still leaves none behind
            for each in (self._listening, self._reading, self.news, writer):
                last.push_async_callback(each.close)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def write_snapshot(self, snapshot: Snapshot) -> bool:
        return bool(await self._asking.change(SNAPSHOT, (self._keys.snapshot,), snapshot))

    async def settle(self, deliveries: list[Delivery]) -> None:
        # Removing what is gone changes nothing: it may be asked again.
        await self._asking.ask(
            *(("ZREM", self._keys.inbox(each.worker), inbox_member(each.job_id, each.fence)) for each in deliveries)
        )

    async def prune(self, limits: Limits, after: int) -> Pruned:
        ask, keys = self._asking.ask, self._keys
        if after >= LOOSE:
            loose = await retention.find_loose(ask, keys, limits, after)
            return await self._remove(loose, lambda ask: retention.prune_loose(ask, keys, loose))
        if after >= RECORDS:
            ended = await run_retention.find(ask, keys, limits, after)
            return await self._remove(ended, lambda ask: run_retention.prune(ask, keys, ended, limits))
        found = await retention.find(ask, keys, limits, after)
        return await self._remove(found, lambda ask: retention.prune(ask, keys, found, limits))

    async def _remove(self, found: Found[Any], work: Callable[[Ask], Awaitable[tuple[Commands, Pruned]]]) -> Pruned:
        """It was looked for without being in anybody's way; now once more, for what can go."""
        if not found.going:
            return Pruned(0, found.after)
        batches = self._batches
        assert batches is not None

        async def decide() -> tuple[Draft, Pruned]:
            head = await batches.head()
            commands, pruned = await work(self._writing.ask)
            return Draft(head, commands), pruned

        try:
            return await batches.decided(decide)
        except InDoubt as doubt:
            raise batches.translated(doubt.lost, applied=None) from None
        except (LockError, Moved) as failure:
            raise batches.translated(failure, applied=False) from None

    async def _adopt(self, line: Line) -> None:
        await adopt(line, self._keys, self._runtime)

    async def _read_events(self, after: int, limit: int) -> list[JobEvent]:
        return await self.reads.list_events(after, limit, None, None, None)

    async def _follow_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_S)
            asked_at = self._runtime.now()
            try:
                server_s = await self._look_at_clock()
            except HoldfastError:
                continue
            self.clock.learn(server_s, asked_at=asked_at)

    async def _look_at_clock(self) -> float:
        # On the line where others are heard, which is asked nothing else: so it is noticed if nobody is there any more.
        # With a key: any server of a cluster knows what time it is, but one that has left it hears nothing of the plane.
        [_, (seconds, micros)] = await Asking(self._listening).ask(("EXISTS", self._keys.head), ("TIME",))
        return int(seconds) + int(micros) / 1e6

    async def _listen(self) -> None:
        """Others are heard only as long as the line stands."""
        while True:
            await asyncio.sleep(LISTEN_S)
            with suppress(LockError):
                await self._listening.connected()
