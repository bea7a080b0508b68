"""Throttle: how often jobs may be submitted under one key, by all planes of a store together.

What `core.rate` counts with is kept in the store, in a record of each key that is replaced by its version: whoever was
overtaken counts anew. So a job under a rate costs its submission a question and a write; others cost nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from holdfast.core.decision import Decision, Rate
from holdfast.core.job import JobId
from holdfast.core.policy_version import PLANE
from holdfast.core.rate import Taken, give_back, record_id, take, to_record
from holdfast.core.record import Kind
from holdfast.errors import StoreUnavailable, TooMany
from holdfast.locks.runtime import Runtime
from holdfast.ports import RecordChange, Store, Transaction

TRIES = 50
PAUSE_S_FIRST, PAUSE_S_MAX = 0.002, 0.05
"""Before the next try, after having been overtaken: longer each time."""
TAKEN_MAX = 10_000
FORGOTTEN = 500
"""Records that are removed in one go."""


def rated(decision: Decision) -> tuple[str, Rate] | None:
    """The key that it counts under, and how many there may be.

    The rate is in the key. What is kept is the time that those who came have used up, and that was by their rate: whoever
    makes one an hour a hundred a second would find the next one refused for that hour."""
    throttle = decision.throttle
    if throttle is None or throttle.rate is None:
        return None
    return f"{throttle.key} {throttle.rate.every_s}/{throttle.rate.burst}", throttle.rate


class Throttles:
    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        # Those of one process take turns: they would only overtake each other.
        self._turn = asyncio.Lock()
        self._taken: dict[JobId, Taken] = {}
        """What jobs have taken that may still turn out not to be stored, oldest first."""

    async def admit(self, wanted: Sequence[tuple[JobId, Decision]]) -> list[TooMany | None]:
        """Count the jobs of these decisions, in this order. `TooMany` for one that comes too early, which is not counted.

        Counted before they are stored: whoever does not store one gives it back. A crash in between costs the key what time
        gives it again; the other order would let planes that crash have more than the rate."""
        waits = await self._take(wanted, however_early=False)
        return [
            None
            if not wait_s
            else TooMany(
                f"the policy's rule {decision.rule} takes no more of these jobs now (version {decision.version})",
                retry_after_s=wait_s,
            )
            for (_, decision), wait_s in zip(wanted, waits, strict=True)
        ]

    async def reserve(self, job: JobId, decision: Decision) -> float:
        """Count the job, however early it comes; how many seconds it has to wait for its time."""
        [wait_s] = await self._take([(job, decision)], however_early=True)
        return wait_s

    async def give_back(self, jobs: Iterable[JobId]) -> None:
        """These were counted, and are certainly not stored. What nobody counted changes nothing."""
        taken = [one for one in (self._taken.pop(job, None) for job in jobs) if one is not None]
        if not taken:
            return

        def given_back(dues: dict[str, float], now: float) -> None:
            for one in reversed(taken):  # of those that were to wait, the last goes first
                dues[one.key] = give_back(dues[one.key], one, now=now)

        # Without it the key has it again when its time has come: nobody is to be refused, or to fail, for this.
        with suppress(TooMany, StoreUnavailable):
            await self._change([one.key for one in taken], given_back)

    async def _take(self, wanted: Sequence[tuple[JobId, Decision]], *, however_early: bool) -> list[float]:
        counted = [(job, *found) for job, decision in wanted if (found := rated(decision)) is not None]
        if not counted:
            return [0.0] * len(wanted)
        taken: dict[JobId, Taken] = {}
        waits: dict[JobId, float] = {}

        def count(dues: dict[str, float], now: float) -> None:
            taken.clear()
            for job, key, rate in counted:
                waits[job], dues[key] = take(dues[key], rate, now=now, however_early=however_early)
                if however_early or not waits[job]:
                    taken[job] = Taken(key, rate, at=now, waits_until=now + waits[job])

        await self._change([key for _, key, _ in counted], count)
        if len(self._taken) + len(taken) > TAKEN_MAX:
            # Those that were let in long ago are stored, or have nothing left to give back.
            self._taken = dict(itertools.islice(self._taken.items(), len(self._taken) // 2, None))
        self._taken |= taken
        return [waits.get(job, 0.0) for job, _ in wanted]

    async def _change(self, of: Sequence[str], change: Callable[[dict[str, float], float], None]) -> None:
        """What is due under these keys, as `change` makes it; it is asked again whenever somebody was quicker."""
        keys = list(dict.fromkeys(of))
        async with self._turn:
            for tries in range(TRIES):
                found = await self._store.find_records(Kind.RATE, PLANE, [record_id(key) for key in keys])
                records, now = dict(zip(keys, found, strict=True)), self._store.now()
                before = {
                    key: now if record is None or record.due is None else record.due for key, record in records.items()
                }
                after = dict(before)
                change(after, now)
                changed = [
                    to_record(key, due, before=records[key], now=now)
                    for key, due in after.items()
                    if due != before[key]
                ]
                changes = [RecordChange(after=record, replaces=record.version - 1) for record in changed]
                if not changes or await self._store.transact([Transaction(records=changes)]) == [True]:
                    return
                await asyncio.sleep(self._runtime.jitter(min(PAUSE_S_FIRST * (tries + 1), PAUSE_S_MAX)))
        raise TooMany("too many submissions under one rule of the policy at this moment", retry_after_s=1.0)


async def forget_rates(store: Store) -> None:
    """Remove what says no more than nothing would."""
    while records := await store.list_due(Kind.RATE, limit=FORGOTTEN):
        removed = [
            Transaction(records=[RecordChange(after=record, replaces=record.version, remove=True)])
            for record in records
        ]
        if not any(await store.transact(removed)) or len(records) < FORGOTTEN:
            return
