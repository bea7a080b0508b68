"""A job and its replays, with everything that says whether they may go, and everything that goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.core.effect import UNSETTLED
from holdfast.core.job import Job, JobId
from holdfast.core.record import Kind
from holdfast.core.retention import Limits
from holdfast.stores.batch import RecordPlace
from holdfast.stores.redis.commands import Commands
from holdfast.stores.redis.index import forget_effects, remove_job, remove_record
from holdfast.stores.redis.keys import Keys, joined
from holdfast.stores.redis.load import Ask, Questions
from holdfast.stores.redis.rows import LetterRow, Standing, bare_job, effect_from, event_from, letter_from, standing_of


@dataclass(slots=True)
class Family:
    origin: JobId
    jobs: list[Job] = field(default_factory=list)
    """Bare; those that are there."""
    letters: list[tuple[int, LetterRow]] = field(default_factory=list)
    effect_keys: list[str] = field(default_factory=list)
    has_open_effects: bool = False
    runs: set[tuple[str, str]] = field(default_factory=set)
    """(tenant, run): those that are there."""


@dataclass(slots=True)
class Survey:
    families: list[Family]
    newest_job: str = ""
    """The job of the newest event."""
    newest_letter: int = 0

    def may_go(self, family: Family, limits: Limits, *, with_run: str = "") -> bool:
        """Whether nobody needs the job and its replays any more; but for their run, if it goes with them."""
        if family.has_open_effects:
            return False
        for number, letter in family.letters:
            is_waiting = letter.replayed_as is None and letter.at >= limits.letters_before
            if is_waiting or number == self.newest_letter:
                return False
        return not any(
            not job.is_terminal
            or job.since >= limits.ended_before
            or job.id == self.newest_job
            or (job.run != with_run and (job.tenant, job.run) in family.runs)
            for job in family.jobs
        )


def ids_of(found: list[bytes]) -> list[JobId]:
    return [JobId(job_id.decode()) for job_id in found]


def into(numbers: list[int]) -> Callable[[list[bytes]], None]:
    return lambda found: numbers.extend(map(int, found))


async def survey(ask: Ask, keys: Keys, origins: Sequence[JobId]) -> Survey:
    found = Survey([Family(origin) for origin in origins])
    members: dict[JobId, Family] = {}
    first = Questions(ask)

    def take_newest(entries: list[Any]) -> None:
        for entry, fields in entries:
            found.newest_job = event_from(int(entry.partition(b"-")[0]), fields[1]).job_id

    def take_number(number: bytes | None) -> None:
        found.newest_letter = int(number or 0)

    first.add(take_newest, "XREVRANGE", keys.events, "+", "-", "COUNT", 1)
    first.add(take_number, "HGET", keys.numbers, "letter")
    for family in found.families:
        members[family.origin] = family
        first.add(partial(_take_members, members, family), "ZRANGE", keys.replays(family.origin), 0, -1)
        first.add(partial(_take_effects, family), "HVALS", keys.effects(family.origin))
    await first.answered()
    await _look_closer(ask, keys, members)
    return found


def _take_members(members: dict[JobId, Family], family: Family, ids: list[bytes]) -> None:
    members.update(dict.fromkeys(ids_of(ids), family))


def _take_numbers(numbers: dict[int, Family], family: Family, found: list[bytes]) -> None:
    numbers.update(dict.fromkeys(map(int, found), family))


def _take_effects(family: Family, rows: list[bytes]) -> None:
    for effect in map(effect_from, rows):
        family.effect_keys.append(effect.key)
        family.has_open_effects |= effect.state in UNSETTLED


async def _look_closer(ask: Ask, keys: Keys, members: dict[JobId, Family]) -> None:
    numbers: dict[int, Family] = {}
    second = Questions(ask)
    second.fields(lambda job_id, row: members[job_id].jobs.append(bare_job(row)), keys.jobs, members)
    for job_id, family in members.items():
        second.add(partial(_take_numbers, numbers, family), "ZRANGE", keys.job_letters(job_id), 0, -1)
    await second.answered()
    runs = {(job.tenant, job.run) for family in members.values() for job in family.jobs if job.run}
    there: set[tuple[str, str]] = set()
    third = Questions(ask)
    third.fields(lambda n, row: numbers[n].letters.append((n, letter_from(row))), keys.letters, numbers)
    third.fields(lambda run, _: there.add(run), keys.records, runs, lambda run: joined(Kind.RUN.value, *run))
    await third.answered()
    for family in members.values():
        family.runs = there & {(job.tenant, job.run) for job in family.jobs}


@dataclass(slots=True)
class Leavings:
    """What goes with jobs besides what their families know."""

    events: dict[JobId, list[int]] = field(default_factory=dict)
    records: dict[RecordPlace, Standing] = field(default_factory=dict)
    of_job: dict[JobId, list[RecordPlace]] = field(default_factory=dict)
    keys: dict[JobId, str] = field(default_factory=dict)


async def leavings_of(ask: Ask, keys: Keys, jobs: Sequence[Job], events_max: int) -> Leavings:
    """Of each job's events no more than `events_max`, oldest first."""
    found = Leavings()
    first = Questions(ask)
    for job in jobs:
        result = (Kind.RESULT.value, job.tenant, job.id)
        found.of_job[job.id] = [result]
        first.add(into(found.events.setdefault(job.id, [])), "ZRANGE", keys.history(job.id), 0, events_max - 1)
        child = keys.child(Kind.APPROVAL.value, job.tenant, job.id)
        first.add(partial(_take_approvals, found.of_job[job.id], job), "ZRANGE", child, 0, -1)
    first.fields(lambda job_id, name: found.keys.__setitem__(job_id, name.decode()), keys.key_of, [j.id for j in jobs])
    await first.answered()
    await load_standings(ask, keys, (place for places in found.of_job.values() for place in places), found.records)
    return found


def _take_approvals(places: list[RecordPlace], job: Job, ids: list[bytes]) -> None:
    places.extend((Kind.APPROVAL.value, job.tenant, approval.decode()) for approval in ids)


async def load_standings(
    ask: Ask, keys: Keys, places: Iterable[RecordPlace], found: dict[RecordPlace, Standing]
) -> None:
    asked = Questions(ask)
    asked.fields(
        lambda place, row: found.__setitem__(place, standing_of(row)), keys.records, places, lambda p: joined(*p)
    )
    await asked.answered()


def remove_events(commands: Commands, keys: Keys, job: Job, numbers: Sequence[int]) -> None:
    if numbers:
        commands.also("XDEL", keys.events, *(f"{number}-0" for number in numbers))
        commands.drop(keys.history(job.id), *numbers)
        if job.run:
            commands.drop(keys.run_history(job.run), *numbers)


def remove_family(commands: Commands, keys: Keys, family: Family, left: Leavings) -> None:
    """With all that is its own but its events."""
    for job in family.jobs:
        for place in left.of_job[job.id]:
            if place in left.records:
                remove_record(commands, keys, place, left.records[place])
        if job.id in left.keys:
            commands.take(keys.keys, left.keys[job.id])
            commands.take(keys.key_of, job.id)
        if job.id == family.origin and family.effect_keys:
            forget_effects(commands, keys, job.tenant, job.id, family.effect_keys)
        remove_job(commands, keys, job)
    for number, letter in family.letters:
        commands.take(keys.letters, number)
        commands.drop(keys.letters_of(letter.tenant), number)
        commands.drop(keys.job_letters(letter.job_id), number)
