"""The file itself: that it is ours, nobody else's to read, and not a forked child's to go on with."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from holdfast.locks.errors import StoreRefused

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

APPLICATION_ID = 0x486F6C64  # "Hold"
SCHEMA_VERSION = 1


FORK_S_MAX = 2.0


class Inherited(Protocol):
    """A connection that a forked child must not have."""

    turn: threading.Lock
    """Held while it is used."""

    def let_go(self) -> None:
        """Close it. Its turn is the caller's."""


class _Forking:
    """Closes in a forked child what it has inherited.

    SQLite's locks on a file are the parent's, while the child's memory says that they are held. Whatever the child opens
    next believes that, too: once the parent closes the file, the log that the child writes to is removed under it, and
    what was committed is gone. Closed in the middle of its use a connection would spoil what the parent sees: so forks
    wait for their turn.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._open: weakref.WeakSet[Inherited] = weakref.WeakSet()
        self._held: list[Inherited] = []
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def close_in_child(self, connection: Inherited) -> None:
        with self._changing:
            self._open.add(connection)

    def _before(self) -> None:
        self._changing.acquire()
        # Not for ever: whoever is stuck behind another process's write is left to the child as it is.
        self._held = [connection for connection in self._open if connection.turn.acquire(timeout=FORK_S_MAX)]

    def _in_parent(self) -> None:
        for connection in self._held:
            connection.turn.release()
        self._held = []
        self._changing.release()

    def _in_child(self) -> None:
        for connection in self._held:
            connection.let_go()
        self._open.clear()
        self._in_parent()


FORKING = _Forking()


def make_private(path: Path, shown: str) -> None:
    """A file that only its owner can read: tokens, payloads and secrets are in it. What SQLite puts beside it has its mode,
    and one that is there already keeps its own: whoever chose it had reasons."""
    # The folder is not made here: of a misspelt path there would be an empty store, and two processes that exclude nobody.
    if not path.parent.exists():
        step = "Create it, or correct the URL: an absolute path has four slashes, sqlite:////srv/locks.db"
        raise StoreRefused(shown, f"there is no folder {path.parent}", next_step=step)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def identity(path: str) -> tuple[int, int] | None:
    """Which file a name leads to now; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  (for every commit; a Path would take four times as long)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def refuse_replaced(path: str, opened: tuple[int, int] | None, shown: str) -> None:
    """Whoever opens the name from now on has another file, or a new one: what is written here excludes nobody."""
    if opened is not None and identity(path) != opened:
        raise StoreRefused(
            shown,
            "the file was removed or replaced while this process had it open",
            next_step="End every process that uses it, then start them again",
        )


def refuse_foreign(connection: apsw.Connection, shown: str) -> None:
    with connection:  # one snapshot for both, or a file that is just being made looks foreign
        application_id = connection.pragma("application_id")
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    if application_id != APPLICATION_ID and not empty:
        raise StoreRefused(
            shown, "this database belongs to another program", next_step="Name a file of its own for Holdfast"
        )
    if application_id == APPLICATION_ID and connection.pragma("user_version") > SCHEMA_VERSION:
        raise StoreRefused(shown, "this file was written by a newer Holdfast", next_step="Upgrade this process first")
