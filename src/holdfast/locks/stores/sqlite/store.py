"""Locks in a SQLite file: `sqlite:///relative/locks.db`, `sqlite:////absolute/locks.db`, `sqlite:///:memory:`.

Several processes of one host may share a file. It must not lie on a network file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from holdfast.locks.errors import LockError, Unavailable
from holdfast.locks.port import Busy, Grant, Holder, Ownership, Renewal, Standing, WakeCallback, require_token
from holdfast.locks.stores import shown
from holdfast.locks.stores.sqlite.calls import Calls
from holdfast.locks.stores.sqlite.mailbox import Mailbox, Postman
from holdfast.locks.stores.sqlite.table import Ask, Known, Table
from holdfast.locks.stores.sqlite.writer import MEMORY, Writer, join

if TYPE_CHECKING:
    import apsw

    from holdfast.locks.runtime import Runtime


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> SqliteStore:  # noqa: ARG001
    return SqliteStore(path_of(url, runtime), shown(url), holder=holder, runtime=runtime, timeout_s=timeout_s)


def path_of(url: str, runtime: Runtime) -> str:
    """The file a URL names. One in memory gets a name, by which a store's siblings find it."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    # With two slashes the first folder of a path would be taken for a host, and another file opened than was meant.
    if parts.netloc or not path:
        raise ValueError(f"{shown(url)} names no file: a path begins after three slashes, as in sqlite:///locks.db")
    if path.startswith(MEMORY):
        return f"{MEMORY}{runtime.token()}" if path == MEMORY else path
    # As the folder is now: a program may change it, and what is opened later (the keeper's own connection) is the same file.
    return str(Path(path).absolute())


class _Shared:
    """What the lock stores of one process and file have in common: the table, and each other's wake-ups."""

    def __init__(self, writer: Writer, runtime: Runtime) -> None:
        self.writer = writer
        self.local: dict[str, SqliteStore] = {}
        self._runtime = runtime
        self._postman = Postman()
        self._known: Known | None = None

    def prepare(self, connection: apsw.Connection) -> None:
        self.begin(connection).forget_other_boots(self._runtime.boot_id())

    def begin(self, connection: apsw.Connection) -> Table:
        # Taken away, to be given back by the commit: after a rollback nothing is known.
        known, self._known = self._known, None
        return Table(connection, self._runtime, known)

    def committed(self, unit: Table) -> None:
        self._known = unit.known
        for mailbox, key, token in unit.wakings:
            near = self.local.get(mailbox)
            if near is not None:
                near.wake(key, token)
            elif not self._runtime.inline():
                self._postman.send(mailbox, key, token)

    def close(self) -> None:
        if not self.local:
            self._postman.close()


class SqliteStore:
    def __init__(self, path: str, url: str, *, holder: str, runtime: Runtime, timeout_s: float) -> None:
        self._path = path
        self._url = url
        self._holder = holder
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._mailbox = Mailbox(f"holdfast-{runtime.token()}", self._deliver)
        self._has_mailbox = runtime.inline()  # there it needs none
        self._callback: WakeCallback = lambda key, token: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared: _Shared
        self._calls: Calls | None = None
        self._joining: asyncio.Future[None] | None = None

    async def open(self) -> None:
        if self._calls is not None:
            return
        self._loop = asyncio.get_running_loop()
        if self._runtime.inline():
            self._join()
        else:
            # Who is cancelled meanwhile does not stop it. It is for whoever opens again, or closes, to go on from there.
            joining = self._joining = self._joining or self._loop.run_in_executor(None, self._join)
            await asyncio.wait([joining])
            self._joining = None
            joining.result()
        if self._calls is None:  # else somebody has waited for it as well
            self._shared.local[self._mailbox.name] = self
            self._calls = Calls(self._shared.writer, self._shared, shown=self._url, timeout_s=self._timeout_s)

    def acquire(
        self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1
    ) -> Awaitable[Grant | Busy]:
        require_token(token)
        ask = Ask(key, token, ttl_ms, queue_ms, fences, self._holder, self._mailbox.name)
        if queue_ms and not self._has_mailbox:
            return self._acquire_with_mailbox(ask)
        return self._submit(lambda table: table.acquire(ask))

    def renew(self, renewals: Sequence[Renewal]) -> Awaitable[list[Standing]]:
        return self._submit(lambda table: table.renew(renewals), urgent=True)

    def release(self, key: str, token: str) -> Awaitable[bool]:
        require_token(token)
        return self._submit(lambda table: table.release(key, token))

    def evict(self, key: str, fence: int, *, reason: str) -> Awaitable[bool]:
        return self._submit(lambda table: table.evict(key, fence, reason))

    def find_holder(self, key: str) -> Awaitable[Holder | None]:
        return self._submit(lambda table: table.find_holder(key))

    def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> Awaitable[list[Holder]]:
        return self._submit(lambda table: table.list_holders(prefix, after, limit))

    def list_history(self, key: str, *, limit: int = 100) -> Awaitable[list[Ownership]]:
        return self._submit(lambda table: table.list_history(key, limit))

    def on_wake(self, callback: WakeCallback) -> None:
        self._callback = callback

    def wake(self, key: str, token: str) -> None:
        """Called by the writer, from its thread."""
        if self._runtime.inline():
            self._deliver(key, token)
        elif self._loop is not None:
            with suppress(RuntimeError):  # that loop is closed, perhaps just now: nobody is waiting any more
                self._loop.call_soon_threadsafe(self._deliver, key, token)

    def sibling(self) -> SqliteStore:
        return SqliteStore(self._path, self._url, holder=self._holder, runtime=self._runtime, timeout_s=self._timeout_s)

    async def close(self) -> None:
        if self._joining is not None:  # its opening was cancelled
            with suppress(LockError):
                await self.open()
        if self._calls is None:
            return
        self._calls.close()
        self._calls = None
        self._mailbox.close()
        self._has_mailbox = self._runtime.inline()
        if self._runtime.inline():
            self._leave()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._leave)

    async def _acquire_with_mailbox(self, ask: Ask) -> Grant | Busy:
        self._has_mailbox = True
        try:
            await self._mailbox.open()
        except OSError:  # no descriptor left: it polls, and tries again with the next look
            self._has_mailbox = False
        if self._calls is None:  # closed meanwhile, and it with it
            self._mailbox.close()
        answer: Grant | Busy = await self._submit(lambda table: table.acquire(ask))
        return answer

    def _join(self) -> None:
        part = join(self._path, self._url, self._runtime, "locks", lambda writer: _Shared(writer, self._runtime))
        assert isinstance(part, _Shared)
        self._shared = part

    def _leave(self) -> None:
        self._shared.local.pop(self._mailbox.name, None)
        self._shared.writer.leave()
        self._shared.close()

    def _deliver(self, key: str, token: str) -> None:
        self._callback(key, token)

    def _submit(self, verb: Callable[[Table], Any], *, urgent: bool = False) -> asyncio.Future[Any]:
        if self._calls is None:
            raise Unavailable.not_open(self._url)
        return self._calls.call(verb, urgent=urgent)
