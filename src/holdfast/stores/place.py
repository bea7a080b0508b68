"""What a `BatchStore` stands on: one server, as a process has it. Each store that writes in batches has one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.effect import Effect, EffectPlace
from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.retention import Limits
from holdfast.core.states import EffectState, State
from holdfast.ports import DeadLetter, Delivery, JobEvent, JobFilter, Overdue, Pruned, Snapshot
from holdfast.stores.batch_writer import BatchWriter
from holdfast.stores.dispatchable import Without
from holdfast.stores.news import News
from holdfast.stores.server_clock import ServerClock


class Reads(Protocol):
    """What can be read of jobs. As in the port, where it is called the same."""

    async def find_jobs(self, ids: Sequence[JobId]) -> list[Job | None]: ...

    async def list_jobs(self, tenant: Tenant, wanted: JobFilter, before: JobId | None, limit: int) -> list[Job]: ...

    async def list_dispatchable(self, now: float, limit: int, without: Without) -> list[Job]: ...

    async def list_in_hand(self, workers: Sequence[str], *, bare: bool) -> list[Job]: ...

    async def list_session(self, tenant: Tenant, session: str) -> list[Job]: ...

    async def find_busy(self, tenant: Tenant, session: str) -> Job | None: ...

    async def list_recoverable(self, now: float, states: Collection[State], limit: int, after: str) -> Overdue: ...

    async def list_events(
        self, after: int, limit: int, tenant: Tenant | None, job_id: JobId | None, run: str | None
    ) -> list[JobEvent]: ...

    async def count_jobs(self) -> dict[tuple[Tenant, State], int]: ...

    async def count_topics(self) -> dict[tuple[Tenant, str], int]: ...

    async def count_active(self) -> dict[tuple[Tenant, str, str], int]: ...

    async def list_effects(
        self, tenant: Tenant, state: EffectState | None, job_id: JobId | None, after: EffectPlace | None, limit: int
    ) -> list[Effect]: ...

    async def list_dead_letters(self, tenant: Tenant, before: int | None, limit: int) -> list[DeadLetter]: ...

    async def find_dead_letter(self, tenant: Tenant, number: int) -> DeadLetter | None: ...

    async def read_snapshot(self) -> Snapshot | None: ...

    async def list_deliveries(self, worker: str, limit: int) -> list[Delivery]: ...

    async def left_of(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        """Those that are still there."""

    async def pruned_until(self, tenant: Tenant | None) -> int: ...


class RecordReads(Protocol):
    async def find(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]: ...

    async def list_records(
        self,
        kind: Kind,
        tenant: Tenant,
        *,
        state: str | None,
        parent: str | None,
        after: str | None,
        before: str | None,
        limit: int,
    ) -> list[Record]: ...

    async def count(self, kind: Kind, tenant: Tenant, states: Collection[str]) -> dict[str, int]: ...

    async def list_due(self, kind: Kind, now: float, limit: int) -> list[Record]: ...


class Place(Protocol):
    """What one process has of one server."""

    @property
    def subject(self) -> str:
        """What it is called in errors: without user and password."""

    @property
    def clock(self) -> ServerClock: ...

    @property
    def news(self) -> News: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def records(self) -> RecordReads: ...

    @property
    def writer(self) -> BatchWriter | None:
        """None: it is not open."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def write_snapshot(self, snapshot: Snapshot) -> bool: ...

    async def settle(self, deliveries: list[Delivery]) -> None: ...

    async def prune(self, limits: Limits, after: int) -> Pruned: ...
