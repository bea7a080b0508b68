"""What can be read of records in Redis."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.stores.redis.keys import Keys, joined
from holdfast.stores.redis.link import RECORDS, Asking
from holdfast.stores.redis.reads import PAGE
from holdfast.stores.redis.rows import record_from


class RedisRecords:
    def __init__(self, asking: Asking, keys: Keys) -> None:
        self._asking = asking
        self._keys = keys

    async def find(self, kind: Kind, tenant: Tenant, ids: Sequence[str]) -> list[Record | None]:
        return await self._find(kind, [(tenant, record_id) for record_id in ids])

    async def _find(self, kind: Kind, places: Sequence[tuple[Tenant, str]]) -> list[Record | None]:
        if not places:
            return []
        names = [joined(kind.value, *place) for place in places]
        rows, bodies = await self._asking.run(RECORDS, (self._keys.records, self._keys.bodies), names)
        return [
            None if row is None else record_from(kind, tenant, record_id, row, body)
            for (tenant, record_id), row, body in zip(places, rows, bodies, strict=True)
        ]

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
        keys, key = self._keys, self._keys.kind(kind.value, tenant)
        if parent:
            key = keys.child(kind.value, tenant, parent)
        elif state is not None:
            key = keys.stood(kind.value, tenant, state)
        is_exact = parent is None or (bool(parent) and state is None)
        page = limit if is_exact else max(limit, PAGE)
        low = "-" if after is None else f"({after}"
        high = f"({before}" if before else "+"
        found: list[Record] = []
        while len(found) < limit:
            span = (low, high, "BYLEX") if before is None else (high, low, "BYLEX", "REV")
            [ids] = await self._asking.ask(("ZRANGE", key, *span, "LIMIT", 0, page))
            records = await self.find(kind, tenant, [record_id.decode() for record_id in ids])
            found += [
                record
                for record in records
                if record is not None
                and (state is None or record.state == state)
                and (parent is None or record.parent == parent)
            ]
            if len(ids) < page:
                break
            if before is None:
                low = f"({ids[-1].decode()}"
            else:
                high = f"({ids[-1].decode()}"
        return found[:limit]

    async def count(self, kind: Kind, tenant: Tenant, states: Collection[str]) -> dict[str, int]:
        asked = [("ZCARD", self._keys.stood(kind.value, tenant, state)) for state in states]
        counts = await self._asking.ask(*asked) if asked else []
        return {state: count for state, count in zip(states, counts, strict=True) if count}

    async def list_due(self, kind: Kind, now: float, limit: int) -> list[Record]:
        command = ("ZRANGE", self._keys.due(kind.value), "-inf", now, "BYSCORE", "LIMIT", 0, limit)
        [members] = await self._asking.ask(command)
        places = []
        for member in members:
            tenant, _, record_id = member.decode().partition("\0")
            places.append((Tenant(tenant), record_id))
        records = await self._find(kind, places)
        return [record for record in records if record is not None and record.due is not None and record.due <= now]
