"""A store whose writes are gathered into batches (`batch_writer`), wherever it keeps them: the verbs of the port, once.

What differs from server to server is a `Place`: how it is opened, read and pruned, and how its batches are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.effect import Effect, EffectPlace, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.placement import Labels
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, NotFound, StoreUnavailable
from holdfast.ports import (
    Accepted,
    Change,
    DeadLetter,
    Delivery,
    JobEvent,
    JobFilter,
    KeyReused,
    Note,
    Overdue,
    Pruned,
    RecordChange,
    Snapshot,
    Submission,
    Transaction,
)
from holdfast.stores import effects
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.dispatchable import without
from holdfast.stores.place import Place
from holdfast.stores.transactions import transact

T = TypeVar("T")


class BatchStore:
    def __init__(self, place: Place, *, topics: Topics) -> None:
        self._place = place
        self._topic_of = topics.get
        self._opening = asyncio.Lock()

    def now(self) -> float:
        return self._place.clock.now()

    async def open(self) -> None:
        async with self._opening:
            await self._place.open()

    async def close(self) -> None:
        async with self._opening:
            await self._place.close()

    # -- jobs --------------------------------------------------------------------------------------

    async def submit(self, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
        return await self._write(
            lambda needs: _each(needs.submission, submissions),
            lambda ledger: ledger.submit(submissions, self._topic_of),
            size=len(submissions),
        )

    async def get_job(self, tenant: Tenant, job_id: JobId) -> Job:
        [job] = await self._place.reads.find_jobs([job_id])
        if job is None or job.tenant != tenant:
            raise NotFound(f"no job {job_id}")
        return job

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._place.reads.find_jobs(ids)

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, *, before: JobId | None, limit: int) -> list[Job]:
        return await self._place.reads.list_jobs(tenant, wanted, before, limit)

    async def list_dispatchable(
        self,
        *,
        limit: int,
        except_topics: Collection[str] = (),
        except_tenants: Collection[Tenant] = (),
        except_keys: Collection[str] = (),
        met_by: Mapping[str, Collection[Labels]] | None = None,
    ) -> list[Job]:
        left_out = without(except_topics, except_tenants, except_keys, met_by or {})
        return await self._place.reads.list_dispatchable(self.now(), limit, left_out)

    async def list_in_hand(self, *workers: str, bare: bool = False) -> list[Job]:
        return await self._place.reads.list_in_hand(workers, bare=bare)

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        return await self._place.reads.list_session(tenant, session)

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None:
        return await self._place.reads.find_busy(tenant, session)

    async def list_recoverable(self, *, states: Collection[State], limit: int, after: str = "") -> Overdue:
        return await self._place.reads.list_recoverable(self.now(), states, limit, after)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        return await self._write(
            lambda needs: _each(needs.change, changes),
            lambda ledger: ledger.apply(changes, self._topic_of),
            size=len(changes),
        )

    async def renew_leases(self, leases: Sequence[tuple[JobId, int]]) -> list[Job | None]:
        return await self._write(
            lambda needs: needs.jobs.update(job_id for job_id, _ in leases),
            lambda ledger: ledger.renew_leases(leases, self._topic_of),
            size=len(leases),
            urgent=True,
        )

    async def add_notes(self, notes: Sequence[Note]) -> None:
        await self._write(lambda needs: needs.notes(notes), lambda ledger: ledger.add_notes(notes), size=len(notes))

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        return await self._write(
            lambda needs: _each(needs.transaction, transactions),
            lambda ledger: transact(ledger, transactions, self._topic_of),
            size=sum(len(each.submissions) + len(each.changes) + len(each.records) for each in transactions),
        )

    async def list_events(
        self,
        *,
        after: int,
        limit: int,
        tenant: Tenant | None = None,
        job_id: JobId | None = None,
        run: str | None = None,
    ) -> list[JobEvent]:
        return await self._place.reads.list_events(after, limit, tenant, job_id, run)

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        return self._place.news.subscribe(listener)

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        return await self._place.reads.count_jobs()

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        return await self._place.reads.count_topics()

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        return await self._place.reads.count_active()

    # -- records -----------------------------------------------------------------------------------

    async def get_record(self, kind: Kind, tenant: Tenant, record_id: str) -> Record:
        [record] = await self._place.records.find(kind, tenant, [record_id])
        if record is None:
            raise NotFound(f"no {kind} {record_id}")
        return record

    async def find_records(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        return await self._place.records.find(kind, tenant, ids)

    async def list_records(
        self,
        kind: Kind,
        tenant: Tenant,
        *,
        state: str | None = None,
        parent: str | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int,
    ) -> list[Record]:
        return await self._place.records.list_records(
            kind, tenant, state=state, parent=parent, after=after, before=before, limit=limit
        )

    async def count_records(self, kind: Kind, tenant: Tenant, *, states: Collection[str]) -> dict[str, int]:
        return await self._place.records.count(kind, tenant, states)

    async def list_due(self, kind: Kind, *, limit: int) -> list[Record]:
        return await self._place.records.list_due(kind, self.now(), limit)

    # -- effects -----------------------------------------------------------------------------------

    async def prepare_effect(self, job_id: JobId, fence: int, key: str, *, idempotent: bool) -> tuple[Effect, Ruling]:
        return await self._write(
            lambda needs: needs.effects_of.add(job_id),
            lambda ledger: effects.prepare(ledger, job_id, fence, key, idempotent=idempotent),
        )

    async def commit_effect(self, job_id: JobId, fence: int, key: str, result: bytes | None) -> Effect:
        return await self._settle(job_id, fence, key, EffectState.COMMITTED, result)

    async def withdraw_effect(self, job_id: JobId, fence: int, key: str) -> Effect:
        return await self._settle(job_id, fence, key, EffectState.ABSENT, None)

    async def _settle(self, job_id: JobId, fence: int, key: str, state: EffectState, result: bytes | None) -> Effect:
        return await self._write(
            lambda needs: needs.effects_of.add(job_id),
            lambda ledger: effects.settle(
                ledger, job_id, fence, key, state=state, result=result, topic_of=self._topic_of
            ),
        )

    async def resolve_effect(
        self, tenant: Tenant, job_id: JobId, key: str, *, state: EffectState, result: bytes | None, note: str,
        records: Sequence[RecordChange] = (),
    ) -> Effect:  # fmt: skip
        def ask(needs: Needs) -> None:
            needs.effects_of.add(job_id)
            needs.record_changes(records)

        return await self._write(
            ask,
            lambda ledger: effects.resolve(
                ledger, tenant, job_id, key, self._topic_of, state=state, result=result, note=note, records=records
            ),
        )

    async def list_effects(
        self,
        tenant: Tenant,
        *,
        state: EffectState | None = None,
        job_id: JobId | None = None,
        after: EffectPlace | None = None,
        limit: int = 100,
    ) -> list[Effect]:
        return await self._place.reads.list_effects(tenant, state, job_id, after, limit)

    # -- dead letters, workers ---------------------------------------------------------------------

    async def list_dead_letters(self, tenant: Tenant, *, before: int | None, limit: int) -> list[DeadLetter]:
        return await self._place.reads.list_dead_letters(tenant, before, limit)

    async def get_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter:
        letter = await self._place.reads.find_dead_letter(tenant, number)
        if letter is None:
            raise NotFound(f"no dead letter {number}")
        return letter

    async def replay_dead_letter(self, tenant: Tenant, number: int, submission: Submission) -> Accepted:
        def ask(needs: Needs) -> None:
            needs.letters.add(number)
            needs.submission(submission)

        return await self._write(
            ask, lambda ledger: effects.replay_dead_letter(ledger, tenant, number, submission, self._topic_of)
        )

    async def write_snapshot(self, snapshot: Snapshot) -> bool:
        return await self._place.write_snapshot(snapshot)

    async def read_snapshot(self) -> Snapshot | None:
        return await self._place.reads.read_snapshot()

    # -- retention ---------------------------------------------------------------------------------

    async def prune(self, limits: Limits, *, after: int = 0) -> Pruned:
        return await self._place.prune(limits, after)

    async def pruned_until(self, tenant: Tenant | None = None) -> int:
        return await self._place.reads.pruned_until(tenant)

    # -- for the bus in the store ------------------------------------------------------------------

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]:
        return await self._place.reads.list_deliveries(worker, limit)

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them. Mostly the change that started the job has done so already: then nothing is written."""
        left = await self._place.reads.left_of(deliveries)
        if left:
            await self._place.settle(left)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._place.news.on_arrival(callback)

    async def _write(
        self,
        ask: Callable[[Needs], Any],
        verb: Callable[[BatchLedger], T | HoldfastError],
        *,
        size: int = 1,
        urgent: bool = False,
    ) -> T:
        writer = self._place.writer
        if writer is None:
            raise StoreUnavailable(self._place.subject, "the store is not open", applied=False)
        answer: T = await writer.call(ask, verb, size=size, urgent=urgent)
        return answer


def _each(ask: Callable[[Any], None], things: Sequence[Any]) -> None:
    for thing in things:
        ask(thing)
