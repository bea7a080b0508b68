"""A Postgres database as a whole: read as it was at one moment, and filled in one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.errors import StoreUnavailable
from holdfast.locks.stores import shown
from holdfast.locks.stores.postgres.link import FAILURES, hang_up
from holdfast.stores.portable import PAGE, Check, JobRow, Page, Row, SnapshotRow, at_work, not_empty, outdated
from holdfast.stores.postgres.flush import ARRANGE
from holdfast.stores.postgres.link import connect_first, translated
from holdfast.stores.postgres.rows import NEW_JOB, SELECT_JOB, arrays_of, new_job_values
from holdfast.stores.postgres.schema import KNOWN, prepare
from holdfast.stores.postgres.writer import LOCK
from holdfast.stores.sql_portable import EMPTY, SECTIONS, first_look, job_row, select, values

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

TIMEOUT_S = 30.0
"""To connect. What is moved may take as long as it takes."""

_UNHURRIED = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
_VERSION = """
    SELECT CASE WHEN to_regclass('holdfast_migrations') IS NULL THEN 0 ELSE (SELECT max(version) FROM holdfast_migrations) END
"""
_PRESENT = """
    SELECT EXISTS (SELECT FROM holdfast_records WHERE kind = 'presence' AND due > extract(epoch FROM clock_timestamp()))
"""
_COUNT = """
    INSERT INTO holdfast_counts SELECT tenant, state, count(*) FROM holdfast_jobs
    WHERE look_at IS NOT NULL GROUP BY tenant, state
"""
_SESSIONS = "SELECT DISTINCT tenant, session FROM holdfast_jobs WHERE session <> '' AND look_at IS NOT NULL"


def open_portable(url: str, *, runtime: Runtime) -> PostgresPortable:  # noqa: ARG001  (the server has the clock)
    return PostgresPortable(url)


class PostgresPortable:
    def __init__(self, url: str) -> None:
        self._url = url
        self._subject = shown(url)

    async def dump(self, *, alone: bool) -> AsyncGenerator[Page]:
        async with self._connected() as connection:
            # One that reads what was committed: it must see who has come since the other one began.
            if alone and await self._is_at_work(connection):
                raise at_work(self._subject)
            async with self._connected() as reader, reader.transaction(isolation="repeatable_read", readonly=True):
                await reader.execute(_UNHURRIED)
                await self._refuse_outdated(reader)
                async for page in _pages(reader):
                    yield page
            if alone and await self._is_at_work(connection):
                raise at_work(self._subject)

    async def load(self, pages: AsyncIterator[Page], *, check: Check) -> None:
        async with self._connected() as connection:
            await prepare(connection, self._subject, None, timeout_s=TIMEOUT_S)
            async with connection.transaction():
                await connection.execute(_UNHURRIED)
                # A plane that is started now waits for us, and finds what is written here.
                await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
                if await self._is_at_work(connection):
                    raise at_work(self._subject)
                if not await connection.fetchval(f"SELECT {EMPTY}"):
                    raise not_empty(self._subject)
                await connection.execute("DELETE FROM holdfast_snapshot")
                async for page in pages:
                    await _write(connection, page)
                await connection.execute(_COUNT)
                sessions = await connection.fetch(_SESSIONS)
                await connection.execute(ARRANGE, *arrays_of(("tenant", "session"), sessions))
                await check(_pages(connection))
                # The limits of the topics are the plane's: its first start works out anew when to look at what.
                await connection.execute("DELETE FROM holdfast_settings WHERE name = 'topics'")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncpg.Connection]:
        try:
            connection = await connect_first(self._url, timeout_s=TIMEOUT_S)
            try:
                yield connection
            finally:
                await hang_up(connection, timeout_s=TIMEOUT_S)
        except FAILURES as failure:
            raise translated(failure, self._subject, applied=None) from None

    async def _is_at_work(self, connection: asyncpg.Connection) -> bool:
        await self._refuse_outdated(connection)
        present: bool = await connection.fetchval(_PRESENT)
        return present

    async def _refuse_outdated(self, connection: asyncpg.Connection) -> None:
        version = await connection.fetchval(_VERSION)
        if not version:
            raise StoreUnavailable(self._subject, "there is no plane in this database", applied=False)
        if version != KNOWN:
            raise outdated(self._subject)


async def _pages(connection: asyncpg.Connection) -> AsyncIterator[Page]:
    async for page in _read(connection, f"{SELECT_JOB} ORDER BY seq", job_row):
        yield page
    for section in SECTIONS.values():
        async for page in _read(connection, select(section, arrival="seq"), section.row_of):
            yield page


async def _read(connection: asyncpg.Connection, sql: str, row_of: Callable[[Any], Row]) -> AsyncIterator[Page]:
    cursor = await connection.cursor(sql)
    while rows := await cursor.fetch(PAGE):
        yield [row_of(row) for row in rows]


async def _write(connection: asyncpg.Connection, page: Page) -> None:
    jobs = [row for row in page if isinstance(row, JobRow)]
    if jobs:
        await _copy(connection, "holdfast_jobs", NEW_JOB, [new_job_values(row.job, first_look(row)) for row in jobs])
    elif page:
        section = SECTIONS[type(page[0])]
        rows = [values(row) for row in page]
        if isinstance(page[0], SnapshotRow):
            await _copy(connection, section.table, ("one", *section.columns), [(1, *row) for row in rows])
        else:
            await _copy(connection, section.table, section.columns, rows)


async def _copy(
    connection: asyncpg.Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=list(columns))
