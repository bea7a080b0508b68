"""The calls of one event loop on one part of a SQLite file: each is answered, or given up in time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.locks.errors import Unavailable
from holdfast.locks.stores.sqlite.writer import Part, Request, Writer


class Calls:
    def __init__(self, writer: Writer, part: Part, *, shown: str, timeout_s: float) -> None:
        self._writer = writer
        self._part = part
        self._shown = shown
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Request] = deque()
        """In order of their deadlines; those in front may have been answered."""
        self._watch: asyncio.TimerHandle | None = None

    def call(self, verb: Callable[[Any], Any], *, urgent: bool = False) -> asyncio.Future[Any]:
        """Run `verb(unit)` in a transaction. The future has its answer once that is durable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        request = Request(self._part, verb, future, self._loop.time() + self._timeout_s)
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()
        waiting.append(request)
        self._writer.submit(request, urgent=urgent)
        if self._watch is None and not future.done():
            self._watch = self._loop.call_later(self._timeout_s, self._give_up_on_overdue)
        return future

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _give_up_on_overdue(self) -> None:
        """One timer for all calls: fail those that are late, look again when the next one would be."""
        self._watch = None
        now = self._loop.time()
        waiting = self._waiting
        while waiting and (waiting[0].future.done() or waiting[0].deadline <= now):
            request = waiting.popleft()
            if not request.future.done():
                # Set before it is read by the writer, so "not applied" is certain if it had not begun.
                request.abandoned = True
                applied = None if request.begun else False
                request.future.set_exception(Unavailable(self._shown, "no answer in time", applied=applied))
        if waiting:
            self._watch = self._loop.call_at(waiting[0].deadline, self._give_up_on_overdue)
