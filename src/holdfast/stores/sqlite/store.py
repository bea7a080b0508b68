"""Jobs in a SQLite file: `sqlite:///relative/holdfast.db`, `sqlite:////absolute/holdfast.db`.

Writes go through the file's one writer, which commits whatever has queued up as one durable
transaction, locks included. Reads have connections of their own and never wait for a write.
Several processes of one host may share a file. It must not lie on a network file system.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.effect import Effect, EffectPlace, Ruling
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.placement import Labels
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State
from holdfast.core.topic import Topics
from holdfast.errors import NotFound
from holdfast.locks.stores import shown
from holdfast.locks.stores.sqlite.store import path_of
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
from holdfast.stores.dispatchable import without
from holdfast.stores.retention import LOOSE, RECORDS, Found
from holdfast.stores.sqlite import records, retention, run_retention
from holdfast.stores.sqlite.access import Access
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.reads import Turns
from holdfast.stores.sqlite.sessions import find_busy, list_session
from holdfast.stores.transactions import transact

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> SqliteStore:
    return SqliteStore(path_of(url, runtime), shown(url), topics=topics, runtime=runtime, timeout_s=timeout_s)


class SqliteStore:
    def __init__(self, path: str, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        self._topic_of = topics.get
        self._file = Access(path, url, topics=topics, runtime=runtime, timeout_s=timeout_s)
        self.now = self._file.now
        self._turns = Turns()
        self._listeners: list[Callable[[Sequence[JobEvent]], None]] = []
        self._arrival_listeners: list[Callable[[str], None]] = []

    async def open(self) -> None:
        await self._file.open(self)

    async def close(self) -> None:
        await self._file.close(self)

    # -- jobs --------------------------------------------------------------------------------------

    async def submit(self, submissions: Sequence[Submission]) -> list[Accepted | KeyReused]:
        return await self._file.write(lambda ledger: ledger.submit(submissions, self._topic_of))

    async def get_job(self, tenant: Tenant, job_id: JobId) -> Job:
        job = await self._file.read(lambda reads: reads.find_job(job_id), single=True)
        if job is None or job.tenant != tenant:
            raise NotFound(f"no job {job_id}")
        return job

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._file.read(lambda reads: reads.find_jobs(ids), single=True)

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, *, before: JobId | None, limit: int) -> list[Job]:
        return await self._file.scan(lambda reads: reads.list_jobs(tenant, wanted, before, limit))

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
        return await self._file.read_in_short(
            lambda reads: reads.list_dispatchable(self.now(), limit, self._turns, left_out)
        )

    async def list_in_hand(self, *workers: str, bare: bool = False) -> list[Job]:
        return await self._file.read(lambda reads: reads.list_in_hand(workers, bare=bare))

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]:
        return await self._file.scan(lambda reads: list_session(reads.execute, tenant, session))

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None:
        return await self._file.scan(lambda reads: find_busy(reads.execute, tenant, session))

    async def list_recoverable(self, *, states: Collection[State], limit: int, after: str = "") -> Overdue:
        return await self._file.scan(lambda reads: reads.list_recoverable(self.now(), states, limit, after))

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        return await self._file.write(lambda ledger: ledger.apply(changes, self._topic_of))

    async def renew_leases(self, leases: Sequence[tuple[JobId, int]]) -> list[Job | None]:
        return await self._file.write(lambda ledger: ledger.renew_leases(leases, self._topic_of), urgent=True)

    async def add_notes(self, notes: Sequence[Note]) -> None:
        await self._file.write(lambda ledger: ledger.add_notes(notes))

    async def transact(self, transactions: Sequence[Transaction]) -> list[bool]:
        return await self._file.write(lambda ledger: transact(ledger, transactions, self._topic_of))

    async def list_events(
        self,
        *,
        after: int,
        limit: int,
        tenant: Tenant | None = None,
        job_id: JobId | None = None,
        run: str | None = None,
    ) -> list[JobEvent]:
        return await self._file.scan(lambda reads: reads.list_events(after, limit, tenant, job_id, run))

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]:
        return await self._file.read(lambda reads: reads.count_jobs())

    async def count_topics(self) -> dict[tuple[Tenant, str], int]:
        return await self._file.scan(lambda reads: reads.count_topics())

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]:
        return await self._file.scan(lambda reads: reads.count_active())

    # -- records -----------------------------------------------------------------------------------

    async def get_record(self, kind: Kind, tenant: Tenant, record_id: str) -> Record:
        record = await self._file.read(lambda reads: records.find(reads.execute, kind, tenant, record_id), single=True)
        if record is None:
            raise NotFound(f"no {kind} {record_id}")
        return record

    async def find_records(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        return await self._file.read(
            lambda reads: [records.find(reads.execute, kind, tenant, one) for one in ids], single=len(ids) == 1
        )

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
        # An index knows the state or the parent: with both, all of a parent's may have to be looked at.
        return await (self._file.scan if state is not None and parent else self._file.read)(
            lambda reads: records.list_records(
                reads.execute, kind, tenant, state=state, parent=parent, after=after, before=before, limit=limit
            )
        )

    async def count_records(self, kind: Kind, tenant: Tenant, *, states: Collection[str]) -> dict[str, int]:
        return await self._file.read(lambda reads: records.count(reads.execute, kind, tenant, states))

    async def list_due(self, kind: Kind, *, limit: int) -> list[Record]:
        return await self._file.read(
            lambda reads: records.list_due(reads.execute, kind, self.now(), limit), single=True
        )

    # -- effects -----------------------------------------------------------------------------------

    async def prepare_effect(self, job_id: JobId, fence: int, key: str, *, idempotent: bool) -> tuple[Effect, Ruling]:
        return await self._file.write(lambda ledger: effects.prepare(ledger, job_id, fence, key, idempotent=idempotent))

    async def commit_effect(self, job_id: JobId, fence: int, key: str, result: bytes | None) -> Effect:
        return await self._settle(job_id, fence, key, EffectState.COMMITTED, result)

    async def withdraw_effect(self, job_id: JobId, fence: int, key: str) -> Effect:
        return await self._settle(job_id, fence, key, EffectState.ABSENT, None)

    async def _settle(self, job_id: JobId, fence: int, key: str, state: EffectState, result: bytes | None) -> Effect:
        return await self._file.write(
            lambda ledger: effects.settle(
                ledger, job_id, fence, key, state=state, result=result, topic_of=self._topic_of
            )
        )

    async def resolve_effect(
        self,
        tenant: Tenant,
        job_id: JobId,
        key: str,
        *,
        state: EffectState,
        result: bytes | None,
        note: str,
        records: Sequence[RecordChange] = (),
    ) -> Effect:
        return await self._file.write(
            lambda ledger: effects.resolve(
                ledger, tenant, job_id, key, self._topic_of, state=state, result=result, note=note, records=records
            )
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
        return await self._file.scan(lambda reads: reads.list_effects(tenant, state, job_id, after, limit))

    # -- dead letters, workers ---------------------------------------------------------------------

    async def list_dead_letters(self, tenant: Tenant, *, before: int | None, limit: int) -> list[DeadLetter]:
        return await self._file.scan(lambda reads: reads.list_dead_letters(tenant, before, limit))

    async def get_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter:
        letter = await self._file.read(lambda reads: reads.find_dead_letter(tenant, number))
        if letter is None:
            raise NotFound(f"no dead letter {number}")
        return letter

    async def replay_dead_letter(self, tenant: Tenant, number: int, submission: Submission) -> Accepted:
        return await self._file.write(
            lambda ledger: effects.replay_dead_letter(ledger, tenant, number, submission, self._topic_of)
        )

    async def write_snapshot(self, snapshot: Snapshot) -> bool:
        return await self._file.write(lambda ledger: ledger.write_snapshot(snapshot))

    async def read_snapshot(self) -> Snapshot | None:
        return await self._file.read(lambda reads: reads.read_snapshot())

    # -- retention ---------------------------------------------------------------------------------

    async def prune(self, limits: Limits, *, after: int = 0) -> Pruned:
        if after >= LOOSE:
            loose = await self._file.scan(lambda reads: retention.find_loose(reads, limits, after))
            return await self._remove(loose, lambda ledger: retention.prune_loose(ledger, loose))
        if after >= RECORDS:
            ended = await self._file.scan(lambda reads: run_retention.find(reads, limits, after))
            return await self._remove(ended, lambda ledger: run_retention.prune(ledger, ended, limits))
        found = await self._file.scan(lambda reads: retention.find(reads, limits, after))
        return await self._remove(found, lambda ledger: retention.prune(ledger, found, limits))

    async def _remove(self, found: Found[Any], verb: Callable[[SqliteLedger], Pruned]) -> Pruned:
        """It was looked for beside the writer, who is asked only for what can go."""
        return await self._file.write(verb) if found.going else Pruned(0, found.after)

    async def pruned_until(self, tenant: Tenant | None = None) -> int:
        return await self._file.read(lambda reads: retention.pruned_until(reads, tenant))

    # -- for the bus in the store ------------------------------------------------------------------

    async def list_deliveries(self, worker: str, *, limit: int) -> list[Delivery]:
        return await self._file.read(lambda reads: reads.list_deliveries(worker, limit), single=True)

    async def list_outbox(self, *, limit: int) -> list[Delivery]:
        return await self._file.read(lambda reads: reads.list_outbox(limit))

    async def left_of(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._file.read(lambda reads: [d for d in deliveries if reads.has_delivery(d)])

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them. Mostly the change that started the job has done so already: then nothing is written."""
        left = await self.left_of(deliveries)
        if left:
            await self._file.write(lambda ledger: ledger.settle(left))

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._arrival_listeners.append(callback)

    def heard(self, events: Sequence[JobEvent], arrivals: set[str]) -> None:
        """Called in the store's loop after each commit of this process."""
        for listener in tuple(self._listeners):
            listener(events)
        for worker in sorted(arrivals):
            for callback in self._arrival_listeners:
                callback(worker)
