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
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import apsw

from holdfast.locks.errors import LockError, StoreRefused, Unavailable
from holdfast.locks.runtime import FORKS
from holdfast.locks.stores.sqlite.file import (
    APPLICATION_ID,
    FORKING,
    SCHEMA_VERSION,
    identity,
    make_private,
    refuse_foreign,
    refuse_replaced,
)

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime

BATCH_MAX = 512
PRUNE_EVERY_COMMITS = 500
BUSY_TIMEOUT_MS = 2000
#: Pages of the log (16 MiB) before its content is copied into the file. The commit that does it takes ten times as
#: long as others: with SQLite's own 1000 that is one of a hundred, which is what the slowest hundredth of jobs is.
CHECKPOINT_PAGES = 4000

MEMORY = ":memory:"
"""Starts the name of a database that is not in a file."""

_SCHEMA = Path(__file__).with_name("locks.sql")


class Unit(Protocol):
    """What one part does inside one transaction. Its verbs may be run again in another one."""

    def finish(self) -> None:
        """Write what its verbs have in common. The last statements before the commit."""

    def prune(self) -> None:
        """Remove a bounded amount of what has become old."""


class Part(Protocol):
    """One store's share of the file: the locks, or the control plane's jobs."""

    def prepare(self, connection: apsw.Connection) -> None:
        """Make or check its tables, once, inside a transaction."""

    def begin(self, connection: apsw.Connection) -> Any:
        """The part's `Unit` for the transaction that has just begun: what its verbs are called with."""

    def committed(self, unit: Any) -> None:
        """The unit is durable. Called in the writer's thread."""


class Request:
    """One verb on its way through the writer. `begun` and `abandoned` settle who may answer it.

    A verb refuses by returning an exception; one that raises has its transaction rolled back.
    """

    __slots__ = ("abandoned", "begun", "deadline", "future", "part", "verb")

    def __init__(self, part: Part, verb: Callable[[Any], Any], future: asyncio.Future[Any], deadline: float) -> None:
        self.part = part
        self.verb = verb
        self.future = future
        self.deadline = deadline
        self.begun = False
        self.abandoned = False


