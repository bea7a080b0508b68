"""Retention of runs and posts in Redis, in the manner of `retention`.

A run goes from the inside out, its own record last: whatever a batch leaves of it, the next one finds by that record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.core.job import JobId, Tenant
from holdfast.core.record import ENDED, OF_A_RUN, Kind
from holdfast.core.retention import Limits
from holdfast.ports import JobEvent, Pruned
from holdfast.stores.batch import RecordPlace
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.family import ids_of, load_standings, survey
from holdfast.stores.redis.index import remove_record
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.load import Ask
from holdfast.stores.redis.retention import Removal
from holdfast.stores.redis.rows import Standing, bare_job, event_from, standing_of
from holdfast.stores.retention import EVENTS_MAX, FAMILIES_MAX, LOOK_MAX, LOOSE, RECORDS, RUNS_MAX, Ended, Found

LAST_LOOK = 10
"""Events that are read to find the last one of a run, unless they are all of another tenant's run."""


async def find(ask: Ask, keys: Keys, limits: Limits, after: int) -> Found[Ended]:
    first = f"({after - RECORDS}"
    [flat] = await ask(("ZRANGE", keys.filed, first, "+inf", "BYSCORE", "LIMIT", 0, LOOK_MAX, "WITHSCORES"))
    rows = (await ask(("HMGET", keys.records, *(name for name, _ in flat))))[0] if flat else []
    found: list[Ended] = []
    runs = 0
    for (name, score), row in zip(flat, rows, strict=True):
        if row is None:
            continue
        kind, tenant, record_id = name.decode().split("\0")
        if kind not in (Kind.RUN, Kind.POST):
            continue  # before its age is looked at: other records are written anew in their old place
        standing = standing_of(row)
        if standing.created_at >= limits.ended_before:
            return Found(found, LOOSE)  # from here on they are all too young
        record = Ended(int(float(score)), Kind(kind), Tenant(tenant), record_id)
        if standing.state not in ENDED[record.kind]:
            continue
        if record.kind is Kind.RUN:
            if not await _may_go(ask, keys, record, limits):
                continue
            runs += 1
        found.append(record)
        if len(found) == FAMILIES_MAX or runs == RUNS_MAX:
            return Found(found, RECORDS + record.seq)
    return Found(found, RECORDS + int(float(flat[-1][1])) if len(flat) == LOOK_MAX else LOOSE)


async def prune(ask: Ask, keys: Keys, found: Found[Ended], limits: Limits) -> tuple[Commands, Pruned]:
    """What is to be written, if nobody writes meanwhile."""
    removal = Removal(keys, EVENTS_MAX)
    standings: dict[RecordPlace, Standing] = {}
    await load_standings(ask, keys, (record.place for record in found.going), standings)
    after = found.after
    for record in found.going:
        standing = standings.get(record.place)
        if standing is None or standing.state not in ENDED[record.kind]:
            continue  # it was started again since
        if record.kind is Kind.POST:
            remove_record(removal.commands, keys, record.place, standing)
            continue
        if not await _is_over(ask, keys, record, limits):
            continue
        jobs = removal.jobs
        is_gone = await _remove_run(ask, keys, record, limits, removal)
        if is_gone:
            remove_record(removal.commands, keys, record.place, standing)
        elif removal.events_left <= 0 or removal.jobs > jobs:
            after = RECORDS + record.seq - 1
            break
    return await removal.finish(ask), Pruned(removal.jobs, after)


async def _is_over(ask: Ask, keys: Keys, run: Ended, limits: Limits) -> bool:
    """Whether nothing of it has happened since the limits, and its last event is not the newest of all."""
    async for event in _events(ask, keys, run, LAST_LOOK, "REV"):
        [newest] = await ask(("XREVRANGE", keys.events, "+", "-", "COUNT", 1))
        return bool(newest[0][0] != b"%d-0" % event.number and event.at < limits.ended_before)
    return True


async def _events(ask: Ask, keys: Keys, run: Ended, page: int, *order: str) -> AsyncIterator[JobEvent]:
    """Those of the run's tenant: ids of runs are unique only within one. They are read as they are taken."""
    start = 0
    while True:
        [numbers] = await ask(("ZRANGE", keys.run_history(run.id), start, start + page - 1, *order))
        if not numbers:
            return
        entries = await ask(*(("XRANGE", keys.events, b"%b-0" % n, b"%b-0" % n) for n in numbers))
        for number, entry in zip(numbers, entries, strict=True):
            if entry and (event := event_from(int(number), entry[0][1][1])).tenant == run.tenant:
                yield event
        start += page


async def _may_go(ask: Ask, keys: Keys, run: Ended, limits: Limits) -> bool:
    """Whether the run ended before the limits, and nothing of it is needed any more."""
    if not await _is_over(ask, keys, run, limits):
        return False
    surveyed = await survey(ask, keys, await _origins(ask, keys, run))
    return all(surveyed.may_go(family, limits, with_run=run.id) for family in surveyed.families)


async def _origins(ask: Ask, keys: Keys, run: Ended) -> list[JobId]:
    [found] = await ask(("ZRANGE", keys.run(run.id), 0, -1))
    ids = ids_of(found)
    rows = (await ask(("HMGET", keys.jobs, *ids)))[0] if ids else []
    jobs = [bare_job(row) for row in rows if row is not None]
    return sorted({job.origin for job in jobs if job.tenant == run.tenant})


async def _remove_run(ask: Ask, keys: Keys, run: Ended, limits: Limits, removal: Removal) -> bool:
    """A part of it, its jobs first; True: all but its own record goes."""
    origins = (await _origins(ask, keys, run))[:FAMILIES_MAX]
    if origins:
        # Once more: a replay may have been submitted since.
        surveyed = await survey(ask, keys, origins)
        free = [family for family in surveyed.families if surveyed.may_go(family, limits, with_run=run.id)]
        await removal.families(ask, free)
        return False
    await _remove_records(ask, keys, run, removal)
    if removal.events_left > 0:
        await _remove_own_events(ask, keys, run, removal)
    return removal.events_left > 0


async def _remove_records(ask: Ask, keys: Keys, run: Ended, removal: Removal) -> None:
    standings: dict[RecordPlace, Standing] = {}
    for kind in OF_A_RUN:
        room = removal.events_left - len(standings)
        if room == 0:
            break
        [ids] = await ask(("ZRANGE", keys.child(kind.value, run.tenant, run.id), 0, room - 1))
        await load_standings(ask, keys, ((kind.value, run.tenant, name.decode()) for name in ids), standings)
    for place, standing in standings.items():
        remove_record(removal.commands, keys, place, standing)
    removal.events_left -= len(standings)


async def _remove_own_events(ask: Ask, keys: Keys, run: Ended, removal: Removal) -> None:
    async for event in _events(ask, keys, run, removal.events_left):
        removal.commands.also("XDEL", keys.events, f"{event.number}-0")
        removal.commands.drop(keys.run_history(run.id), event.number)
        if event.job_id:
            removal.commands.drop(keys.history(event.job_id), event.number)
        removal.note(run.tenant, [event.number])
        if removal.events_left == 0:
            break
