"""Rows of the SQL stores as what is moved between stores, and back: all that they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.record import Kind
from holdfast.core.topic import Topics
from holdfast.stores.ledger import look_at
from holdfast.stores.portable import (
    DeliveryRow,
    EffectRow,
    EventRow,
    JobRow,
    KeyRow,
    LetterRow,
    PrunedRow,
    RecordRow,
    Row,
    SnapshotRow,
)
from holdfast.stores.rows import (
    EFFECT,
    EVENT,
    RECORD,
    effect_of,
    effect_values,
    event_of,
    event_values,
    job_of,
    record_of,
    record_values,
)

KEY = ("tenant", "key", "digest", "job_id")
LETTER = ("number", "tenant", "job_id", "reason", "at", "replayed_as")
PRUNED = ("tenant", "number")
DELIVERY = ("worker", "fence", "job_id")
SNAPSHOT = ("fence", "seq", "at", "workers")

_topic_of = Topics().get


class Section(NamedTuple):
    """One table, but that of jobs: how its rows are read, and written."""

    table: str
    columns: tuple[str, ...]
    order: str
    """The order of arrival is the store's own; else by what is the same in every store."""
    row_of: Callable[[tuple[Any, ...]], Row]
    where: str = "true"


SECTIONS: dict[type[Row], Section] = {
    KeyRow: Section("holdfast_keys", KEY, "tenant, key", lambda row: KeyRow(*row)),
    EventRow: Section("holdfast_events", EVENT, "number", lambda row: EventRow(event_of(row))),
    # Who is present is of those who work on the store, not of the store.
    RecordRow: Section(
        "holdfast_records", RECORD, "", lambda row: RecordRow(record_of(row)), f"kind <> '{Kind.PRESENCE}'"
    ),
    EffectRow: Section("holdfast_effects", EFFECT, "prepared_at, job_id, key", lambda row: EffectRow(effect_of(row))),
    LetterRow: Section("holdfast_dead_letters", LETTER, "number", lambda row: LetterRow(*row)),
    PrunedRow: Section("holdfast_pruned", PRUNED, "tenant", lambda row: PrunedRow(*row)),
    DeliveryRow: Section("holdfast_deliveries", DELIVERY, "worker, fence, job_id", lambda row: DeliveryRow(*row)),
    SnapshotRow: Section("holdfast_snapshot", SNAPSHOT, "fence", lambda row: SnapshotRow(*row)),
}
"""In the order in which they are told, after the jobs."""

EMPTY = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} WHERE {where})"  # noqa: S608  (names of tables)
    for table, where in (
        ("holdfast_jobs", "true"),
        *((section.table, section.where) for kind, section in SECTIONS.items() if kind is not SnapshotRow),
    )
)
"""Whether there is nothing to be lost. A plane that was started and never used leaves a snapshot, which is replaced."""


def select(section: Section, *, arrival: str) -> str:
    order = section.order or arrival
    return f"SELECT {', '.join(section.columns)} FROM {section.table} WHERE {section.where} ORDER BY {order}"  # noqa: S608


def job_row(row: tuple[Any, ...]) -> JobRow:
    return JobRow(job_of(row))


def values(row: Row) -> tuple[Any, ...]:
    """In the order of its section's columns."""
    match row:
        case EventRow(event):
            return event_values(event)
        case RecordRow(record):
            return record_values(record)
        case EffectRow(effect):
            return effect_values(effect)
        case JobRow():
            raise AssertionError("jobs have columns of their own in each store")
        case _:
            return tuple(getattr(row, name) for name in row.__struct_fields__)


def first_look(row: JobRow) -> float | None:
    """Until a plane with topics of its own has worked it out anew, which its first start does."""
    return look_at(row.job, _topic_of)
