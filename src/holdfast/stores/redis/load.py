"""What a batch of writes must know, read in as few round trips as possible.

The head is read first. If it is still the same when the batch is written, nothing that was read after it has changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.job import PARKED_UNTIL, Job, JobId
from holdfast.core.states import State
from holdfast.stores.batch import BatchLedger, Needs, RecordPlace
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.keys import Keys, joined
from holdfast.stores.redis.rows import (
    LetterRow,
    Standing,
    bare_job,
    effect_from,
    letter_from,
    standing_of,
    with_payload,
)

Ask = Callable[..., Awaitable[list[Any]]]
NOT_BUSY = 10
"""Of a session, who is not counted with and may be among the first: was asked to stop, or undoes a step of a run."""
NUMBERS = ("event", "letter", "job", "record")


class Numbers(NamedTuple):
    """The last that were given out."""

    event: int
    letter: int
    job: int
    record: int


class Loaded(NamedTuple):
    ledger: BatchLedger
    head: str
    numbers: Numbers
    turn: str
    """The plane whose turn it is; empty if everybody may write."""
    before: dict[JobId, Job]
    """Every job that was looked at, as it was: without payload and result."""
    standings: dict[RecordPlace, Standing]
    """Likewise of records."""


class Questions:
    """Commands that are asked together, and who takes the answers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._commands: list[Sequence[Word]] = []
        self._takers: list[Callable[[Any], None]] = []

    def add(self, taker: Callable[[Any], None], *command: Word) -> None:
        self._commands.append(command)
        self._takers.append(taker)

    def fields(self, taker: Callable[[Any, bytes], None], key: str, names: Iterable[Any], encode: Any = str) -> None:
        """Of a hash: `taker` gets each name with its value; those that are not there are left out."""
        wanted = list(names)
        if not wanted:
            return

        def take(values: list[bytes | None]) -> None:
            for name, value in zip(wanted, values, strict=True):
                if value is not None:
                    taker(name, value)

        self.add(take, "HMGET", key, *(encode(name) for name in wanted))

    async def answered(self) -> None:
        if not self._commands:
            return
        replies = await self._ask(*self._commands)
        for taker, reply in zip(self._takers, replies, strict=True):
            taker(reply)


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


async def load(ask: Ask, keys: Keys, needs: Needs, now: float) -> Loaded:
    loading = _Loading(ask, keys, needs, BatchLedger(now))
    await loading.first()
    await loading.then()
    return loading.loaded()