def keep_plans(connection: apsw.Connection) -> None:
    """Plan a statement once, whatever it is told: SQLite would plan most queries anew for each new value, which takes
    several times as long as they do, and choose the same way, for there are no statistics to choose by."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


_writers: dict[tuple[str, Runtime, int], Writer] = {}
_writers_lock = threading.Lock()


def join(path: str, shown: str, runtime: Runtime, name: str, make: Callable[[Writer], Part]) -> Part:
    """Become a user of a file, and of its part `name`, which the first one makes.

    A process has one writer per file, so that all its stores share their fsyncs; a forked child
    gets one of its own. Blocks; raises `StoreRefused` or `Unavailable`, and then the caller is no user.
    """
    place = (path if path.startswith(MEMORY) else os.path.realpath(path), runtime, FORKS.generation)
    while True:
        with _writers_lock:
            for idle in [p for p, writer in _writers.items() if writer.closing]:
                del _writers[idle]
            writer = _writers.get(place)
            if writer is None:
                writer = _writers[place] = Writer(path, shown, runtime)
        part = writer.join(name, make)
        if part is not None:  # else its last user left at this moment
            return part


class Writer:
    """Runs verbs in transactions, in a thread of its own; in place where the runtime says inline."""

    def __init__(self, path: str, shown: str, runtime: Runtime) -> None:
        self.closing = False
        self._path = path
        self.shown = shown
        self._runtime = runtime
        self._inline = runtime.inline()
        self._urgent: deque[Request] = deque()
        self._normal: deque[Request] = deque()
        self._doorbell: SimpleQueue[None] = SimpleQueue()
        self._idle = False
        self.turn = threading.Lock()
        """Held during a transaction."""
        self._membership = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._parts: dict[str, Part] = {}
        self._users = 0
        self._lock_file = -1
        self._opened: tuple[int, int] | None = None
        """Which file it is; None in memory."""
        self._thread: threading.Thread | None = None
        self._commits = 0
        FORKING.close_in_child(self)

    def join(self, name: str, make: Callable[[Writer], Part]) -> Part | None:
        """As the function `join`; None if the writer has closed."""
        with self._membership:
            if self.closing:
                return None
            try:
                with self.turn:
                    try:
                        self._add(name, make)
                    finally:
                        if not self._parts:
                            self.let_go()
            except (apsw.Error, OSError) as error:
                raise self.typed(error) from error
            self._users += 1
            if self._thread is None and not self._inline:
                self._thread = threading.Thread(target=self._serve, name="holdfast-sqlite-writer", daemon=True)
                self._thread.start()
            return self._parts[name]

    def _add(self, name: str, make: Callable[[Writer], Part]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        if name not in self._parts:
            part = make(self)
            self._in_transaction(part.prepare)
            self._parts[name] = part

    def submit(self, request: Request, *, urgent: bool = False) -> None:
        if self._connection is None or self.closing:
            raise Unavailable(self.shown, "the store is closed", applied=False)
        (self._urgent if urgent else self._normal).append(request)
        if self._inline:
            self._commit_batch(self._take())
        elif self._idle:
            self._idle = False  # rung once: whoever comes until it has woken need not ring again
            self._doorbell.put(None)

    def leave(self) -> None:
        """Be a user no more. The last one finishes what was begun, then lets go of the file."""
        with self._membership:
            self._users -= 1
            if self._users or self.closing:
                return
            self.closing = True
        self._doorbell.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(BUSY_TIMEOUT_MS / 1000)
            if self._thread.is_alive():
                return  # stuck behind another process's write lock; a daemon thread, it ends with us
        with self.turn:
            self.let_go()

    def let_go(self) -> None:
        """Of the file. Its turn is the caller's: a forked child's too, where its thread has stayed behind."""
        self.closing = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _connect(self) -> apsw.Connection:
        shared = not self._path.startswith(MEMORY) and not self._inline
        if shared:
            make_private(Path(self._path), self.shown)
        connection = apsw.Connection(MEMORY if self._path.startswith(MEMORY) else self._path)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            keep_plans(connection)
            refuse_foreign(connection, self.shown)
            if shared:
                self._lock_file = os.open(f"{self._path}-writers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock_writers()
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.wal_autocheckpoint(CHECKPOINT_PAGES)
                self._opened = identity(self._path) if shared else None
            finally:
                self._unlock_writers()
        except BaseException:
            connection.close()
            raise
        return connection

    def prepare(self, steps: Callable[[apsw.Connection], None]) -> None:
        """Run further preparations of a part in a transaction of their own. Blocks, raises as `join`."""
        try:
            with self.turn:
                self._in_transaction(steps)
        except (apsw.Error, OSError) as error:
            raise self.typed(error) from error

    def _in_transaction(self, prepare: Callable[[apsw.Connection], None]) -> None:
        connection = self._connection
        assert connection is not None
        self._lock_writers()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute(_SCHEMA.read_text())
                prepare(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        finally:
            self._unlock_writers()

    def _serve(self) -> None:
        while True:
            batch = self._take()
            if batch:
                self._commit_batch(batch)
                continue
            # Say "idle" first, then look once more: a request that came in between rings nobody. Two may ring at once,
            # and then it wakes once for nothing.
            self._idle = True
            if not self._urgent and not self._normal:
                if self.closing:
                    return
                self._doorbell.get()
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
        units: dict[Part, Unit] = {}
        try:
            with self.turn:
                self._lock_writers()
                try:
                    answers, units = self._transact(batch)
                finally:
                    self._unlock_writers()
        except Exception as error:  # noqa: BLE001  (typed below, and given to every caller of the batch)
            if len(batch) > 1 and _blames_the_request(error):
                for request in batch:  # one that cannot be carried out must not fail its neighbours
                    self._commit_batch([request])
                return
            answers = [(request, self.typed(error)) for request in batch]
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Any]]] = {}
        for request, answer in answers:
            by_loop.setdefault(request.future.get_loop(), []).append((request, answer))
        for loop, settled in by_loop.items():
            if self._inline:
                _settle(settled)
            else:
                try:
                    loop.call_soon_threadsafe(_settle, settled)
                except RuntimeError:  # that loop is closed: nobody is waiting any more
                    continue
        for part, unit in units.items():
            part.committed(unit)

    def _transact(self, batch: list[Request]) -> tuple[list[tuple[Request, Any]], dict[Part, Unit]]:
        connection = self._connection
        assert connection is not None
        refuse_replaced(self._path, self._opened, self.shown)
        connection.execute("BEGIN IMMEDIATE")
        try:
            units: dict[Part, Unit] = {}
            answers = []
            for request in batch:
                request.begun = True
                # Abandoned by its caller before it began: told "not applied", so it must stay so.
                if not request.abandoned:
                    unit = units.get(request.part)
                    if unit is None:
                        unit = units[request.part] = request.part.begin(connection)
                    answers.append((request, request.verb(unit)))
            self._commits += 1
            for unit in units.values():
                if self._commits % PRUNE_EVERY_COMMITS == 0:
                    unit.prune()
                unit.finish()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answers, units

    def _lock_writers(self) -> None:
        """Queue for the file in the kernel: SQLite's own busy wait polls, and starves."""
        if self._lock_file >= 0:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)

    def _unlock_writers(self) -> None:
        if self._lock_file >= 0:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def typed(self, error: Exception) -> LockError:
        match error:
            case LockError():
                return error
            case apsw.FullError():
                return StoreRefused(
                    self.shown, "the disk is full, nothing was written", next_step="Free some space", full=True
                )
            case apsw.ReadOnlyError() | PermissionError():
                return StoreRefused(
                    self.shown, "the file is read-only", next_step="Check the owner and mode of file and folder"
                )
            case apsw.NotADBError() | apsw.CorruptError():
                return StoreRefused(
                    self.shown,
                    "not a SQLite database, or a damaged one",
                    next_step="Restore it from a backup, or name another file",
                )
            case apsw.CantOpenError() | OSError():
                return StoreRefused(
                    self.shown, "the file cannot be opened", next_step="Check that its folder exists and is writable"
                )
            case apsw.BusyError() | apsw.LockedError():
                return Unavailable(self.shown, "another process keeps the file locked", applied=False)
            case _:
                # An I/O error inside COMMIT leaves open whether the log reached the disk.
                applied = False if _blames_the_request(error) else None
                unavailable = Unavailable(self.shown, f"{type(error).__name__}", applied=applied)
                unavailable.__cause__ = error
                return unavailable


def _blames_the_request(error: Exception) -> bool:
    """Whether a verb could not be carried out, as against a file that could not be written."""
    if isinstance(error, apsw.Error):
        return isinstance(error, apsw.ConstraintError | apsw.TooBigError | apsw.MismatchError)
    return not isinstance(error, OSError)


def _settle(answers: list[tuple[Request, Any]]) -> None:
    for request, answer in answers:
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
