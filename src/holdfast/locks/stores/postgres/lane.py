"""A lane of the Postgres store: one connection, and what waits to be sent on it.

While one batch is under way, the requests that arrive are collected and go out as the next one, so a batch costs one
round trip and one commit however many tasks share it. A batch of free locks goes the shorter way of `free`, all
others through `holdfast_batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, Renewal, Standing
from holdfast.locks.stores import shown
from holdfast.locks.stores.postgres.batch import (
    BATCH_MAX,
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
from holdfast.locks.stores.postgres.history import COLLECT, COLLECT_EVERY, COLLECT_LIMITS
from holdfast.locks.stores.postgres.link import (
    BROKEN,
    FAILURES,
    ROLLED_BACK,
    connect,
    ended_at,
    explained,
    hang_up,
    read_only,
)

if TYPE_CHECKING:
    from holdfast.locks.stores.postgres.waiters import Waiters

#: Batches that go no shorter way after one in which a lock was fought over, or new: there it is a round trip too many.
FREE_PAUSE = 50

# Arrays travel as text: the driver's own encoding of them costs more than the statement, and to read any but texts it asks
# on each connection what their type is, which costs more than dozens of them.
_BATCH = """
    SELECT done_keys, done_fences::text[], late_at::text[], late_fences::text[], late_holders, late_remaining_ms::text[]
    FROM holdfast_batch($1, $2, $3, $4::text::text[], $5::text::text[], $6::text::int[], $7::text::int[], $8::text::int[])
"""
_RENEW = "SELECT holdfast_renew($1::text::text[], $2::text::text[], $3::text::int[])::text[]"
_STANDINGS = (Standing.GONE, Standing.OWNED, Standing.TAKEN)


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


class Lane:
    """One task, alive while anything waits here, owns the connection and sends it."""

    def __init__(
        self,
        url: str,
        *,
        holder: str,
        waiters: Waiters,
        on_turn: Callable[[Lane], None],
        is_first: bool,
        timeout_s: float,
    ) -> None:
        self._url = url
        self._holder = holder
        self._waiters = waiters
        self._on_turn = on_turn
        self._is_first = is_first
        self._timeout_s = timeout_s
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

    def __len__(self) -> int:
        """How many acquires and releases wait."""
        return len(self._releases) + len(self._acquires)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def open(self) -> None:
        self._open = True
        self._loop = asyncio.get_running_loop()

    async def prove(self, deadline: float) -> None:
        """Have a connection that answers: one that rested for long may have been cut where nobody saw it. Raises one of FAILURES."""
        connection = self._connection
        if connection is None or connection.is_closed():
            await self._connect(deadline)
            return
        try:
            with ended_at(connection, deadline):
                await connection.execute("SELECT 1")
        except FAILURES:
            connection.terminate()
            raise

    async def _connect(self, deadline: float) -> asyncpg.Connection:
        self._connection = None
        self._connection = await connect(self._url, deadline)
        return self._connection

    def refuse(self) -> None:
        """Take no more. What is under way is still answered; what was not sent ends as not applied."""
        self._open = False
        self._fail_unsent(asyncpg.InterfaceError("the store was closed"))

    async def drain(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def hang_up(self) -> None:
        if self._sender is not None:  # there was no time to wait for it
            self._sender.add_done_callback(lambda _: self._terminate())  # of what it is about to connect
        await hang_up(self._connection, timeout_s=self._timeout_s)

    def ask(self, key: str, token: str, ttl_ms: int, queue_ms: int, fences: int) -> asyncio.Future[Any]:
        """Acquire or, with a ttl of 0, release."""
        loop = self._sending_loop()
        # The loop's own `create_future` is this, one call deeper.
        done: asyncio.Future[Any] = asyncio.Future(loop=loop)
        request = (key, token, ttl_ms, queue_ms, fences, loop.time() + self._timeout_s, done)
        if ttl_ms:
            self._acquires.append(request)
            self._acquiring.add(key)
        # Releases go first, but never past an earlier acquire of the same key: an acquire whose
        # caller has given up would then be granted after the release that was to undo it.
        elif key in self._acquiring:
            self._acquires.append(request)
        else:
            self._releases.append(request)
        return done

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[Standing]]:
        loop = self._sending_loop()
        deadline = loop.time() + self._timeout_s
        answers: list[asyncio.Future[Standing]] = [loop.create_future() for _ in renewals]
        for (key, token, ttl_ms), done in zip(renewals, answers, strict=True):
            self._renewals.append(_Renew(key, digest_of(token), ttl_ms, deadline, done))
        return asyncio.gather(*answers)

    def query(self, sql: str, *arguments: object) -> asyncio.Future[list[asyncpg.Record]]:
        loop = self._sending_loop()
        done: asyncio.Future[list[asyncpg.Record]] = loop.create_future()
        deadline = loop.time() + self._timeout_s
        self._queries.append(_Exchange(sql, arguments, deadline, [done], lambda rows: _settle(done, rows)))
        return done

    def hand_over(self, other: Lane, is_theirs: Callable[[str], bool]) -> None:
        """Let another lane send what waits here about those keys, none of which may be under way."""
        for mine, theirs in ((self._releases, other._releases), (self._acquires, other._acquires)):
            theirs += [request for request in mine if is_theirs(request[0])]
            mine[:] = [request for request in mine if not is_theirs(request[0])]
        self._acquiring = {request[0] for request in self._acquires}
        other._acquiring = {request[0] for request in other._acquires}
        if other:
            other._sending_loop()

    def _sending_loop(self) -> asyncio.AbstractEventLoop:
        """The loop whose task sends in a moment what now enters the lane. Raises `Unavailable` if it is not open."""
        if not self._open:
            raise Unavailable.not_open(shown(self._url))
        if self._sender is None:
            self._sender = self._loop.create_task(self._send(), name="holdfast-postgres")
        return self._loop

    async def _send(self) -> None:
        try:
            while self._renewals or self._releases or self._acquires or self._queries:
                while self._renewals:
                    await self._perform(self._take_renewals())
                self._on_turn(self)
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
            *(self._holder, self._waiters.channel, firsts),
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
                self._waiters.expect(digests[at], token)
            elif self._waiters and (fence > 0 or not ttl_ms):
                self._waiters.forget(digests[at])
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
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = await self._connect(exchange.deadline)
            applied = None
            with ended_at(connection, exchange.deadline):
                try:
                    rows = await connection.fetch(exchange.sql, *exchange.arguments)
                except ROLLED_BACK:
                    # Certainly not applied, so this is not a blind retry.
                    rows = await connection.fetch(exchange.sql, *exchange.arguments)
        except ValueError as failure:
            self._fail(exchange.waiting, failure, applied=False)
        except asyncpg.ReadOnlySQLTransactionError as failure:
            self._terminate()
            self._fail(exchange.waiting, read_only(failure, self._url), applied=False)
        except FAILURES as failure:
            self._fail(exchange.waiting, failure, applied=applied)
            if self._connection is None or (isinstance(failure, BROKEN) and applied is None):
                self._terminate()
                if self._is_first:  # else it takes what is left with the next turn
                    # Those behind it would each wait for the same failure.
                    self._fail_unsent(failure)
        else:
            exchange.answer(rows)

    def _terminate(self) -> None:
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


def _settle(done: asyncio.Future[Any], answer: object) -> None:
    if not done.done():
        done.set_result(answer)
