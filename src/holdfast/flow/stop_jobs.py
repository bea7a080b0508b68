"""Stop jobs: many that a run wants no more, each by itself.

The run and its wish are one transaction, the jobs are not: whichever of them moved meanwhile would stop the run
from ending the others. The wish stays until each was told, so a crash in between costs nothing but time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.job import JobId, may
from holdfast.core.record import Record
from holdfast.core.run_result import StopWish
from holdfast.core.states import Event
from holdfast.flow.cancel import cancelling
from holdfast.flow.gate import apply_changes
from holdfast.ports import RecordChange, Store, Transaction

TRIES = 5
READ_MAX = 20
"""Jobs that are read together: each has its payload with it."""


async def stop_jobs(wishes: Sequence[Record], *, store: Store) -> None:
    """Tell all of them, and take each wish away that is fulfilled. Safe to repeat, and in several replicas."""
    for record in wishes:
        wish = msgspec.json.decode(record.body, type=StopWish)
        left = [JobId(job) for job in wish.jobs]
        for _ in range(TRIES):
            left = await _tell(left, wish.reason, store=store)
            if not left:
                fulfilled = RecordChange(after=record, replaces=record.version, remove=True)
                await store.transact([Transaction(records=[fulfilled])])
                break


async def _tell(ids: Sequence[JobId], reason: str, *, store: Store) -> list[JobId]:
    """Those that moved while they were told."""
    missed: list[JobId] = []
    for n in range(0, len(ids), READ_MAX):
        jobs = await store.find_jobs(ids[n : n + READ_MAX])
        live = [job for job in jobs if job is not None and may(job, Event.CANCEL) and not job.cancel_requested]
        changes = [cancelling(job, reason, now=store.now()) for job in live]
        if changes:
            written = await apply_changes(changes, store=store)
            missed += [job.id for job, done in zip(live, written, strict=True) if not done]
    return missed
