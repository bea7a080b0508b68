"""What can be read of jobs in Redis, by the lists that they stand in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from holdfast.core.effect import UNSETTLED, Effect, EffectPlace, place_of
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.states import EffectState, State
from holdfast.ports import LISTED_PAYLOAD_MAX, DeadLetter, Delivery, JobEvent, JobFilter, Overdue, Snapshot
from holdfast.stores.batch import AT_WORK
from holdfast.stores.dispatchable import Without
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.keys import Keys, demanded, inbox_member, sortable
from holdfast.stores.redis.link import EVENTS, JOBS, READY, Asking
from holdfast.stores.redis.rows import bare_job, effect_from, event_of_tenant, full_job, letter_from

PAGE = 200
"""What is read at once where not all of it may be wanted."""
FEW = 10
"""What is read at once where mostly the first is wanted."""
PASSES_MAX = 2000
"""Jobs that a list of who may be dispatched passes over in one go: a few milliseconds, in which the server does nothing else."""

Place = tuple[float, str]
"""Of a live job: when it is to be looked at, and its id."""


class RedisReads:
    def __init__(self, asking: Asking, keys: Keys) -> None:
        self._asking = asking
        self._keys = keys
        self._turns: dict[bytes, bytes] = {}
        """Where the turn between tenants stands, for each urgency: the last tenant that had its turn."""

    # -- jobs --------------------------------------------------------------------------------------

    async def _jobs(self, *command: Word, payload_max: Word = "") -> list[tuple[str, Job | None]]:
        """Of the ids that a command gives, each with its job; the payload is empty where it is larger than that."""
        keys = self._keys
        places = [keys.jobs, keys.payloads, keys.results]
        if command[0] != "IDS":
            places.append(str(command[1]))
        ids, rows, payloads, results = await self._asking.run(JOBS, places, (payload_max, *command))
        return [
            (job_id.decode(), None if row is None else full_job(row, payload or b"", result))
            for job_id, row, payload, result in zip(ids, rows, payloads, results, strict=True)
        ]

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return [job for _, job in await self._jobs("IDS", *ids)]

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, before: JobId | None, limit: int) -> list[Job]:
        keys, key = self._keys, self._keys.tenant(tenant)
        if wanted.worker and wanted.state in {State.DISPATCHED, State.RUNNING}:
            key = keys.hand(wanted.worker)
        elif wanted.state not in {None, State.SUCCEEDED}:
            key = keys.state(tenant, wanted.state)
        found: list[Job] = []
        top = "+" if before is None else f"({before}"
        # Where nothing else is asked for, a page of what is wanted is all there is to read.
        page = limit if wanted == JobFilter(state=wanted.state) else max(limit, PAGE)
        while len(found) < limit:
            jobs = await self._jobs("ZRANGE", key, top, "-", "BYLEX", "REV", "LIMIT", 0, page)
            found += [job for _, job in jobs if job is not None and _is_wanted(job, tenant, wanted)]
            if len(jobs) < page:
                break
            top = f"({jobs[-1][0]}"
        return found[:limit]

    async def list_dispatchable(self, now: float, limit: int, without: Without) -> list[Job]:
        chosen: list[bytes] = []
        urgency: bytes | None = b""
        while urgency is not None and len(chosen) < limit:
            urgency, members = await self._in_turn(urgency, now, limit - len(chosen), without)
            chosen += members
        if not chosen:
            return []
        jobs = _there(await self._jobs("IDS", *map(_id_in, chosen), payload_max=LISTED_PAYLOAD_MAX))
        # Meanwhile another plane may have been faster.
        return [job for job in jobs if job.state is State.SCHEDULED]

    async def _in_turn(self, after: bytes, now: float, room: int, without: Without) -> tuple[bytes | None, list[bytes]]:
        """The next urgency after `after`, and who of it is next."""
        chosen: list[bytes] = []
        urgency: bytes | None = None
        stopped: Sequence[Word] = ()
        while len(chosen) < room:
            arguments: list[Word] = [after, sortable(now), room - len(chosen), PASSES_MAX, len(self._turns)]
            for turn in self._turns.items():
                arguments += turn
            for names in (without.topics, without.tenants, without.keys):
                arguments += (len(names), *names)
            arguments.append(len(without.met))
            for met in without.met:
                arguments += (len(met.topics), *met.topics, len(met.by))
                for labels in met.by:
                    arguments += (len(labels), *demanded(labels))
            answer = await self._asking.run(READY, (self._keys.ready,), (*arguments, *stopped))
            if not answer:
                return None, chosen
            urgency, turn, stopped, *rounds = answer
            if turn:  # more tenants than fit: the next list goes on after this one
                self._turns[urgency] = turn
            chosen += [member for each in rounds for member in sorted(each, key=_order_in)]
            if not stopped:
                break
        return urgency, chosen[:room]

    async def list_in_hand(self, workers: Sequence[str], *, bare: bool) -> list[Job]:
        asked = [("ZRANGE", self._keys.hand(worker), 0, -1) for worker in workers]
        listed = await self._asking.ask(*asked) if asked else []
        ids = sorted(job_id for each in listed for job_id in each)
        if not ids:
            return []
        jobs = await self._bare(ids) if bare else _there(await self._jobs("IDS", *ids))
        # Meanwhile another plane may have been faster.
        return [job for job in jobs if job.worker in workers and job.state in AT_WORK]

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        [ids] = await self._asking.ask(("ZRANGE", self._keys.session(tenant, session), 0, -1))
        # One that has ended meanwhile is there still, and live no more.
        return [job for job in await self._bare(ids) if not job.is_terminal]

    async def _bare(self, ids: Sequence[bytes]) -> list[Job]:
        """Those that are there, without their payloads."""
        if not ids:
            return []
        [rows] = await self._asking.ask(("HMGET", self._keys.jobs, *ids))
        return [bare_job(row) for row in rows if row is not None]

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None:
        low = "-"
        while jobs := await self._jobs(
            "ZRANGE", self._keys.session(tenant, session), low, "+", "BYLEX", "LIMIT", 0, FEW
        ):
            for _, job in jobs:
                if job is not None and job.makes_busy:
                    return job
            low = f"({jobs[-1][0]}"
        return None

    async def list_recoverable(self, now: float, states: Collection[State], limit: int, after: str) -> Overdue:
        score, _, last = after.partition(" ")
        place = (float(score), last) if after else (-math.inf, "")
        # Most that is due may be jobs that wait for a worker, and most that is in these states may be due much later: whichever
        # is less is walked past.
        counted = await self._counted(self._keys.counts)
        [overdue] = await self._asking.ask(("ZCOUNT", self._keys.live, "-inf", now))
        there = [(tenant, State(state)) for (tenant, state), _ in counted if state in states]
        in_states = sum(jobs for (_, state), jobs in counted if state in states)
        is_all = State.SCHEDULED in states or int(overdue) <= in_states
        due = await (self._next_due(place, now, limit) if is_all else self._due_among(there, place, now, limit))
        asked = ("IDS", *(job_id for _, job_id in due))
        jobs = _there(await self._jobs(*asked, payload_max=LISTED_PAYLOAD_MAX)) if due else []
        more = f"{due[-1][0]!r} {due[-1][1]}" if len(due) == limit else ""
        return Overdue([job for job in jobs if job.state in states], more)

    async def _next_due(self, place: Place, now: float, limit: int) -> list[Place]:
        """Of all live jobs, those behind a place."""
        live, (score, last) = self._keys.live, place
        rank, known, below = await self._asking.ask(
            ("ZRANK", live, last), ("ZSCORE", live, last), ("ZCOUNT", live, "-inf", f"({score!r}")
        )
        # Where the last one has moved on, others of its moment are listed again.
        start = int(rank) + 1 if known is not None and float(known) == score else int(below)
        [pairs] = await self._asking.ask(("ZRANGE", live, start, start + limit - 1, "WITHSCORES"))
        return [(float(at), job_id.decode()) for job_id, at in pairs if float(at) <= now]

    async def _due_among(
        self, there: Collection[tuple[str, State]], place: Place, now: float, limit: int
    ) -> list[Place]:
        lists = [self._keys.state(tenant, state) for tenant, state in there]
        listed = await self._asking.ask(*(("ZRANGE", key, 0, -1) for key in lists)) if lists else []
        ids = [job_id for each in listed for job_id in each]
        [scores] = await self._asking.ask(("ZMSCORE", self._keys.live, *ids)) if ids else [[]]
        places = ((float(at), job_id.decode()) for job_id, at in zip(ids, scores, strict=True) if at is not None)
        return sorted(each for each in places if each[0] <= now and each > place)[:limit]

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        counted = await self._counted(self._keys.counts)
        return {(Tenant(tenant), State(state)): jobs for (tenant, state), jobs in counted}

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        return {(Tenant(tenant), topic): jobs for (tenant, topic), jobs in await self._counted(self._keys.topics)}

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        counted = await self._counted(self._keys.active)
        return {(Tenant(tenant), topic, key): jobs for (tenant, topic, key), jobs in counted}

    async def _counted(self, key: str) -> list[tuple[list[str], int]]:
        [flat] = await self._asking.ask(("HGETALL", key))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(name.decode().split("\0"), int(jobs)) for name, jobs in pairs if jobs != b"0"]

    # -- events ------------------------------------------------------------------------------------

    async def list_events(
        self, after: int, limit: int, tenant: Tenant | None, job_id: JobId | None, run: str | None
    ) -> list[JobEvent]:
        found: list[JobEvent] = []
        page = limit if tenant is None else max(limit, PAGE)
        while len(found) < limit:
            rows = await self._events(after, page, job_id, run)
            found += [
                event
                for number, row in rows
                if (event := event_of_tenant(number, row, tenant)) is not None
                and (job_id is None or event.job_id == job_id)
                and (run is None or event.run == run)
            ]
            if len(rows) < page:
                break
            after = rows[-1][0]
        return found[:limit]

    async def _events(self, after: int, limit: int, job_id: JobId | None, run: str | None) -> list[tuple[int, bytes]]:
        keys = self._keys
        if job_id is not None or run is not None:
            history = keys.history(job_id) if job_id is not None else keys.run_history(run or "")
            entries = await self._asking.run(EVENTS, (keys.events, history), (after, limit))
        else:
            [entries] = await self._asking.ask(("XRANGE", keys.events, f"({after}-0", "+", "COUNT", limit))
        return [(int(entry.partition(b"-")[0]), fields[1]) for entry, fields in entries]

    async def pruned_until(self, tenant: Tenant | None) -> int:
        if tenant is not None:
            [number] = await self._asking.ask(("HGET", self._keys.pruned, tenant))
            return int(number or 0)
        [numbers] = await self._asking.ask(("HVALS", self._keys.pruned))
        return max(map(int, numbers), default=0)

    # -- effects, dead letters ---------------------------------------------------------------------

    async def list_effects(
        self, tenant: Tenant, state: EffectState | None, job_id: JobId | None, after: EffectPlace | None, limit: int
    ) -> list[Effect]:
        def is_wanted(effect: Effect) -> bool:
            is_ours = effect.tenant == tenant and (state is None or effect.state is state)
            return is_ours and (after is None or place_of(effect) > after)

        if job_id is not None:
            [rows] = await self._asking.ask(("HVALS", self._keys.effects(job_id)))
            return sorted(filter(is_wanted, map(effect_from, rows)), key=place_of)[:limit]
        key = self._keys.open(tenant, state) if state in UNSETTLED else self._keys.effects_of(tenant)
        found: list[Effect] = []
        low = "-inf" if after is None else after[0]
        start = 0
        while len(found) < limit:
            page = ("ZRANGE", key, low, "+inf", "BYSCORE", "LIMIT", start, PAGE)
            [members] = await self._asking.ask(page)
            places = [member.decode().split("\0") for member in members]
            asked = [("HGET", self._keys.effects(owner), name) for owner, name in places]
            rows = await self._asking.ask(*asked) if asked else []
            found += filter(is_wanted, (effect_from(row) for row in rows if row is not None))
            if len(members) < PAGE:
                break
            start += PAGE
        return found[:limit]

    async def list_dead_letters(self, tenant: Tenant, before: int | None, limit: int) -> list[DeadLetter]:
        top = "+inf" if before is None else f"({before}"
        key = self._keys.letters_of(tenant)
        [numbers] = await self._asking.ask(("ZRANGE", key, top, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit))
        return await self._letters(tenant, [int(number) for number in numbers])

    async def find_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter | None:
        letters = await self._letters(tenant, [number])
        return letters[0] if letters else None

    async def _letters(self, tenant: Tenant, numbers: Sequence[int]) -> list[DeadLetter]:
        if not numbers:
            return []
        [rows] = await self._asking.ask(("HMGET", self._keys.letters, *numbers))
        letters = [(n, letter_from(row)) for n, row in zip(numbers, rows, strict=True) if row is not None]
        ours = [(number, letter) for number, letter in letters if letter.tenant == tenant]
        jobs = await self.find_jobs([letter.job_id for _, letter in ours])
        # None: it was pruned between the two questions.
        return [letter.letter(number, job) for (number, letter), job in zip(ours, jobs, strict=True) if job is not None]

    # -- workers -----------------------------------------------------------------------------------

    async def read_snapshot(self) -> Snapshot | None:
        [values] = await self._asking.ask(("HMGET", self._keys.snapshot, "fence", "seq", "at", "workers"))
        fence, seq, at, workers = values
        return None if fence is None else Snapshot(int(fence), int(seq), float(at), workers)

    async def list_deliveries(self, worker: str, limit: int) -> list[Delivery]:
        [members] = await self._asking.ask(("ZRANGE", self._keys.inbox(worker), 0, limit - 1))
        return [_delivery(worker, member) for member in members]

    async def left_of(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        """Those that are still there."""
        asked = [
            ("ZSCORE", self._keys.inbox(each.worker), inbox_member(each.job_id, each.fence)) for each in deliveries
        ]
        scores = await self._asking.ask(*asked) if asked else []
        return [delivery for delivery, score in zip(deliveries, scores, strict=True) if score is not None]


def _is_wanted(job: Job, tenant: Tenant, wanted: JobFilter) -> bool:
    topic = wanted.topic
    return (
        job.tenant == tenant
        and (wanted.state is None or job.state is wanted.state)
        and (not wanted.worker or job.worker == wanted.worker)
        and (job.topic.startswith(topic[:-1]) if topic.endswith("*") else not topic or job.topic == topic)
        and all(job.labels.get(name) == value for name, value in wanted.labels.items())
    )


def _there(found: Iterable[tuple[Any, Job | None]]) -> list[Job]:
    return [job for _, job in found if job is not None]


def _order_in(member: bytes) -> bytes:
    """When it may begin, and its id, of a member of P ready."""
    return member[member.index(b"\0", 1) + 1 :]


def _id_in(member: bytes) -> str:
    return _order_in(member)[8:].partition(b"\0")[0].decode()


def _delivery(worker: str, member: bytes) -> Delivery:
    fence, _, job_id = member.decode().partition(":")
    return Delivery(worker, JobId(job_id), int(fence))
