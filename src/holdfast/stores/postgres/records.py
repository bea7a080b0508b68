"""What can be read of records in Postgres."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.stores.postgres.link import Lines
from holdfast.stores.postgres.reads import Where
from holdfast.stores.postgres.rows import SELECT_RECORD
from holdfast.stores.rows import record_of


class RecordReads:
    def __init__(self, lines: Lines) -> None:
        self._fetch = lines.fetch

    async def find(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        rows = await self._fetch(
            f"{SELECT_RECORD} WHERE kind = $1 AND tenant = $2 AND id = ANY ($3)", kind.value, tenant, list(ids)
        )
        found = {record.id: record for record in map(record_of, rows)}
        return [found.get(record_id) for record_id in ids]

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
    ) -> list[Record]:
        # Literals, where an index is made under a condition: else it is not taken.
        where = Where(f"kind = '{kind.value}' AND tenant = ?", tenant)
        if state is not None:
            where.also("state = ?", state)
        if parent is not None:
            where.also("parent = ? AND parent <> ''" if parent else "parent = ?", parent)
        if after is not None:
            where.also("id > ?", after)
        if before:
            where.also("id < ?", before)
        order = "id" if before is None else "id DESC"
        rows = await self._fetch(f"{SELECT_RECORD} WHERE {where} ORDER BY {order} {where.limit(limit)}", *where.values)
        return [record_of(row) for row in rows]

    async def count(self, kind: Kind, tenant: Tenant, states: Collection[str]) -> dict[str, int]:
        rows = await self._fetch(
            "SELECT state, count(*) FROM holdfast_records "  # noqa: S608  (a word of ours)
            f"WHERE kind = '{kind.value}' AND tenant = $1 AND state = ANY ($2) GROUP BY state",
            tenant,
            list(states),
        )
        return dict(rows)

    async def list_due(self, kind: Kind, now: float, limit: int) -> list[Record]:
        rows = await self._fetch(
            f"{SELECT_RECORD} WHERE kind = $1 AND due IS NOT NULL AND due <= $2 ORDER BY due, tenant, id LIMIT $3",
            kind.value,
            now,
            limit,
        )
        return [record_of(row) for row in rows]
