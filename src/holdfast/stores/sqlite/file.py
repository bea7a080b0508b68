"""The control plane's part of a SQLite file: its tables, its clock, and who is told of its commits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import apsw

from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, Invalid, StoreUnavailable
from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.sqlite.writer import BUSY_TIMEOUT_MS, keep_plans
from holdfast.ports import JobEvent
from holdfast.stores.ledger import REVIEW_MAX, look_at
from holdfast.stores.rows import job_of
from holdfast.stores.sqlite.jobs import SqliteLedger
from holdfast.stores.sqlite.rows import SELECT_JOB

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime
    from holdfast.locks.stores.sqlite.writer import Writer

PLANE_VERSION = 2

_UPGRADES = {
    # From this version to the next. What is new altogether, sqlite.sql makes.
    1: """
        ALTER TABLE holdfast_jobs ADD COLUMN actor TEXT NOT NULL DEFAULT '';
        ALTER TABLE holdfast_jobs ADD COLUMN session TEXT NOT NULL DEFAULT '';
        ALTER TABLE holdfast_jobs ADD COLUMN run TEXT NOT NULL DEFAULT '';
        ALTER TABLE holdfast_jobs ADD COLUMN step TEXT NOT NULL DEFAULT '';
        ALTER TABLE holdfast_jobs ADD COLUMN decision TEXT;
        ALTER TABLE holdfast_jobs ADD COLUMN approval TEXT NOT NULL DEFAULT '';
        ALTER TABLE holdfast_jobs ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE holdfast_events ADD COLUMN run TEXT NOT NULL DEFAULT '';
        DROP INDEX holdfast_jobs_scheduled;
    """,
}

CHECKED_BYTES_MAX = 64 * 1024 * 1024
"""Up to this size every page is looked at when the file is opened (a tenth of a second). Damage in a
larger one is found when it is read, and refused then."""

_LIVE = f"{SELECT_JOB} FROM holdfast_jobs WHERE look_at IS NOT NULL AND id > ? ORDER BY id LIMIT ?"
_SCHEMA = Path(__file__).with_name("tables.sql")


def open_reader(path: str) -> apsw.Connection:
    """A connection that writes nothing, and waits for nobody who does."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    keep_plans(connection)
    connection.execute("PRAGMA query_only = ON")
    return connection


def translated(error: LockError) -> HoldfastError:
    """The file's errors are typed by the lock library, which knows nothing of the control plane."""
    if isinstance(error.__cause__, ValueError) and isinstance(error, Unavailable):
        return Invalid(f"this cannot be stored: {type(error.__cause__).__name__}")
    subject, _, detail = str(error).partition(": ")
    return StoreUnavailable(subject, detail, applied=error.applied if isinstance(error, Unavailable) else False)


class Listener(Protocol):
    def heard(self, events: Sequence[JobEvent], arrivals: set[str]) -> None: ...


class PlanePart:
    """What the stores of one process and file have in common."""

    def __init__(self, writer: Writer, runtime: Runtime) -> None:
        self.writer = writer
        self._runtime = runtime
        self._offset_s = 0.0
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}

    def now(self) -> float:
        """Epoch seconds that do not step: the distance to the epoch is measured once per boot of the host."""
        return self._offset_s + self._runtime.now()

    def prepare(self, connection: apsw.Connection) -> None:
        version = _meta(connection, "plane_version")
        if version is not None and version > PLANE_VERSION:
            raise StoreRefused(
                self.writer.shown, "this file was written by a newer Holdfast", next_step="Upgrade this process first"
            )
        self._refuse_damaged(connection)
        for older in range(version or PLANE_VERSION, PLANE_VERSION):
            connection.execute(_UPGRADES[older])
        connection.execute(_SCHEMA.read_text())
        _set_meta(connection, "plane_version", PLANE_VERSION)
        self._offset_s = self._measured_offset(connection)

    def _refuse_damaged(self, connection: apsw.Connection) -> None:
        if connection.pragma("page_count") * connection.pragma("page_size") > CHECKED_BYTES_MAX:
            return
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise StoreRefused(self.writer.shown, "the file is damaged", next_step="Restore it from a backup")

    def begin(self, connection: apsw.Connection) -> SqliteLedger:
        return SqliteLedger(connection, self.now())

    def committed(self, unit: SqliteLedger) -> None:
        if not unit.events and not unit.arrivals:
            return
        for listener, loop in tuple(self._listeners.items()):
            try:
                # After those who wait for the commit, who are woken at this moment: their answers come first.
                loop.call_soon_threadsafe(loop.call_soon, listener.heard, unit.events, unit.arrivals)
            except RuntimeError:  # that loop is closed: nobody is listening any more
                continue

    def listen(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listeners[listener] = loop

    def ignore(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def adopt_topics(self, connection: apsw.Connection, topics: Topics) -> None:
        """Work out anew when each live job is to be looked at, if the topics' limits are not those of before."""
        digest = hashlib.sha256(repr(topics).encode()).hexdigest()
        if _meta(connection, "topics") == digest:
            return
        _set_meta(connection, "topics", digest)
        after = ""
        while jobs := [job_of(row) for row in connection.execute(_LIVE, (after, REVIEW_MAX))]:
            connection.executemany(
                "UPDATE holdfast_jobs SET look_at = ? WHERE id = ?",
                [(look_at(job, topics.get), job.id) for job in jobs],
            )
            after = jobs[-1].id

    def _measured_offset(self, connection: apsw.Connection) -> float:
        kept = find_offset(connection, self._runtime)
        if kept is not None:
            return kept
        # A host may come up with a clock that is behind: what is in the file has happened before.
        last = connection.execute("SELECT at FROM holdfast_events ORDER BY number DESC LIMIT 1").fetchone()
        wall_s = self._runtime.wall_us() / 1e6
        offset = max(wall_s, float(last[0]) if last else wall_s) - self._runtime.now()
        _set_meta(connection, "clock_boot_id", self._runtime.boot_id())
        _set_meta(connection, "clock_offset", offset)
        return offset


def find_offset(connection: apsw.Connection, runtime: Runtime) -> float | None:
    """From `Runtime.now()` to the epoch, as a plane has measured it since this boot; None: there was none. All planes of a
    boot have the same, and keep it when the host's clock is set: leases and timeouts must not step."""
    if _meta(connection, "clock_boot_id") != runtime.boot_id():
        return None
    return float(_meta(connection, "clock_offset"))


def _meta(connection: apsw.Connection, name: str) -> Any:
    row = connection.execute("SELECT value FROM holdfast_meta WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _set_meta(connection: apsw.Connection, name: str, value: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO holdfast_meta VALUES (?, ?)", (name, value))
