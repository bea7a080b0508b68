"""All that a plane keeps in Redis, page by page. Nobody may write meanwhile: `portable` sees to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.core.effect import place_of
from holdfast.core.job import JobId, Tenant
from holdfast.core.record import Kind
from holdfast.stores.portable import (
    PAGE,
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
)
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.line import Line
from holdfast.stores.redis.link import NAMES, PlaneLink
from holdfast.stores.redis.load import Ask
from holdfast.stores.redis.rows import effect_from, event_from, full_job, letter_from, record_from

SCAN = 1000


async def pages(link: PlaneLink, keys: Keys) -> AsyncIterator[Page]:
    """Of one kind each, none of them empty."""
    ask = link.ask
    async for page in _jobs(ask, keys):
        yield page
    for page in _paged(await _keys(ask, keys)):
        yield page
    async for page in _events(ask, keys):
        yield page
    async for page in _records(ask, keys):
        yield page
    for rows in (
        await _effects(ask, keys),
        await _letters(ask, keys),
        await _pruned(ask, keys),
        await _deliveries(link, keys),
        await _snapshot(ask, keys),
    ):
        for page in _paged(rows):
            yield page


async def names(link: PlaneLink, keys: Keys, prefix: str) -> list[str]:
    """Of all keys of the plane that begin with it, without it. Walks through the whole server: not for what is done at work."""
    pattern = "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix) + "*"

    async def walk(line: Line) -> list[str]:
        # On one connection from the beginning to the end: a cursor means nothing to another server.
        found: set[str] = set()
        cursor = "0"
        while True:
            next_cursor, page = await line.run(NAMES, (keys.head, keys.never), (cursor, pattern, SCAN))
            found.update(name.decode().removeprefix(prefix) for name in page)
            cursor = next_cursor.decode()
            if cursor == "0":
                return sorted(found)

    return await link.served(walk)


def _paged(rows: Iterable[Row]) -> Iterator[Page]:
    left = iter(rows)
    while page := list(islice(left, PAGE)):
        yield page


async def _ranks(ask: Ask, key: str) -> AsyncIterator[list[bytes]]:
    """The members of a sorted set, a page at a time."""
    start = 0
    while True:
        [members] = await ask(("ZRANGE", key, start, start + PAGE - 1))
        if not members:
            return
        yield members
        start += PAGE


async def _jobs(ask: Ask, keys: Keys) -> AsyncIterator[Page]:
    async for ids in _ranks(ask, keys.came):
        columns = await ask(*(("HMGET", key, *ids) for key in (keys.jobs, keys.payloads, keys.results)))
        yield [JobRow(full_job(*values)) for values in zip(*columns, strict=True)]


async def _keys(ask: Ask, keys: Keys) -> Sequence[Row]:
    found = []
    for name, value in await _pairs(ask, keys.keys):
        tenant, key = name.split("\0")
        digest, job_id = value.decode().split("\0")
        found.append(KeyRow(Tenant(tenant), key, digest, JobId(job_id)))
    return sorted(found, key=lambda row: (row.tenant, row.key))


async def _events(ask: Ask, keys: Keys) -> AsyncIterator[Page]:
    after = "-"
    while True:
        [entries] = await ask(("XRANGE", keys.events, after, "+", "COUNT", PAGE))
        if not entries:
            return
        yield [EventRow(event_from(int(entry.partition(b"-")[0]), fields[1])) for entry, fields in entries]
        after = f"({entries[-1][0].decode()}"


async def _records(ask: Ask, keys: Keys) -> AsyncIterator[Page]:
    async for members in _ranks(ask, keys.filed):
        rows, bodies = await ask(("HMGET", keys.records, *members), ("HMGET", keys.bodies, *members))
        found: list[Row] = []
        for member, row, body in zip(members, rows, bodies, strict=True):
            kind, tenant, record_id = member.decode().split("\0")
            # Who is present is of those who work on the store, not of the store.
            if kind != Kind.PRESENCE:
                found.append(RecordRow(record_from(Kind(kind), Tenant(tenant), record_id, row, body)))
        if found:
            yield found


async def _effects(ask: Ask, keys: Keys) -> Sequence[Row]:
    [ids] = await ask(("SMEMBERS", keys.effected))
    rows = await ask(*(("HVALS", keys.effects(job_id.decode())) for job_id in ids)) if ids else []
    effects = [effect_from(row) for each in rows for row in each]
    return [EffectRow(effect) for effect in sorted(effects, key=place_of)]


async def _letters(ask: Ask, keys: Keys) -> Sequence[Row]:
    found = [LetterRow(int(name), *letter_from(row)) for name, row in await _pairs(ask, keys.letters)]
    return sorted(found, key=lambda row: row.number)


async def _pruned(ask: Ask, keys: Keys) -> Sequence[Row]:
    return [PrunedRow(Tenant(tenant), int(number)) for tenant, number in sorted(await _pairs(ask, keys.pruned))]


async def _deliveries(link: PlaneLink, keys: Keys) -> Sequence[Row]:
    found: list[DeliveryRow] = []
    for name in await names(link, keys, keys.inbox("")):
        [members] = await link.ask(("ZRANGE", keys.inbox(name), 0, -1))
        for member in members:
            fence, _, job_id = member.decode().partition(":")
            found.append(DeliveryRow(name, int(fence), JobId(job_id)))
    return sorted(found, key=lambda row: (row.worker, row.fence, row.job_id))


async def _snapshot(ask: Ask, keys: Keys) -> Sequence[Row]:
    [(fence, seq, at, workers)] = await ask(("HMGET", keys.snapshot, "fence", "seq", "at", "workers"))
    return [] if fence is None else [SnapshotRow(int(fence), int(seq), float(at), workers)]


async def _pairs(ask: Ask, key: str) -> list[tuple[str, Any]]:
    [flat] = await ask(("HGETALL", key))
    return [(name.decode(), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
