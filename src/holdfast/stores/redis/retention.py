"""Retention in Redis: what may go is looked for beside the writer, and removed in small writes like any other.

Jobs and records are walked through in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.job import JobId
from holdfast.core.retention import Limits
from holdfast.ports import Pruned
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.family import Family, leavings_of, remove_events, remove_family, survey
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.load import Ask
from holdfast.stores.redis.rows import bare_job, event_from
from holdfast.stores.retention import (
    EVENTS_MAX,
    FAMILIES_MAX,
    LOOK_MAX,
    LOOSE,
    RECORDS,
    Found,
    Loose,
    Origin,
    loose_among,
)


class Removal:
    """Commands that remove jobs, and how far events are gone by them."""

    def __init__(self, keys: Keys, events_max: int) -> None:
        self.commands = Commands()
        self.jobs = 0
        self.events_left = events_max
        self._keys = keys
        self._gone: dict[str, int] = {}

    async def families(self, ask: Ask, families: Sequence[Family]) -> int:
        """Events first, oldest first and no more than are left to take; jobs of which none is left then. Returns how many
        families are gone altogether, of those asked for, in their order."""
        jobs = [job for family in families for job in family.jobs]
        left = await leavings_of(ask, self._keys, jobs, self.events_left)
        for gone, family in enumerate(families):
            for job in family.jobs:
                numbers = left.events[job.id][: self.events_left]
                remove_events(self.commands, self._keys, job, numbers)
                self.note(job.tenant, numbers)
            if self.events_left <= 0:
                return gone
            remove_family(self.commands, self._keys, family, left)
            self.jobs += len(family.jobs)
        return len(families)

    def note(self, tenant: str, numbers: Sequence[int]) -> None:
        """These events go."""
        self.events_left -= len(numbers)
        if numbers:
            self._gone[tenant] = max(self._gone.get(tenant, 0), *numbers)

    async def finish(self, ask: Ask) -> Commands:
        """All of it, with the note of how far events are gone."""
        if self._gone:
            [known] = await ask(("HMGET", self._keys.pruned, *self._gone))
            for (tenant, number), before in zip(self._gone.items(), known, strict=True):
                self.commands.put(self._keys.pruned, tenant, max(number, int(before or 0)))
        return self.commands


async def find(ask: Ask, keys: Keys, limits: Limits, after: int) -> Found[Origin]:
    [flat] = await ask(("ZRANGE", keys.came, f"({after}", "+inf", "BYSCORE", "LIMIT", 0, LOOK_MAX, "WITHSCORES"))
    came = [Origin(int(float(score)), JobId(job_id.decode())) for job_id, score in flat]
    rows = (await ask(("HMGET", keys.jobs, *(each.id for each in came))))[0] if came else []
    ended: list[Origin] = []
    is_all = True
    for each, row in zip(came, rows, strict=True):
        if row is None:
            continue  # another plane has just removed it
        job = bare_job(row)
        if job.created_at >= limits.ended_before:
            is_all = False  # from here on they are all too young
            break
        if job.replay_of is None and job.is_terminal:
            ended.append(each)
    free = await _free(ask, keys, ended, limits)
    if len(free) >= FAMILIES_MAX:
        return Found(free[:FAMILIES_MAX], free[FAMILIES_MAX - 1].seq)
    if is_all and len(came) == LOOK_MAX:
        return Found(free, came[-1].seq)
    [records, events] = await ask(("EXISTS", keys.records), ("EXISTS", keys.events))
    return Found(free, RECORDS if records else LOOSE if events else None)


async def _free(ask: Ask, keys: Keys, origins: Sequence[Origin], limits: Limits) -> list[Origin]:
    """Those whose families may go; at least as many as are removed at once, if there are so many."""
    free: list[Origin] = []
    for start in range(0, len(origins), FAMILIES_MAX):
        page = origins[start : start + FAMILIES_MAX]
        surveyed = await survey(ask, keys, [origin.id for origin in page])
        free += [
            origin for origin, family in zip(page, surveyed.families, strict=True) if surveyed.may_go(family, limits)
        ]
        if len(free) >= FAMILIES_MAX:
            break
    return free


async def prune(ask: Ask, keys: Keys, found: Found[Origin], limits: Limits) -> tuple[Commands, Pruned]:
    """What is to be written, if nobody writes meanwhile."""
    # Once more: a replay may have been submitted since.
    surveyed = await survey(ask, keys, [origin.id for origin in found.going])
    going = [
        (origin, family)
        for origin, family in zip(found.going, surveyed.families, strict=True)
        if family.jobs and surveyed.may_go(family, limits)
    ]
    removal = Removal(keys, EVENTS_MAX)
    gone = await removal.families(ask, [family for _, family in going])
    commands = await removal.finish(ask)
    if gone < len(going):
        # The history before the job: whatever is left of this family, the next batch finds again.
        return commands, Pruned(removal.jobs, going[gone][0].seq - 1)
    return commands, Pruned(removal.jobs, found.after)


async def find_loose(ask: Ask, keys: Keys, limits: Limits, after: int) -> Found[Loose]:
    """Events that nothing takes with it. The newest of all stays."""
    [entries, newest] = await ask(
        ("XRANGE", keys.events, f"({after - LOOSE}-0", "+", "COUNT", LOOK_MAX),
        ("XREVRANGE", keys.events, "+", "-", "COUNT", 1),
    )
    events = [(event_from(int(name.partition(b"-")[0]), fields[1]), name == newest[0][0]) for name, fields in entries]
    rows = [(event.number, event.tenant, event.job_id or event.run, event.at, last) for event, last in events]
    return loose_among(rows, limits)


async def prune_loose(ask: Ask, keys: Keys, found: Found[Loose]) -> tuple[Commands, Pruned]:
    removal = Removal(keys, EVENTS_MAX)
    for event in found.going:
        removal.commands.also("XDEL", keys.events, f"{event.number}-0")
        removal.note(event.tenant, [event.number])
    return await removal.finish(ask), Pruned(0, found.after)
