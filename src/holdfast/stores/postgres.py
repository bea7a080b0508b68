"""Jobs in Postgres: `postgresql://user@host/database`, with whatever libpq and the driver take after a `?`.

Writes of one process go through one connection, which commits whatever has queued up as one transaction
(`postgres_writer`). Reads have a few connections of their own, and one more listens for what other planes have
committed. Any number of planes may share a database. They tell time by its clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.effect import Effect, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, Invalid, NotFound, StoreUnavailable
from holdfast.locks.stores import shown
from holdfast.ports import (
    Accepted,
    Change,
    DeadLetter,
    Delivery,
    JobEvent,
    JobFilter,
    KeyReused,
    Note,
    Pruned,
    Snapshot,
    Submission,
    Transaction,
)
from holdfast.stores import effects
from holdfast.stores.batch import BatchLedger, Needs
from holdfast.stores.postgres_database import Database
from holdfast.stores.postgres_reads import Without
from holdfast.stores.transactions import transact

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

T = TypeVar("T")


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> PostgresStore:
    return PostgresStore(url, topics=topics, runtime=runtime, timeout_s=timeout_s)


class PostgresStore:
    def __init__(self, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        self._subject = shown(url)
        self._topic_of = topics.get
        self._database = Database(url, self._subject, topics=topics, runtime=runtime, timeout_s=timeout_s)
        self._opening = asyncio.Lock()

    def now(self) -> float:
        return self._database.clock.now()

    async def open(self) -> None:
        async with self._opening:
            await self._database.open()

    async def close(self) -> None:
        async with self._opening:
            await self._database.close()

    # -- jobs --------------------------------------------------------------------------------------

    async def submit(self, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
        return await self._write(
            lambda needs: _each(needs.submission, submissions),
            lambda ledger: ledger.submit(submissions, self._topic_of),
            size=len(submissions),
        )

    async def get_job(self, tenant: Tenant, job_id: JobId) -> Job:
        [job] = await self._database.reads.find_jobs([job_id])
        if job is None or job.tenant != tenant:
            raise NotFound(f"no job {job_id}")
        return job

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._database.reads.find_jobs(ids)

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, *, before: JobId | None, limit: int) -> list[Job]:
        return await self._database.reads.list_jobs(tenant, wanted, before, limit)

    async def list_dispatchable(
        self,
        *,
        limit: int,
        except_topics: Collection[str] = (),
        except_tenants: Collection[Tenant] = (),
        except_keys: Collection[str] = (),
    ) -> list[Job]:
        without = Without(sorted(except_topics), sorted(except_tenants), sorted(except_keys))
        return await self._database.reads.list_dispatchable(self.now(), limit, without)

    async def list_in_hand(self, worker: str) -> list[Job]:
        return await self._database.reads.list_in_hand(worker)

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        return await self._database.reads.list_session(tenant, session)

    async def list_recoverable(self, *, limit: int, after: JobId | None = None) -> list[Job]:
        return await self._database.reads.list_recoverable(self.now(), limit, after)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        return await self._write(
            lambda needs: _each(needs.change, changes),
            lambda ledger: ledger.apply(changes, self._topic_of),
            size=len(changes),
        )

    async def renew_leases(self, leases: Sequence[tuple[JobId, int, float]]) -> list[Job | None]:
        return await self._write(
            lambda needs: needs.jobs.update(job_id for job_id, _, _ in leases),
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
        return await self._database.reads.list_events(after, limit, tenant, job_id, run)

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        return self._database.news.subscribe(listener)

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        return await self._database.reads.count_jobs()

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        return await self._database.reads.count_topics()

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        return await self._database.reads.count_active()

    # -- records -----------------------------------------------------------------------------------

    async def get_record(self, kind: Kind, tenant: Tenant, record_id: str) -> Record:
        [record] = await self._database.records.find(kind, tenant, [record_id])
        if record is None:
            raise NotFound(f"no {kind} {record_id}")
        return record

    async def find_records(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        return await self._database.records.find(kind, tenant, ids)

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
        return await self._database.records.list_records(
            kind, tenant, state=state, parent=parent, after=after, before=before, limit=limit
        )

    async def count_records(self, kind: Kind, tenant: Tenant, *, states: Collection[str]) -> dict[str, int]:
        return await self._database.records.count(kind, tenant, states)

    async def list_due(self, kind: Kind, *, limit: int) -> list[Record]:
        return await self._database.records.list_due(kind, self.now(), limit)

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
        self, tenant: Tenant, job_id: JobId, key: str, *, state: EffectState, result: bytes | None, note: str
    ) -> Effect:
        if state not in (EffectState.COMMITTED, EffectState.ABSENT):
            raise Invalid(f"an effect is resolved as committed or absent, not as {state}")
        return await self._write(
            lambda needs: needs.effects_of.add(job_id),
            lambda ledger: effects.resolve(
                ledger, tenant, job_id, key, state=state, result=result, note=note, topic_of=self._topic_of
            ),
        )

    async def list_effects(
        self, tenant: Tenant, *, state: EffectState | None = None, job_id: JobId | None = None, limit: int = 100
    ) -> list[Effect]:
        return await self._database.reads.list_effects(tenant, state, job_id, limit)

    # -- dead letters, workers ---------------------------------------------------------------------

    async def list_dead_letters(self, tenant: Tenant, *, before: int | None, limit: int) -> list[DeadLetter]:
        return await self._database.reads.list_dead_letters(tenant, before, limit)

    async def get_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter:
        letter = await self._database.reads.find_dead_letter(tenant, number)
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
        return await self._database.write_snapshot(snapshot)

    async def read_snapshot(self) -> Snapshot | None:
        return await self._database.reads.read_snapshot()

    # -- retention ---------------------------------------------------------------------------------

    async def prune(self, limits: Limits, *, after: int = 0) -> Pruned:
        return await self._database.prune(limits, after)

    async def pruned_until(self, tenant: Tenant | None = None) -> int:
        return await self._database.reads.pruned_until(tenant)

    # -- for the bus in the store ------------------------------------------------------------------

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]:
        return await self._database.reads.list_deliveries(worker, limit)

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them. Mostly the change that started the job has done so already: then nothing is written."""
        left = await self._database.reads.left_of(deliveries)
        if left:
            await self._database.settle(left)

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._database.news.on_arrival(callback)

    async def _write(
        self,
        ask: Callable[[Needs], Any],
        verb: Callable[[BatchLedger], T | HoldfastError],
        *,
        size: int = 1,
        urgent: bool = False,
    ) -> T:
        writer = self._database.writer
        if writer is None:
            raise StoreUnavailable(self._subject, "the store is not open", applied=False)
        answer: T = await writer.call(ask, verb, size=size, urgent=urgent)
        return answer


def _each(ask: Callable[[Any], None], things: Sequence[Any]) -> None:
    for thing in things:
        ask(thing)