class _Loading:
    def __init__(self, ask: Ask, keys: Keys, needs: Needs, ledger: BatchLedger) -> None:
        self._ask = ask
        self._keys = keys
        self._needs = needs
        self._ledger = ledger
        self._head = self._turn = ""
        self._numbers = Numbers(0, 0, 0, 0)
        self._before: dict[JobId, Job] = {}
        self._standings: dict[RecordPlace, Standing] = {}
        self._letters: dict[int, LetterRow] = {}
        self._effected: set[JobId] = set()
        self._in_sessions: set[JobId] = set()

    def loaded(self) -> Loaded:
        return Loaded(self._ledger, self._head, self._numbers, self._turn, self._before, self._standings)

    async def first(self) -> None:
        """Everything that is asked for by name."""
        keys, needs, ledger = self._keys, self._needs, self._ledger
        asked = Questions(self._ask)
        asked.add(self._take_head, "GET", keys.head)
        asked.add(self._take_turn, "GET", keys.turn)
        asked.add(self._take_numbers, "HMGET", keys.numbers, *NUMBERS)
        asked.fields(self._keep, keys.jobs, needs.versions | needs.submitted | needs.jobs | needs.effects_of)
        asked.fields(self._take_key, keys.keys, needs.keys, lambda place: joined(*place))
        asked.fields(self._take_standing, keys.records, needs.records, lambda place: joined(*place))
        asked.fields(self._take_letter, keys.letters, needs.letters)
        if needs.origins:
            origins = list(needs.origins)

            def take_effected(flags: list[int]) -> None:
                self._effected.update(origin for origin, flag in zip(origins, flags, strict=True) if flag)

            asked.add(take_effected, "SMISMEMBER", keys.effected, *origins)
        for session in needs.sessions:

            def take_working(ids: list[bytes], session: tuple[str, str] = session) -> None:
                ledger.at_work[session] = {JobId(job_id.decode()) for job_id in ids}

            asked.add(take_working, "ZRANGE", keys.working(*session), 0, -1)
        await asked.answered()
        for session in needs.busy_sessions:
            await self._find_busy(keys.session(*session))

    async def then(self) -> None:
        """What follows from that: jobs in full, effects, and whoever is parked for them."""
        needs, ledger = self._needs, self._ledger
        full = set(needs.jobs | needs.effects_of | self._in_sessions)
        full |= needs.submitted & ledger.versions.keys()
        full |= {job_id for _, job_id in ledger.keys.values()}
        for letter in self._letters.values():
            full.add(letter.job_id)
            if letter.replayed_as is not None:
                full.add(letter.replayed_as)
        origins = {self._before[job_id].origin for job_id in needs.effects_of if job_id in self._before}
        replays: set[JobId] = set()
        asked = Questions(self._ask)
        for origin in self._effected | origins:
            asked.add(self._take_effects, "HVALS", self._keys.effects(origin))
        for origin in origins:
            asked.add(
                lambda ids: replays.update(JobId(job_id.decode()) for job_id in ids),
                "ZRANGE", self._keys.replays(origin), 0, -1,
            )  # fmt: skip
        asked.fields(self._keep, self._keys.jobs, full - self._before.keys())
        await asked.answered()
        await self._fill(full)
        await self._find_parked(replays | origins - ledger.jobs.keys())
        for number, letter in self._letters.items():
            ledger.letters[number] = letter.letter(number, ledger.jobs[letter.job_id])

    async def _find_busy(self, key: str) -> None:
        """Jobs of a session that make it busy, by pages: those that do not are few."""
        left, start = self._needs.busy_max, 0
        while left > 0:
            page = left + NOT_BUSY
            [found] = await self._ask(("ZRANGE", key, start, start + page - 1))
            ids = [JobId(job_id.decode()) for job_id in found]
            asked = Questions(self._ask)
            asked.fields(self._keep, self._keys.jobs, [job_id for job_id in ids if job_id not in self._before])
            await asked.answered()
            busy = [job_id for job_id in ids if job_id in self._before and self._before[job_id].makes_busy]
            self._in_sessions.update(busy)
            if len(ids) < page:
                break
            left, start = left - len(busy), start + page

    async def _find_parked(self, ids: Collection[JobId]) -> None:
        asked = Questions(self._ask)
        asked.fields(self._keep, self._keys.jobs, ids - self._before.keys())
        await asked.answered()
        jobs = [self._before[job_id] for job_id in ids if job_id in self._before]
        await self._fill(job.id for job in jobs if job.state is State.SCHEDULED and job.not_before >= PARKED_UNTIL)

    async def _fill(self, ids: Iterable[JobId]) -> None:
        """Payloads and results of jobs that are known but for these."""
        missing = [job_id for job_id in ids if job_id in self._before and job_id not in self._ledger.jobs]
        payloads: dict[JobId, bytes] = {}
        results: dict[JobId, bytes] = {}
        asked = Questions(self._ask)
        asked.fields(payloads.__setitem__, self._keys.payloads, missing)
        asked.fields(
            results.__setitem__, self._keys.results, [each for each in missing if self._before[each].result is not None]
        )
        await asked.answered()
        for job_id in missing:
            # A payload may be gone only if somebody has pruned the job: then what is decided here is not written.
            job = with_payload(self._before[job_id], payloads.get(job_id, b""), results.get(job_id))
            self._ledger.jobs[job_id] = job

    # -- takers ------------------------------------------------------------------------------------

    def _take_head(self, value: bytes | None) -> None:
        self._head = text(value)

    def _take_turn(self, value: bytes | None) -> None:
        self._turn = text(value)

    def _take_numbers(self, values: list[bytes | None]) -> None:
        self._numbers = Numbers(*(int(value or 0) for value in values))
        self._ledger.last_number = self._numbers.event

    def _keep(self, job_id: JobId, row: bytes) -> None:
        job = bare_job(row)
        self._before[job_id] = job
        self._ledger.versions[job_id] = job.version

    def _take_key(self, place: tuple[str, str], value: bytes) -> None:
        digest, _, job_id = value.decode().rpartition("\0")
        self._ledger.keys[place] = (digest, JobId(job_id))

    def _take_standing(self, place: RecordPlace, row: bytes) -> None:
        self._standings[place] = standing_of(row)
        self._ledger.records[place] = self._standings[place].version

    def _take_letter(self, number: int, row: bytes) -> None:
        self._letters[number] = letter_from(row)

    def _take_effects(self, rows: list[bytes]) -> None:
        for row in rows:
            effect = effect_from(row)
            self._ledger.effects.setdefault(effect.job_id, {})[effect.key] = effect
