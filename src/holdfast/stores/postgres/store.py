"""Jobs in Postgres: `postgresql://user@host/database`, with whatever libpq and the driver take after a `?`.

Writes of one process go through one connection, which commits whatever has queued up as one transaction
(`writer`). Reads have a few connections of their own, and one more listens for what other planes have
committed. Any number of planes may share a database. They tell time by its clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.topic import Topics
from holdfast.locks.stores import shown
from holdfast.ports import Delivery
from holdfast.stores.batch_store import BatchStore
from holdfast.stores.postgres.database import Database

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


def open_store(url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> PostgresStore:
    return PostgresStore(url, topics=topics, runtime=runtime, timeout_s=timeout_s)


class PostgresStore(BatchStore):
    def __init__(self, url: str, *, topics: Topics, runtime: Runtime, timeout_s: float) -> None:
        database = Database(url, shown(url), topics=topics, runtime=runtime, timeout_s=timeout_s)
        super().__init__(database, topics=topics)
        self._database = database

    async def list_outbox(self, *, limit: int) -> list[Delivery]:
        return await self._database.reads.list_outbox(limit)

    async def left_of(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._database.reads.left_of(deliveries)
