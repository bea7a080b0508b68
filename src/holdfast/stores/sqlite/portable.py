"""A SQLite file as a whole: read by a connection of its own, and filled in one transaction.

Whoever has a file open keeps others from having it alone, which SQLite's exclusive mode tells exactly: so
it is known whether a plane works on it, and none can begin to meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.stores import shown
from holdfast.locks.stores.sqlite.store import path_of
from holdfast.stores import open_store
from holdfast.stores.portable import PAGE, Check, JobRow, Page, Row, SnapshotRow, at_work, not_empty, outdated
from holdfast.stores.rows import values_anew
from holdfast.stores.sql_portable import EMPTY, SECTIONS, Section, first_look, job_row, select, values
from holdfast.stores.sqlite.file import PLANE_VERSION, open_reader
from holdfast.stores.sqlite.rows import INSERT_JOB, PAYLOAD_INLINE_MAX, SELECT_JOB, inserted_values
from holdfast.stores.sqlite.sessions import arrange

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

_COUNT = """
    INSERT INTO holdfast_counts SELECT tenant, state, count(*) FROM holdfast_jobs
    WHERE look_at IS NOT NULL GROUP BY tenant, state
"""
_SESSIONS = """
    SELECT min(id) FROM holdfast_jobs WHERE session != '' AND look_at IS NOT NULL GROUP BY tenant, session
"""


def open_portable(url: str, *, runtime: Runtime) -> SqlitePortable:
    return SqlitePortable(url, path_of(url, runtime), runtime)


class SqlitePortable:
    def __init__(self, url: str, path: str, runtime: Runtime) -> None:
        self._url = url
        self._subject = shown(url)
        self._path = path
        self._runtime = runtime

    async def dump(self, *, alone: bool) -> AsyncGenerator[Page]:
        with self._opened(alone=alone) as connection:
            self._refuse_outdated(connection)
            for page in _pages(connection):
                yield page

    async def load(self, pages: AsyncIterator[Page], *, check: Check) -> None:
        self._refuse_others()
        store = open_store(self._url, topics=Topics(), runtime=self._runtime)
        await store.open()  # makes the tables
        await store.close()
        with self._opened(alone=True) as connection:
            self._refuse_used(connection)
            # Dropped with the connection, if anything raises: the commit is the last thing that happens.
            connection.execute("DELETE FROM holdfast_snapshot")
            async for page in pages:
                _write(connection, page)
            connection.execute(_COUNT)
            _arrange_sessions(connection)
            await check(_each(_pages(connection)))
            # The limits of the topics are the plane's: its first start works out anew when to look at what.
            connection.execute("DELETE FROM holdfast_meta WHERE name = 'topics'")
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _opened(self, *, alone: bool) -> Iterator[apsw.Connection]:
        """In a transaction, which is not committed unless its user does so."""
        if not Path(self._path).exists():
            raise StoreUnavailable(self._subject, "there is no such file", applied=False)
        connection = apsw.Connection(self._path) if alone else open_reader(self._path)
        try:
            if alone:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE" if alone else "BEGIN")
            yield connection
        except apsw.BusyError:
            raise at_work(self._subject) from None
        except apsw.Error as error:
            raise StoreUnavailable(self._subject, type(error).__name__, applied=False) from error
        finally:
            connection.close()

    def _refuse_outdated(self, connection: apsw.Connection) -> None:
        try:
            [(version,)] = connection.execute("SELECT value FROM holdfast_meta WHERE name = 'plane_version'")
        except (apsw.SQLError, apsw.NotADBError, ValueError):
            raise StoreUnavailable(self._subject, "there is no plane in this file", applied=False) from None
        if version != PLANE_VERSION:
            raise outdated(self._subject)

    def _refuse_others(self) -> None:
        """Before a store is opened on the file: that would change what a plane has there."""
        if not Path(self._path).exists():
            return
        with self._opened(alone=True) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_jobs'").fetchone():
                self._refuse_outdated(connection)
                self._refuse_used(connection)

    def _refuse_used(self, connection: apsw.Connection) -> None:
        if connection.execute(f"SELECT {EMPTY}").fetchone() != (1,):
            raise not_empty(self._subject)


def _pages(connection: apsw.Connection) -> Iterator[Page]:
    yield from _read(connection, f"{SELECT_JOB} FROM holdfast_jobs ORDER BY seq", job_row)
    for section in SECTIONS.values():
        yield from _read(connection, select(section, arrival="rowid"), section.row_of)


def _read(connection: apsw.Connection, sql: str, row_of: Any) -> Iterator[Page]:
    cursor = connection.execute(sql)
    while rows := list(islice(cursor, PAGE)):
        yield [row_of(row) for row in rows]


async def _each(pages: Iterator[Page]) -> AsyncIterator[Page]:
    for page in pages:
        yield page


def _write(connection: apsw.Connection, page: Page) -> None:
    jobs = [row for row in page if isinstance(row, JobRow)]
    if jobs:
        _write_jobs(connection, jobs)
    elif page:
        _write_section(connection, SECTIONS[type(page[0])], page)


def _write_jobs(connection: apsw.Connection, rows: Sequence[JobRow]) -> None:
    connection.executemany(
        INSERT_JOB, [(*inserted_values(row.job), *values_anew(row.job), first_look(row)) for row in rows]
    )
    large = [(row.job.id, row.job.payload) for row in rows if len(row.job.payload) > PAYLOAD_INLINE_MAX]
    connection.executemany("INSERT INTO holdfast_payloads VALUES (?, ?)", large)


def _write_section(connection: apsw.Connection, section: Section, page: Sequence[Row]) -> None:
    columns, marks = section.columns, "?" * len(section.columns)
    if isinstance(page[0], SnapshotRow):
        columns, marks = ("one", *columns), f"1{marks}"
    connection.executemany(
        f"INSERT INTO {section.table} ({', '.join(columns)}) VALUES ({', '.join(marks)})",  # noqa: S608
        [values(row) for row in page],
    )


def _arrange_sessions(connection: apsw.Connection) -> None:
    for (job_id,) in connection.execute(_SESSIONS).fetchall():
        [row] = connection.execute(f"{SELECT_JOB} FROM holdfast_jobs WHERE id = ?", (job_id,))
        arrange(connection.execute, job_row(row).job)
