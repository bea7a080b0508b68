"""Locks in Postgres: lease rows in tables of our own, changed by the functions of `postgres.sql`.

One connection carries everything. While one batch is under way, the requests that arrive are
collected and go out as the next one, so a batch costs one round trip and one commit however many
tasks share it. (Two connections that take turns were slower, and half a batch at a time on this one was
no faster: a batch alone costs as much as twenty requests.) A batch of free locks goes the shorter way of
`free`, all others through `holdfast_batch`. Another connection listens for wake-ups, from the
first acquire on that had to queue; for what was said before it listened, everybody is woken once.

Grants and renewals are as durable as commits are on that server: with `synchronous_commit = off` a
crash may forget the last ones (later fences are higher all the same, by the clock). A release is not
waited for: a crash may leave the lock held until it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, Holder, Ownership, Renewal, Standing, WakeCallback, require_token
from holdfast.locks.stores import shown
from holdfast.locks.stores.postgres.batch import (
    BATCH_MAX,
    DIGEST_CHARS,
    Columns,
    Request,
    answers_of,
    digest_of,
    in_order,
    is_uniform,
)
from holdfast.locks.stores.postgres.free import (
    acquire_statement,
    array,
    common_fence,
    fences_done,
    quoted_array,
    release_statement,
)
from holdfast.locks.stores.postgres.history import COLLECT, COLLECT_EVERY, COLLECT_LIMITS, HISTORY
from holdfast.locks.stores.postgres.link import (
    BROKEN,
    FAILURES,
    ROLLED_BACK,
    Listener,
    connect,
    ended_at,
    explained,
    hang_up,
    read_only,
)

if TYPE_CHECKING:
    from holdfast.locks.port import LockStore
    from holdfast.locks.runtime import Runtime

#: Batches that go no shorter way after one in which a lock was fought over, or new: there it is a round trip too many.
FREE_PAUSE = 50
#: Waiters that are woken by token; if there are more, the oldest are woken with all others of their key.
WAITING_MAX = 10_000
#: No fence is so high, and no bigint.
FENCE_END = 2**63

# Arrays travel as text: the driver's own encoding of them costs more than the statement, and to read any but texts it asks
# on each connection what their type is, which costs more than dozens of them.
_BATCH = """
    SELECT done_keys, done_fences::text[], late_at::text[], late_fences::text[], late_holders, late_remaining_ms::text[]
    FROM holdfast_batch($1, $2, $3, $4::text::text[], $5::text::text[], $6::text::int[], $7::text::int[], $8::text::int[])
"""
_RENEW = "SELECT holdfast_renew($1::text::text[], $2::text::text[], $3::text::int[])::text[]"
_EVICT = "SELECT holdfast_evict($1, $2, $3)"
_FIND = "SELECT * FROM holdfast_holders WHERE key = $1"
# No key sorts after its prefix and the last code point: the scan of the index ends there.
_LIST = """
    SELECT * FROM holdfast_holders WHERE key >= $1 AND key < $1 || chr(1114111) AND key > $2 ORDER BY key LIMIT $3
