"""Records in SQLite, in whatever transaction the connection is in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, NamedTuple

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.ports import RecordChange
from holdfast.stores.rows import record_of, record_values
from holdfast.stores.sqlite.rows import INSERT_RECORD, SELECT_RECORD

UNLISTED_BY_STATE = (Kind.STEP, Kind.RESULT)
_LISTED_BY_STATE = "kind NOT IN ('step', 'result')"
"""The condition of `holdfast_records_by_state`, word for word."""


class Listing(NamedTuple):
    """What a record is listed by."""

    state: str
    parent: str
    due: float | None


def standing_of(execute: Callable[..., Any], record: Record) -> tuple[int, Listing | None]:
    """Its version, and what it is listed by. 0: it is not there."""
    row = execute(
        "SELECT version, state, parent, due FROM holdfast_records WHERE kind = ? AND tenant = ? AND id = ?",
        (record.kind.value, record.tenant, record.id),
    ).fetchone()
    return (0, None) if row is None else (row[0], Listing(*row[1:]))


def write(execute: Callable[..., Any], change: RecordChange, listing: Listing | None) -> None:
    """`listing` is what it was listed by before, where that is known."""
    record = change.after
    place = (record.kind.value, record.tenant, record.id)
    if change.remove:
        execute("DELETE FROM holdfast_records WHERE kind = ? AND tenant = ? AND id = ?", place)
    elif change.replaces == 0:
        execute(INSERT_RECORD, record_values(record))
    else:
        wanted = Listing(record.state, record.parent, record.due)
        moved = tuple(n for n in range(len(wanted)) if listing is None or listing[n] != wanted[n])
        values = (record.version, record.created_at, record.body, *(wanted[n] for n in moved))
        execute(_replacing(moved), (*values, *place))


@cache
def _replacing(moved: tuple[int, ...]) -> str:
    """A column that is assigned has its indexes written anew, the same value or not: so only those that differ are."""
    columns = ("version", "created_at", "body", *(Listing._fields[n] for n in moved))
    return (
        f"UPDATE holdfast_records SET {', '.join(f'{name} = ?' for name in columns)} "  # noqa: S608  (names of columns)
        "WHERE kind = ? AND tenant = ? AND id = ?"
    )


def find(execute: Callable[..., Any], kind: Kind, tenant: Tenant, record_id: str) -> Record | None:
    row = execute(
        f"{SELECT_RECORD} WHERE kind = ? AND tenant = ? AND id = ?", (kind.value, tenant, record_id)
    ).fetchone()
    return None if row is None else record_of(row)


def list_records(
    execute: Callable[..., Any],
    kind: Kind,
    tenant: Tenant,
    *,
    state: str | None,
    parent: str | None,
    after: str | None,
    before: str | None,
    limit: int,
) -> list[Record]:
    # The conditions of the indexes are repeated word for word: else they are not taken.
    where = ["kind = ?", "tenant = ?"]
    values: list[Any] = [kind.value, tenant]
    index = ""
    if state is not None:
        where.append("state = ?")
        values.append(state)
        if kind not in UNLISTED_BY_STATE:
            where.append(_LISTED_BY_STATE)
            index = "INDEXED BY holdfast_records_by_state"
    if parent is not None:
        where.append("parent = ?")
        values.append(parent)
        if parent:
            where.append("parent != ''")
            index = "INDEXED BY holdfast_records_by_parent"
    if after is not None:
        where.append("id > ?")
        values.append(after)
    if before:
        where.append("id < ?")
        values.append(before)
    order = "id" if before is None else "id DESC"
    rows = execute(f"{SELECT_RECORD} {index} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?", (*values, limit))
    return [record_of(row) for row in rows.fetchall()]


def count(execute: Callable[..., Any], kind: Kind, tenant: Tenant, states: Collection[str]) -> dict[str, int]:
    condition = "" if kind in UNLISTED_BY_STATE else f"AND {_LISTED_BY_STATE}"
    counts: dict[str, int] = {}
    for state in states:
        [(number,)] = execute(
            f"SELECT count(*) FROM holdfast_records WHERE kind = ? AND tenant = ? AND state = ? {condition}",  # noqa: S608  (literals)
            (kind.value, tenant, state),
        )
        if number:
            counts[state] = number
    return counts


def list_due(execute: Callable[..., Any], kind: Kind, now: float, limit: int) -> list[Record]:
    rows = execute(
        f"{SELECT_RECORD} WHERE kind = ? AND due IS NOT NULL AND due <= ? ORDER BY due, tenant, id LIMIT ?",
        (kind.value, now, limit),
    )
    return [record_of(row) for row in rows.fetchall()]
