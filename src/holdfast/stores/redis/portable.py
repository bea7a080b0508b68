"""A plane in Redis as a whole: read while nobody may write, and filled beside its place, which it then takes (`arrival`).

To keep others from writing is to have the turn (write.lua) and to keep it. A plane that works on the store waits for
that, and says that the store is away if it takes longer than its calls may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.core.record import Kind
from holdfast.errors import StoreUnavailable
from holdfast.locks.errors import LockError
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.locks.stores.redis.wire import Caller, parse_url
from holdfast.ports import Delivery
from holdfast.stores.batch import BatchLedger, place_of
from holdfast.stores.portable import (
    Check,
    DeliveryRow,
    EffectRow,
    EventRow,
    JobRow,
    KeyRow,
    LetterRow,
    Page,
    PrunedRow,
    RecordRow,
    Row,
    SnapshotRow,
    at_work,
    not_empty,
    outdated,
)
from holdfast.stores.redis.arrival import BESIDE, clear, complete, decide
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.database import namespace_of
from holdfast.stores.redis.dump import pages
from holdfast.stores.redis.flush import flush
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import TURN, PlaneLink, translated
from holdfast.stores.redis.load import NUMBERS, Loaded, Numbers
from holdfast.stores.redis.rows import LetterRow as StoredLetter
from holdfast.stores.redis.rows import event_row, letter_row
from holdfast.stores.redis.schema import KNOWN, prepare
from holdfast.stores.redis.writer import Draft, RedisBatches
from holdfast.stores.sql_portable import first_look

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

TIMEOUT_S = 30.0
"""For one question. What is moved may take as long as it takes."""
TURN_MS = 20_000
RENEW_S = 5.0


def open_portable(url: str, *, runtime: Runtime) -> RedisPortable:
    return RedisPortable(url, runtime)


class RedisPortable:
    def __init__(self, url: str, runtime: Runtime) -> None:
        namespace = namespace_of(url)
        self._runtime = runtime
        self._keys = Keys(namespace)
        self._beside = Keys(namespace, BESIDE)
        caller = Caller(url, holder="moving", prefix=self._keys.prefix, runtime=runtime, timeout_s=TIMEOUT_S)
        self._subject = caller.subject
        self._link = PlaneLink(parse_url(url), caller, slot=slot_of(self._keys.head))

    async def dump(self, *, alone: bool) -> AsyncGenerator[Page]:
        async with self._connected():
            [version] = await self._link.ask(("HGET", self._keys.settings, "version"))
            if version is None:
                raise StoreUnavailable(self._subject, "there is no plane in this namespace", applied=False)
            if int(version) != KNOWN:
                raise outdated(self._subject)
            await complete(self._link, self._keys, self._runtime)
            if alone:
                await self._refuse_company()
            async with self._having_the_turn() as turn:
                found = [page async for page in pages(self._link, self._keys)]
                if not await self._keep(turn):
                    raise StoreUnavailable(self._subject, "it was not read in one go; try again", applied=False)
            for page in found:
                yield page
            if alone:
                await self._refuse_company()

    async def load(self, pages_in: AsyncIterator[Page], *, check: Check) -> None:
        async with self._connected():
            await prepare(self._link, self._keys, self._runtime)
            async with self._having_the_turn() as turn:
                await self._refuse_company()
                if not await self._is_empty():
                    raise not_empty(self._subject)
                try:
                    await clear(self._link, self._keys)
                    async for page in pages_in:
                        await self._fill(page)
                    await check(pages(self._link, self._beside))
                    if not await decide(self._link, self._keys, turn=turn, arrival=self._runtime.token()):
                        raise at_work(self._subject)
                except BaseException:
                    await clear(self._link, self._keys)
                    raise
                # Not to be undone from here on. If it does not come to its end, whoever opens the store next sees to it.
                await complete(self._link, self._keys, self._runtime)

    # -- others ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        self._link.open()
        try:
            yield
        except LockError as failure:
            raise translated(failure, self._subject, applied=None) from None
        finally:
            await self._link.close()

    @asynccontextmanager
    async def _having_the_turn(self) -> AsyncIterator[str]:
        turn = self._runtime.token()
        while True:
            [taken] = await self._link.ask(("SET", self._keys.turn, turn, "NX", "PX", TURN_MS))
            if taken is not None:
                break
            await asyncio.sleep(0.01)

        async def keep() -> None:
            while True:
                await asyncio.sleep(RENEW_S)
                with suppress(LockError):
                    await self._keep(turn)

        keeping = asyncio.create_task(keep(), name="holdfast-redis-turn")
        try:
            yield turn
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            with suppress(LockError):
                await self._keep(turn, 0)

    async def _keep(self, turn: str, ms: int = TURN_MS) -> bool:
        """Whether it was ours until now: then nobody has written meanwhile."""
        return bool(await self._link.run(TURN, (self._keys.turn,), (turn, ms)))

    async def _refuse_company(self) -> None:
        [(seconds, _)] = await self._link.ask(("TIME",))
        present = ("ZRANGE", self._keys.due(Kind.PRESENCE.value), int(seconds), "+inf", "BYSCORE", "LIMIT", 0, 1)
        if (await self._link.ask(present))[0]:
            raise at_work(self._subject)

    async def _is_empty(self) -> bool:
        """A plane that was started and never used leaves a snapshot and who was present."""
        async for _ in pages(self._link, self._keys):
            return isinstance(_[0], SnapshotRow)
        return True

    # -- filling -----------------------------------------------------------------------------------

    async def _fill(self, page: Page) -> None:
        keys = self._beside
        batches = RedisBatches(
            self._link, keys, runtime=self._runtime, timeout_s=TIMEOUT_S, now=self._runtime.now, words=lambda _: []
        )

        async def draft() -> tuple[Draft, None]:
            head = await batches.head()
            [numbers] = await self._link.ask(("HMGET", keys.numbers, *NUMBERS))
            loaded = Loaded(BatchLedger(0.0), head, Numbers(*(int(n or 0) for n in numbers)), "", {}, {})
            loaded.ledger.last_number = loaded.numbers.event
            beside = Commands()
            for row in page:
                _take(loaded.ledger, beside, keys, row)
            commands = flush(keys, loaded)
            for command in beside.commands():
                commands.also(*command)
            return Draft(head, commands, loaded.ledger), None

        await batches.decided(draft)


def _take(ledger: BatchLedger, beside: Commands, keys: Keys, row: Row) -> None:
    """As if the row had just come; `beside` is for what has a number of its own already."""
    match row:
        case JobRow(job):
            ledger.add_job(job, first_look(row))
            if not job.is_terminal:
                place = (job.tenant, job.state)
                ledger.counts[place] = ledger.counts.get(place, 0) + 1
        case KeyRow():
            ledger.add_key(row.tenant, row.key, row.digest, row.job_id)
        case RecordRow(record):
            ledger.written_records[place_of(record)] = record
        case EffectRow(effect):
            ledger.write_effect(effect)
        case DeliveryRow():
            ledger.send(Delivery(row.worker, row.job_id, row.fence))
        case _:
            _take_beside(beside, keys, row)


def _take_beside(beside: Commands, keys: Keys, row: EventRow | LetterRow | PrunedRow | SnapshotRow) -> None:
    match row:
        case EventRow(event):
            number = event.number
            beside.also("XADD", keys.events, f"{number}-0", "e", event_row(event))
            if event.job_id:
                beside.also("ZADD", keys.history(event.job_id), number, number)
            if event.run:
                beside.also("ZADD", keys.run_history(event.run), number, number)
            beside.also("HSET", keys.numbers, "event", number, "at", event.at)
        case LetterRow():
            stored = StoredLetter(row.tenant, row.job_id, row.reason, row.at, row.replayed_as)
            beside.also("HSET", keys.letters, row.number, letter_row(stored))
            beside.also("ZADD", keys.letters_of(row.tenant), row.number, row.number)
            beside.also("ZADD", keys.job_letters(row.job_id), row.number, row.number)
            beside.also("HSET", keys.numbers, "letter", row.number)
        case PrunedRow():
            beside.also("HSET", keys.pruned, row.tenant, row.number)
        case SnapshotRow():
            registry = ("fence", row.fence, "seq", row.seq, "at", row.at, "workers", row.workers)
            beside.also("HSET", keys.snapshot, *registry)