"""
_STANDINGS = (Standing.GONE, Standing.OWNED, Standing.TAKEN)


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> LockStore:
    del prefix  # the keys carry it, and the tables live in a schema that the URL may choose (search_path)
    return PostgresStore(url, holder=holder, runtime=runtime, timeout_s=timeout_s)


class _Renew(NamedTuple):
    key: str
    digest: str
    ttl_ms: int
    deadline: float
    done: asyncio.Future[Standing]


class _Exchange(NamedTuple):
    """One statement, who waits for it, and how its rows answer them."""

    sql: str
    arguments: Sequence[object]
    deadline: float
    waiting: Sequence[asyncio.Future[Any]]
    answer: Callable[[list[asyncpg.Record]], None]


class PostgresStore:
    def __init__(self, url: str, *, holder: str, runtime: Runtime, timeout_s: float) -> None:
        self._url = url
        self._holder = holder
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._channel = f"holdfast_{runtime.token()[:16]}"
        self._wake: WakeCallback = lambda key, token: None
        self._waiters: dict[str, str] = {}
        self._open = False
        self._loop: asyncio.AbstractEventLoop  # known once it is open
        self._connection: asyncpg.Connection | None = None
        self._releases: list[Request] = []
        self._acquires: list[Request] = []
        self._acquiring: set[str] = set()
        self._renewals: list[_Renew] = []
        self._queries: list[_Exchange] = []
        self._collect_in = COLLECT_EVERY
        self._free_in = 0
        self._sender: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    async def open(self) -> None:
        self._open = True
        self._loop = asyncio.get_running_loop()
        await self._query(COLLECT, *COLLECT_LIMITS)

    async def close(self) -> None:
        """What is under way is still answered; what was not sent ends as not applied."""
        self._open = False
        self._fail_unsent(asyncpg.InterfaceError("the store was closed"))
        try:
            if self._listener is not None:
                await self._listener.close()
                self._listener = None
            if self._sender is not None:
                await asyncio.wait([self._sender])
        finally:  # also if there is no time to wait for them
            if self._sender is not None:
                self._sender.add_done_callback(lambda _: self._hang_up())  # of what it is about to connect
            await hang_up(self._connection, timeout_s=self._timeout_s)

    def sibling(self) -> LockStore:
        return PostgresStore(self._url, holder=self._holder, runtime=self._runtime, timeout_s=self._timeout_s)

    def on_wake(self, callback: WakeCallback) -> None:
        self._wake = callback

    def acquire(
        self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1
    ) -> Awaitable[Grant | Busy]:
        require_token(token)
        assert ttl_ms > 0, "0 marks a release"
        loop = self._sending_loop()
        # The loop's own `create_future` is this, one call deeper.
        done: asyncio.Future[Grant | Busy] = asyncio.Future(loop=loop)
        self._acquires.append((key, token, ttl_ms, queue_ms, fences, loop.time() + self._timeout_s, done))
        self._acquiring.add(key)
        return done

    def release(self, key: str, token: str) -> Awaitable[bool]:
        require_token(token)
        loop = self._sending_loop()
        done: asyncio.Future[bool] = asyncio.Future(loop=loop)
        # Releases go first, but never past an earlier acquire of the same key: an acquire whose
        # caller has given up would then be granted after the release that was to undo it.
        lane = self._acquires if key in self._acquiring else self._releases
        lane.append((key, token, 0, 0, 0, loop.time() + self._timeout_s, done))
        return done

    def renew(self, renewals: Sequence[Renewal]) -> Awaitable[list[Standing]]:
        loop = self._sending_loop()
        deadline = loop.time() + self._timeout_s
        answers: list[asyncio.Future[Standing]] = [loop.create_future() for _ in renewals]
        for (key, token, ttl_ms), done in zip(renewals, answers, strict=True):
            self._renewals.append(_Renew(key, digest_of(token), ttl_ms, deadline, done))
        return asyncio.gather(*answers)

    async def evict(self, key: str, fence: int, *, reason: str) -> bool:
        if fence >= FENCE_END:
            return False
        rows = await self._query(_EVICT, key, fence, reason)
        return bool(rows[0][0])

    async def find_holder(self, key: str) -> Holder | None:
        rows = await self._query(_FIND, key)
        return Holder(**rows[0]) if rows else None

    async def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Holder]:
        return [Holder(**row) for row in await self._query(_LIST, prefix, after, limit)]

    async def list_history(self, key: str, *, limit: int = 100) -> list[Ownership]:
        newest_first = await self._query(HISTORY, key, limit)
        return [Ownership(**row) for row in reversed(newest_first)]

    # Requests wait in lanes. One task, alive while there are any, owns the connection and sends them.

    def _sending_loop(self) -> asyncio.AbstractEventLoop:
        """The loop whose task sends in a moment what now enters a lane. Raises `Unavailable` if the store is not open."""
        if not self._open:
            raise Unavailable.not_open(shown(self._url))
        if self._sender is None:
            self._sender = self._loop.create_task(self._send(), name="holdfast-postgres")
        return self._loop

    def _query(self, sql: str, *arguments: object) -> asyncio.Future[list[asyncpg.Record]]:
        loop = self._sending_loop()
        done: asyncio.Future[list[asyncpg.Record]] = loop.create_future()
        deadline = loop.time() + self._timeout_s
        self._queries.append(_Exchange(sql, arguments, deadline, [done], lambda rows: _settle(done, rows)))
        return done

    async def _send(self) -> None:
        try:
            while self._renewals or self._releases or self._acquires or self._queries:
                while self._renewals:
                    await self._perform(self._take_renewals())
                if self._releases or self._acquires:
                    await self._perform_batch(*self._take_batch())
                if self._queries:
                    await self._perform(self._queries.pop(0))
        finally:
            self._sender = None

    def _take_renewals(self) -> _Exchange:
        taken, self._renewals = self._renewals[:BATCH_MAX], self._renewals[BATCH_MAX:]
        # Rows are locked in the order of the arrays, and everybody locks in the order of keys.
        taken.sort(key=attrgetter("key"))
        keys, digests, ttls, deadlines, waiting = zip(*taken, strict=True)

        def answer(rows: list[asyncpg.Record]) -> None:
            for done, standing in zip(waiting, rows[0][0], strict=True):
                _settle(done, _STANDINGS[int(standing)])

        arguments = (quoted_array(keys), array(digests), array(ttls))
        return _Exchange(_RENEW, arguments, min(deadlines), waiting, answer)

    def _take_batch(self) -> tuple[list[Request], int]:
        """The next requests, and how many of them are the first of their key; those come first, in key order."""
        taken, self._releases = self._releases[:BATCH_MAX], self._releases[BATCH_MAX:]
        room = BATCH_MAX - len(taken)
        taken += self._acquires[:room]
        self._acquires = self._acquires[room:]
        self._acquiring = {request[0] for request in self._acquires}
        batch, firsts = in_order(taken)
        self._collect_in -= len(batch)
        if self._collect_in <= 0:
            self._collect_in = COLLECT_EVERY
            deadline = self._loop.time() + 2 * self._timeout_s
            self._queries.append(_Exchange(COLLECT, COLLECT_LIMITS, deadline, (), lambda rows: None))
        return batch, firsts

    async def _perform_batch(self, batch: list[Request], firsts: int) -> None:
        if self._free_in > 0:
            self._free_in -= 1
        elif firsts == len(batch) and is_uniform(columns := tuple(zip(*batch, strict=True))):
            left: list[Request] = []
            await self._perform(self._free_exchange(batch, columns, left))
            batch, firsts = left, len(left)
        if batch:
            # At once: a release that has come meanwhile must not overtake an acquire that was left.
            await self._perform(self._batch_exchange(batch, firsts))

    def _free_exchange(self, batch: list[Request], columns: Columns, left: list[Request]) -> _Exchange:
        """For a uniform batch of different keys. Fills `left` with those whose lock was not simply free, or theirs."""
        keys, tokens, ttls, _, fences, deadlines, waiting = columns
        digests = [*map(digest_of, tokens)]
        if ttls[0]:
            sql, arguments = acquire_statement(keys, digests, self._holder, ttls[0], fences[0])
        else:
            sql, arguments = release_statement(keys, digests)

        def answer(rows: list[asyncpg.Record]) -> None:
            fence = common_fence(rows[0], len(keys))
            if fence is not None and not self._waiters:
                alike = Grant(fence) if ttls[0] else True
                for waits in waiting:
                    if not waits.done():
                        waits.set_result(alike)
                return
            done = fences_done(rows[0], keys)
            if len(done) < len(batch):
                self._free_in = FREE_PAUSE
                left.extend(request for request in batch if request[0] not in done)
            self._settle_batch(batch, digests, done, {})

        return _Exchange(sql, arguments, min(deadlines), waiting, answer)

    def _batch_exchange(self, batch: list[Request], firsts: int) -> _Exchange:
        keys, tokens, ttls, queues, fences, deadlines, waiting = zip(*batch, strict=True)
        digests = [*map(digest_of, tokens)]
        arguments = (
            *(self._holder, self._channel, firsts),
            *(quoted_array(keys), array(digests)),
            *(array(numbers) for numbers in (ttls, queues, fences)),
        )

        def answer(rows: list[asyncpg.Record]) -> None:
            self._settle_batch(batch, digests, *answers_of(rows[0]))

        return _Exchange(_BATCH, arguments, min(deadlines), waiting, answer)

    def _settle_batch(
        self, batch: list[Request], digests: list[str], fences: Mapping[str, int], late: Mapping[int, Sequence[Any]]
    ) -> None:
        """Answer by `late`, which goes by position, or else by `fences`, which go by key. Who is in neither waits on."""
        grant = Grant(0)
        for at, (key, token, ttl_ms, queue_ms, _, _, done) in enumerate(batch):
            if late and at in late:
                fence, holder, remaining_ms = late[at]
            elif key in fences:
                fence, holder, remaining_ms = fences[key], "", 0
            else:
                continue
            if fence <= 0 and queue_ms > 0:
                # Only now: a wake-up that overtook this answer is for all waiters of the key.
                self._expect_wake(digests[at], token)
            elif self._waiters and (fence > 0 or not ttl_ms):
                self._waiters.pop(digests[at], None)
            if done.done():
                continue
            if not ttl_ms:
                done.set_result(fence > 0)
            elif fence > 0:
                if fence != grant.fence:  # what a batch grants has mostly one fence
                    grant = Grant(fence)
                done.set_result(grant)
            else:
                done.set_result(Busy(holder, remaining_ms))

    async def _perform(self, exchange: _Exchange) -> None:
        applied: bool | None = False
        try:
            if self._loop.time() >= exchange.deadline:
                raise TimeoutError("earlier requests took all the time there was")
            if self._connection is None or self._connection.is_closed():
                self._connection = None
                self._connection = await connect(self._url, exchange.deadline)
            applied = None
            with ended_at(self._connection, exchange.deadline):
                try:
                    rows = await self._connection.fetch(exchange.sql, *exchange.arguments)
                except ROLLED_BACK:
                    # Certainly not applied, so this is not a blind retry.
                    rows = await self._connection.fetch(exchange.sql, *exchange.arguments)
        except ValueError as failure:
            self._fail(exchange.waiting, failure, applied=False)
        except asyncpg.ReadOnlySQLTransactionError as failure:
            self._hang_up()
            self._fail(exchange.waiting, read_only(failure, self._url), applied=False)
        except FAILURES as failure:
            self._fail(exchange.waiting, failure, applied=applied)
            if self._connection is None or (isinstance(failure, BROKEN) and applied is None):
                # Those behind it would each wait for the same failure.
                self._fail_unsent(failure)
                self._hang_up()
        else:
            exchange.answer(rows)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    def _fail_unsent(self, failure: Exception) -> None:
        unsent: list[asyncio.Future[Any]] = [renewal.done for renewal in self._renewals]
        unsent += [done for *_, done in (*self._releases, *self._acquires)]
        unsent += [done for query in self._queries for done in query.waiting]
        for lane in (self._renewals, self._releases, self._acquires, self._acquiring, self._queries):
            lane.clear()
        self._fail(unsent, failure, applied=False)

    def _fail(self, waiting: Iterable[asyncio.Future[Any]], failure: Exception, *, applied: bool | None) -> None:
        for done in waiting:
            if not done.done():
                done.set_exception(explained(failure, shown(self._url), applied=applied))

    def _expect_wake(self, digest: str, token: str) -> None:
        self._waiters[digest] = token
        if len(self._waiters) > WAITING_MAX:
            del self._waiters[next(iter(self._waiters))]
        if self._listener is None and self._open:  # else nobody would end it
            self._listener = Listener(
                self._url, self._channel, self._heard, runtime=self._runtime, timeout_s=self._timeout_s
            )

    def _heard(self, payload: str) -> None:
        digest, key = payload[:DIGEST_CHARS], payload[DIGEST_CHARS:]
        self._wake(key, self._waiters.get(digest, ""))


def _settle(done: asyncio.Future[Any], answer: object) -> None:
    if not done.done():
        done.set_result(answer)
