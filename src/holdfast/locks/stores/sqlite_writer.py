"""One writer per process and file: a thread that commits whatever has queued up as one transaction.

Durable commits are cheap in company: one fsync carries every request that arrived during the
last one. `synchronous=FULL` is not negotiable, NORMAL loses acknowledged grants at a power cut.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.stores.sqlite_table import Table, Waking

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

APPLICATION_ID = 0x486F6C64  # "Hold"
SCHEMA_VERSION = 1
BATCH_MAX = 512
PRUNE_EVERY_COMMITS = 500
BUSY_TIMEOUT_MS = 2000

_SCHEMA = Path(__file__).with_name("sqlite.sql")


class Request:
    """One verb on its way through the writer. `begun` and `abandoned` settle who may answer it."""

    __slots__ = ("abandoned", "begun", "deadline", "future", "verb")

    def __init__(self, verb: Callable[[Table], Any], future: asyncio.Future[Any], deadline: float) -> None:
        self.verb = verb
        self.future = future
        self.deadline = deadline
        self.begun = False
        self.abandoned = False


class Writer:
    """Runs verbs in transactions, in a thread of its own; in place where the runtime says inline."""

    def __init__(self, path: str, shown: str, runtime: Runtime, wake: Callable[[list[Waking]], None]) -> None:
        self._path = path
        self._shown = shown
        self._runtime = runtime
        self._wake = wake
        self._urgent: deque[Request] = deque()
        self._normal: deque[Request] = deque()
        self._doorbell = threading.Condition(threading.Lock())
        self._idle = False
        self._connection: apsw.Connection | None = None
        self._lock_file = -1
        self._thread: threading.Thread | None = None
        self._closing = False
        self._commits = 0

    def open(self) -> None:
        """Open the file and prepare it. Blocks; raises `StoreRefused` or `Unavailable`."""
        if self._connection is not None:
            return
        try:
            self._connection = self._connect()
        except (apsw.Error, OSError) as error:
            raise self._typed(error) from error
        if not self._runtime.inline():
            self._thread = threading.Thread(target=self._serve, name="holdfast-sqlite-writer", daemon=True)
            self._thread.start()

    def submit(self, request: Request, *, urgent: bool = False) -> None:
        if self._connection is None or self._closing:
            raise Unavailable(self._shown, "the store is closed", applied=False)
        (self._urgent if urgent else self._normal).append(request)
        if self._runtime.inline():
            self._commit_batch(self._take())
        elif self._idle:
            with self._doorbell:
                self._doorbell.notify()

    def close(self) -> None:
        """Finish what was begun, then let go of the file."""
        if self._connection is None or self._closing:
            return
        self._closing = True
        with self._doorbell:
            self._doorbell.notify()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(BUSY_TIMEOUT_MS / 1000)
            if self._thread.is_alive():
                return  # stuck behind another process's write lock; a daemon thread, it ends with us
        self._connection.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)

    def _connect(self) -> apsw.Connection:
        shared = self._path != ":memory:" and not self._runtime.inline()
        if shared:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        connection = apsw.Connection(self._path)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._refuse_foreign(connection)
            if shared:
                self._lock_file = os.open(f"{self._path}-writers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock_writers()
            try:
                self._prepare(connection)
            finally:
                self._unlock_writers()
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute(_SCHEMA.read_text())
            Table(connection, self._runtime).forget_other_boots(self._runtime.boot_id())
        connection.execute("COMMIT")

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        with connection:  # one snapshot for both, or a file that is just being made looks foreign
            application_id = connection.pragma("application_id")
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if application_id != APPLICATION_ID and not empty:
            raise StoreRefused(
                self._shown, "this database belongs to another program", next_step="Name a file of its own for Holdfast"
            )
        if application_id == APPLICATION_ID and connection.pragma("user_version") > SCHEMA_VERSION:
            raise StoreRefused(
                self._shown, "this file was written by a newer Holdfast", next_step="Upgrade this process first"
            )

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch:
                self._commit_batch(batch)
                continue
            with self._doorbell:
                # Say "idle" first, then look once more: a request that came in between rings nobody.
                self._idle = True
                if not self._urgent and not self._normal:
                    if self._closing:
                        return
                    self._doorbell.wait()
                self._idle = False

    def _take(self) -> list[Request]:
        """The next batch, renewals first, without those whose callers have given up."""
        batch: list[Request] = []
        for queue in (self._urgent, self._normal):
            while queue and len(batch) < BATCH_MAX:
                batch.append(queue.popleft())
        return batch

    def _commit_batch(self, batch: list[Request]) -> None:
        answers: list[tuple[Request, Any]]
        wakings: list[Waking] = []
        try:
            self._lock_writers()
            try:
                answers, wakings = self._transact(batch)
            finally:
                self._unlock_writers()
        except Exception as error:  # noqa: BLE001  (typed below, and given to every caller of the batch)
            answers = [(request, self._typed(error)) for request in batch]
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Any]]] = {}
        for request, answer in answers:
            by_loop.setdefault(request.future.get_loop(), []).append((request, answer))
        for loop, settled in by_loop.items():
            if self._runtime.inline():
                _settle(settled)
            else:
                try:
                    loop.call_soon_threadsafe(_settle, settled)
                except RuntimeError:  # that loop is closed: nobody is waiting any more
                    continue
        if wakings:
            self._wake(wakings)

    def _transact(self, batch: list[Request]) -> tuple[list[tuple[Request, Any]], list[Waking]]:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            table = Table(connection, self._runtime)
            answers = []
            for request in batch:
                request.begun = True
                # Abandoned by its caller before it began: told "not applied", so it must stay so.
                if not request.abandoned:
                    answers.append((request, request.verb(table)))
            self._commits += 1
            if self._commits % PRUNE_EVERY_COMMITS == 0:
                table.prune()
            table.finish()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answers, table.wakings

    def _lock_writers(self) -> None:
        """Queue for the file in the kernel: SQLite's own busy wait polls, and starves."""
        if self._lock_file >= 0:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)

    def _unlock_writers(self) -> None:
        if self._lock_file >= 0:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _typed(self, error: Exception) -> LockError:
        match error:
            case LockError():
                return error
            case apsw.FullError():
                return StoreRefused(self._shown, "the disk is full, nothing was written", next_step="Free some space")
            case apsw.ReadOnlyError() | PermissionError():
                return StoreRefused(
                    self._shown, "the file is read-only", next_step="Check the owner and mode of file and folder"
                )
            case apsw.NotADBError() | apsw.CorruptError():
                return StoreRefused(
                    self._shown,
                    "not a SQLite database, or a damaged one",
                    next_step="Restore it from a backup, or name another file",
                )
            case apsw.CantOpenError() | OSError():
                return StoreRefused(
                    self._shown, "the file cannot be opened", next_step="Check that its folder exists and is writable"
                )
            case apsw.BusyError() | apsw.LockedError():
                return Unavailable(self._shown, "another process keeps the file locked", applied=False)
            case _:
                # An I/O error inside COMMIT leaves open whether the log reached the disk.
                return Unavailable(self._shown, f"{type(error).__name__}", applied=None)


def _settle(answers: list[tuple[Request, Any]]) -> None:
    for request, answer in answers:
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
