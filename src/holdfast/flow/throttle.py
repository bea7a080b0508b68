"""Throttle: how often jobs may be submitted under one key, by all planes of a store together.

What `core.rate` counts with is kept in the store, in a record of each key that is replaced by its version: whoever was
overtaken counts anew. So a job under a rate costs its submission a question and a write; others cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.core.decision import Decision, Rate
from holdfast.core.policy_version import PLANE
from holdfast.core.rate import record_id, take, to_record
from holdfast.core.record import Kind, Record
from holdfast.errors import TooMany
from holdfast.locks.runtime import Runtime
from holdfast.ports import RecordChange, Store, Transaction

TRIES = 50
PAUSE_S_FIRST, PAUSE_S_MAX = 0.002, 0.05
"""Before the next try, after having been overtaken: longer each time."""
FORGOTTEN = 500
"""Records that are removed in one go."""


def rated(decision: Decision) -> tuple[str, Rate] | None:
    """The key that it counts under, and how many there may be."""
    throttle = decision.throttle
    return None if throttle is None or throttle.rate is None else (throttle.key, throttle.rate)


class Throttles:
    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        # Those of one process take turns: they would only overtake each other.
        self._turn = asyncio.Lock()

    async def admit(self, decisions: Sequence[Decision]) -> list[TooMany | None]:
        """Count the jobs of these decisions, in this order. `TooMany` for one that comes too early, which is not counted."""
        waits = await self._take([rated(decision) for decision in decisions], however_early=False)
        return [
            None
            if not wait_s
            else TooMany(
                f"the policy's rule {decision.rule} takes no more of these jobs now (version {decision.version})",
                retry_after_s=wait_s,
            )
            for decision, wait_s in zip(decisions, waits, strict=True)
        ]

    async def reserve(self, decision: Decision) -> float:
        """Count the job, however early it comes; how many seconds it has to wait for its time."""
        [wait_s] = await self._take([rated(decision)], however_early=True)
        return wait_s

    async def _take(self, wanted: Sequence[tuple[str, Rate] | None], *, however_early: bool) -> list[float]:
        keys = list(dict.fromkeys(one[0] for one in wanted if one is not None))
        if not keys:
            return [0.0] * len(wanted)
        async with self._turn:
            for tries in range(TRIES):
                found = await self._store.find_records(Kind.RATE, PLANE, [record_id(key) for key in keys])
                records = dict(zip(keys, found, strict=True))
                waits, changes = _counted(wanted, records, now=self._store.now(), however_early=however_early)
                if not changes or await self._store.transact([Transaction(records=changes)]) == [True]:
                    return waits
                await asyncio.sleep(self._runtime.jitter(min(PAUSE_S_FIRST * (tries + 1), PAUSE_S_MAX)))
        raise TooMany("too many submissions under one rule of the policy at this moment", retry_after_s=1.0)


def _counted(
    wanted: Sequence[tuple[str, Rate] | None], records: dict[str, Record | None], *, now: float, however_early: bool
) -> tuple[list[float], list[RecordChange]]:
    """How long each has to wait, and what is to be written of it."""
    dues = {key: now if record is None or record.due is None else record.due for key, record in records.items()}
    before = dict(dues)
    waits = []
    for one in wanted:
        if one is None:
            waits.append(0.0)
            continue
        key, rate = one
        wait_s, dues[key] = take(dues[key], rate, now=now, however_early=however_early)
        waits.append(wait_s)
    changed = {key: due for key, due in dues.items() if due > max(before[key], now)}
    after = [to_record(key, due, before=records[key], now=now) for key, due in changed.items()]
    return waits, [RecordChange(after=record, replaces=record.version - 1) for record in after]


async def forget_rates(store: Store) -> None:
    """Remove what says no more than nothing would."""
    while records := await store.list_due(Kind.RATE, limit=FORGOTTEN):
        removed = [
            Transaction(records=[RecordChange(after=record, replaces=record.version, remove=True)])
            for record in records
        ]
        if not any(await store.transact(removed)) or len(records) < FORGOTTEN:
            return
