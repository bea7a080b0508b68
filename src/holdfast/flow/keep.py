"""Keep: a record changed by its version, tried again while it moves under us."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record, first_version
from holdfast.errors import Conflict
from holdfast.flow.audit import Entry, transact
from holdfast.ports import RecordChange, Store, Transaction

TRIES = 5


async def add_record(record: Record, *, store: Store, entry: Entry | None = None) -> Record | None:
    """The new record as it is stored; None if there is one of its name. There may have been one before."""
    new = replace(record, version=first_version(store.now()))
    return new if await _written(RecordChange(after=new, replaces=0), store=store, entry=entry) else None


async def write_record(record: Record, *, store: Store, entry: Entry | None = None) -> bool:
    """Whether it is stored: false if the version before it is not the one that is there."""
    return await _written(RecordChange(after=record, replaces=record.version - 1), store=store, entry=entry)


async def change_record(
    kind: Kind,
    tenant: Tenant,
    record_id: str,
    change: Callable[[Record], Record],
    *,
    store: Store,
    entry: Entry | None = None,
) -> Record:
    """The record as `change` made it, one version on; as it was, without a line, if that is the same. Raises `Conflict` if
    others are always faster."""
    for _ in range(TRIES):
        before = await store.get_record(kind, tenant, record_id)
        after = change(before)
        if replace(after, version=before.version) == before:
            return before
        if await write_record(after, store=store, entry=entry):
            return after
    raise keeps_changing(kind)


async def remove_record(
    kind: Kind, tenant: Tenant, record_id: str, *, store: Store, entry: Entry | None = None
) -> None:
    for _ in range(TRIES):
        record = await store.get_record(kind, tenant, record_id)
        if await _written(RecordChange(after=record, replaces=record.version, remove=True), store=store, entry=entry):
            return
    raise keeps_changing(kind)


def keeps_changing(kind: Kind) -> Conflict:
    return Conflict(f"the {kind} keeps changing; try again")


async def _written(change: RecordChange, *, store: Store, entry: Entry | None) -> bool:
    return await transact(Transaction(records=[change]), store=store, entry=entry)
