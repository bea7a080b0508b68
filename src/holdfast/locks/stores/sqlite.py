"""Locks in a SQLite file: `sqlite:///relative/locks.db`, `sqlite:////absolute/locks.db`, `sqlite:///:memory:`.

Several processes of one host may share a file. It must not lie on a network file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from holdfast.locks.errors import Unavailable
from holdfast.locks.port import Busy, Grant, Holder, Ownership, Renewal, Standing, WakeCallback, require_token
from holdfast.locks.stores import shown
from holdfast.locks.stores.sqlite_mailbox import Mailbox, Postman
from holdfast.locks.stores.sqlite_table import Ask, Table, Waking
from holdfast.locks.stores.sqlite_writer import Request, Writer

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


def open_store(url: str, *, holder: str, prefix: str, runtime: Runtime, timeout_s: float) -> SqliteStore:  # noqa: ARG001
    path = unquote(urlsplit(url).path).removeprefix("/")
    if not path:
        raise ValueError(f"{shown(url)} names no file; write sqlite:///locks.db")
    return SqliteStore(_Shared(path, shown(url), runtime), holder=holder, runtime=runtime, timeout_s=timeout_s)


class _Shared:
    """What the siblings of one store have in common: the writer, and each other's wake-ups."""

    def __init__(self, path: str, url: str, runtime: Runtime) -> None:
        self.url = url
        self.writer = Writer(path, url, runtime, self._wake)
        self.local: dict[str, SqliteStore] = {}
        self.users = 0
        self._inline = runtime.inline()
        self._postman: Postman | None = None

    def _wake(self, wakings: list[Waking]) -> None:
        for mailbox, key, token in wakings:
            near = self.local.get(mailbox)
            if near is not None:
                near.wake(key, token)
            elif not self._inline:
                self._postman = self._postman or Postman()
                self._postman.send(mailbox, key, token)

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.writer.close()
            if self._postman is not None:
                self._postman.close()


class SqliteStore:
    def __init__(self, shared: _Shared, *, holder: str, runtime: Runtime, timeout_s: float) -> None:
        self._shared = shared
        self._holder = holder
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._mailbox = Mailbox(f"holdfast-{runtime.token()}", self._deliver)
        self._has_mailbox = False
        self._callback: WakeCallback = lambda key, token: None
        self._waiting: set[Request] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False

    async def open(self) -> None:
        if self._open:
            return
        self._loop = asyncio.get_running_loop()
        if self._runtime.inline():
            self._shared.writer.open()
        else:
            await self._loop.run_in_executor(None, self._shared.writer.open)
        self._shared.users += 1
        self._shared.local[self._mailbox.name] = self
        self._open = True

    async def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        if queue_ms and not self._has_mailbox and not self._runtime.inline():
            self._has_mailbox = True
            await self._mailbox.open()
        require_token(token)
        ask = Ask(key, token, ttl_ms, queue_ms, fences, self._holder, self._mailbox.name)
        answer: Grant | Busy = await self._submit(lambda table: table.acquire(ask))
        return answer

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
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, key, token)

    def sibling(self) -> SqliteStore:
        return SqliteStore(self._shared, holder=self._holder, runtime=self._runtime, timeout_s=self._timeout_s)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._shared.local.pop(self._mailbox.name, None)
        self._mailbox.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._runtime.inline():
            self._shared.leave()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._shared.leave)

    def _deliver(self, key: str, token: str) -> None:
        self._callback(key, token)

    def _submit(self, verb: Callable[[Table], Any], *, urgent: bool = False) -> asyncio.Future[Any]:
        if not self._open or self._loop is None:
            raise Unavailable(self._shared.url, "the store is not open", applied=False)
        future: asyncio.Future[Any] = self._loop.create_future()
        request = Request(verb, future, self._loop.time() + self._timeout_s)
        self._waiting.add(request)
        self._shared.writer.submit(request, urgent=urgent)
        if self._watch is None and not future.done():
            self._watch = self._loop.call_later(self._timeout_s, self._give_up_on_overdue)
        return future

    def _give_up_on_overdue(self) -> None:
        """One timer for all calls: fail those that are late, look again when the next one would be."""
        assert self._loop is not None
        self._watch = None
        now = self._loop.time()
        self._waiting = {request for request in self._waiting if not request.future.done()}
        for request in self._waiting:
            if request.deadline <= now:
                # Set before it is read by the writer, so "not applied" is certain if it had not begun.
                request.abandoned = True
                applied = None if request.begun else False
                request.future.set_exception(Unavailable(self._shared.url, "no answer in time", applied=applied))
        pending = [request.deadline for request in self._waiting if request.deadline > now]
        if pending:
            self._watch = self._loop.call_at(min(pending), self._give_up_on_overdue)
