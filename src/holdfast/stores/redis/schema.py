"""The plane's keys in Redis: begun, and refused where they are of a newer kind or could be lost."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.core.job import JobId
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import Runtime
from holdfast.stores.ledger import REVIEW_MAX, look_at
from holdfast.stores.redis import arrival
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.link import PlaneLink
from holdfast.stores.redis.load import text
from holdfast.stores.redis.rows import bare_job
from holdfast.stores.redis.writer import Draft, RedisBatches, info

KNOWN = 1
"""Later versions only add: the release before goes on working on what it finds, unless `oldest` says otherwise."""


class Start(NamedTuple):
    """The last event."""

    number: int
    at: float


async def prepare(link: PlaneLink, keys: Keys, runtime: Runtime) -> Start:
    memory, replication = [info(reply) for reply in await link.ask(("INFO", "memory"), ("INFO", "replication"))]
    if replication["role"] not in {"master", "primary"}:
        raise _refused(link, "this server is a replica; name the primary, or use redis+sentinel://")
    if memory["maxmemory_policy"] != "noeviction":
        policy = memory["maxmemory_policy"]
        raise _refused(link, f"with maxmemory-policy {policy} the server may throw jobs away; set it to noeviction")
    asked = ("HMGET", keys.settings, "version", "oldest", "arriving"), ("HMGET", keys.numbers, "event", "at")
    [(*versions, arriving), (event, at)] = await link.ask(*asked)
    version, oldest = (int(value or 0) for value in versions)
    if oldest > KNOWN:
        raise _refused(
            link, f"its keys have version {version}, this Holdfast knows {KNOWN}; upgrade this process first"
        )
    if version < KNOWN:
        await link.ask(("HSET", keys.settings, "version", KNOWN, "oldest", KNOWN))
    if arriving is not None:
        await arrival.complete(link, keys, runtime)
        [_, (event, at)] = await link.ask(*asked)
    return Start(int(event or 0), float(at or 0))


async def adopt_topics(link: PlaneLink, batches: RedisBatches, keys: Keys, topics: Topics) -> None:
    """Work out anew when each live job is to be looked at, if the topics' limits are not those of before."""
    digest = hashlib.sha256(repr(topics).encode()).hexdigest()
    [known] = await link.ask(("HGET", keys.settings, "topics"))
    if text(known) == digest:
        return
    [ids] = await link.ask(("ZRANGE", keys.live, 0, -1))
    live = [JobId(job_id.decode()) for job_id in ids]
    for start in range(0, len(live), REVIEW_MAX):
        page = live[start : start + REVIEW_MAX]

        async def review(page: list[JobId] = page) -> tuple[Draft, None]:
            head = await batches.head()
            [rows] = await link.ask(("HMGET", keys.jobs, *page))
            commands = Commands()
            for job in (bare_job(row) for row in rows if row is not None):
                due = look_at(job, topics.get)
                if due is not None:
                    commands.list(keys.live, job.id, due)
            return Draft(head, commands), None

        await batches.decided(review)
    # Last: whoever is interrupted begins again.
    await link.ask(("HSET", keys.settings, "topics", digest))


def _refused(link: PlaneLink, why: str) -> StoreUnavailable:
    return StoreUnavailable(link.subject, why, applied=False)
