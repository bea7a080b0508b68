"""What one process has of one database: its connections, its clock, and who is told of its commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.core.retention import Limits
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError
from holdfast.locks.stores.postgres.link import FAILURES, Listener, hang_up
from holdfast.ports import Delivery, JobEvent, Pruned, Snapshot
from holdfast.stores.batch_writer import BatchWriter
from holdfast.stores.news import News
from holdfast.stores.postgres import retention, run_retention
from holdfast.stores.postgres.flush import SETTLE
from holdfast.stores.postgres.link import Lines, answered, connect_first, translated
from holdfast.stores.postgres.reads import Reads
from holdfast.stores.postgres.records import RecordReads
from holdfast.stores.postgres.rows import DELIVERY, arrays_of
from holdfast.stores.postgres.schema import prepare
from holdfast.stores.postgres.writer import BATCH_MAX, LOCK, PostgresBatches
from holdfast.stores.retention import LOOSE, RECORDS, Found
from holdfast.stores.server_clock import ServerClock

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

CLOCK_S = 15.0
"""Between two looks at the server's clock."""

_START = """
    SELECT current_schema() AS schema,
           (SELECT max(number) FROM holdfast_events) AS last,
           (SELECT at FROM holdfast_events ORDER BY number DESC LIMIT 1) AS last_at
"""
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_SNAPSHOT = """
    INSERT INTO holdfast_snapshot AS s VALUES (1, $1, $2, $3, $4)
    ON CONFLICT (one) DO UPDATE SET fence = excluded.fence, seq = excluded.seq, at = excluded.at, workers = excluded.workers
    WHERE (s.fence, s.seq) < (excluded.fence, excluded.seq)
"""


class Database:
    def __init__(self, url: str, subject: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self.subject = subject
        self._topics = topics
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._lines = Lines(url, subject, timeout_s=timeout_s)
        self._listener: Listener | None = None
        self._clock_task: asyncio.Task[None] | None = None
        self.clock = ServerClock(runtime.now)
        self.reads = Reads(self._lines)
        self.records = RecordReads(self._lines)
        self.news = News(runtime.token()[:16], self._read_events)
        self.writer: BatchWriter | None = None

    async def open(self) -> None:
        if self.writer is not None:
            return
        try:
            connection = await connect_first(self._url, timeout_s=self._timeout_s)
            try:
                timeout_s = self._timeout_s
                await prepare(connection, self.subject, self._topics, timeout_s=timeout_s)
                start = await answered(connection, connection.fetchrow(_START), timeout_s=timeout_s)
                # A server may come up with a clock that is behind: what is in its tables has happened before.
                await self.clock.start(
                    lambda: answered(connection, connection.fetchval(_CLOCK), timeout_s=timeout_s),
                    not_before=start["last_at"] or 0.0,
                )
            finally:
                await hang_up(connection, timeout_s=self._timeout_s)
        except FAILURES as failure:
            raise translated(failure, self.subject, applied=False) from None
        self.news.start(start["last"] or 0)
        self._lines.open()
        channel = f"holdfast_plane_{sha256(start['schema'].encode()).hexdigest()[:16]}"
        batches = PostgresBatches(
            self._url,
            self.subject,
            channel=channel,
            timeout_s=self._timeout_s,
            now=self.clock.now,
            words=self.news.words,
            told=self.news.last,
        )
        self.writer = BatchWriter(
            self.subject, batches, batch_max=BATCH_MAX, timeout_s=self._timeout_s, committed=self.news.committed
        )
        self._listener = Listener(self._url, channel, self.news.heard, runtime=self._runtime, timeout_s=self._timeout_s)
        self._clock_task = asyncio.create_task(self._follow_clock(), name="holdfast-postgres-clock")

    async def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        assert self._clock_task is not None
        assert self._listener is not None
        async with AsyncExitStack() as last:  # whoever has no time to wait for one of them still leaves none behind
            for each in (self._lines, self.news, writer, self._listener):
                last.push_async_callback(each.close)
            self._clock_task.cancel()
            await asyncio.wait([self._clock_task])

    async def write_snapshot(self, snapshot: Snapshot) -> bool:
        done = await self._lines.change(lambda connection: connection.execute(_SNAPSHOT, *snapshot))
        return bool(done == "INSERT 0 1")

    async def settle(self, deliveries: list[Delivery]) -> None:
        await self._lines.change(lambda connection: connection.execute(SETTLE, *arrays_of(DELIVERY, deliveries)))

    async def prune(self, limits: Limits, after: int) -> Pruned:
        if after >= LOOSE:
            loose = await retention.find_loose(self._lines, limits, after)
            return await self._remove(loose, lambda connection: retention.prune_loose(connection, loose))
        if after >= RECORDS:
            ended = await run_retention.find(self._lines, limits, after)
            return await self._remove(ended, lambda connection: run_retention.prune(connection, ended, limits))
        found = await retention.find(self._lines, limits, after)
        return await self._remove(found, lambda connection: retention.prune(connection, found, limits))

    async def _remove(self, found: Found[Any], work: Callable[[asyncpg.Connection], Awaitable[Pruned]]) -> Pruned:
        """It was looked for without the lock, which is taken only for what can go."""
        if not found.going:
            return Pruned(0, found.after)

        async def transact(connection: asyncpg.Connection) -> Pruned:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
                return await work(connection)

        return await self._lines.change(transact)

    async def _read_events(self, after: int, limit: int) -> list[JobEvent]:
        return await self.reads.list_events(after, limit, None, None, None)

    async def _follow_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_S)
            asked_at = self._runtime.now()
            try:
                [(server_s,)] = await self._lines.fetch(_CLOCK)
            except HoldfastError:
                continue
            self.clock.learn(server_s, asked_at=asked_at)
