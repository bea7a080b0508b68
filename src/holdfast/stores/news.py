"""Who is told of commits: listeners in this process at once, other planes by a word of the store (NOTIFY, pub/sub).

Events are handed on in the order of their numbers, whoever wrote them. What another plane wrote is read from the table,
for a notification only says how far there is news. All of it is a hint: nobody is told when nothing could be heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.ports import JobEvent
from holdfast.stores.batch import BatchLedger

READ_MAX = 500
BEHIND_MAX = 5000
"""Whoever is this many events behind is not told of the oldest: they are in the table."""
WORD_BYTES_MAX = 7000
"""What every store takes: Postgres 8,000."""


class Word(msgspec.Struct, array_like=True):
    """What one plane tells the others."""

    plane: str
    last: int
    """The number of its last event."""
    workers: list[str]
    """Who has something to take."""


class News:
    def __init__(self, plane: str, read: Callable[[int, int], Awaitable[list[JobEvent]]]) -> None:
        self._plane = plane
        self._read = read
        self._listeners: list[Callable[[Sequence[JobEvent]], None]] = []
        self._arrival_listeners: list[Callable[[str], None]] = []
        self._told = 0
        self._known = 0
        self._task: asyncio.Task[None] | None = None
        self._open = False

    def start(self, last: int) -> None:
        self._open = True
        self._told = self._known = last

    async def close(self) -> None:
        self._open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def last(self) -> int:
        """The number of the last event that listeners were told of."""
        return self._told

    def subscribe(self, listener: Callable[[Sequence[JobEvent]], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def on_arrival(self, callback: Callable[[str], None]) -> None:
        self._arrival_listeners.append(callback)

    def words(self, ledger: BatchLedger) -> list[str]:
        """What is to be said of a commit: one word, or several where there are many workers. Of renewals, which are most of
        what a plane at work writes, nobody wants to hear."""
        if not ledger.events and not ledger.sent:
            return []
        parts: list[list[str]] = [[]]
        size = 0
        for worker in ledger.arrivals:
            size += len(msgspec.json.encode(worker)) + 1
            if size > WORD_BYTES_MAX:
                parts.append([])
                size = 0
            parts[-1].append(worker)
        return [msgspec.json.encode(Word(self._plane, ledger.last_number, part)).decode() for part in parts]

    def committed(self, ledger: BatchLedger) -> None:
        """By this process."""
        events = ledger.events
        if events and events[0].number == self._told + 1:
            self._tell(events)
        elif events:
            self._look_until(events[-1].number)  # another plane's come first
        self._arrived(ledger.arrivals)

    def heard(self, text: str) -> None:
        """A notification; empty: some may have been missed."""
        if not text:
            self._look_until(self._told + 1)
            self._arrived([""])
            return
        word = msgspec.json.decode(text, type=Word)
        if word.plane != self._plane:
            self._look_until(word.last)
            self._arrived(word.workers)

    def _look_until(self, number: int) -> None:
        self._known = max(self._known, number)
        if self._task is None and self._known > self._told and self._open:
            self._task = asyncio.create_task(self._catch_up(), name="holdfast-store-news")

    async def _catch_up(self) -> None:
        try:
            while self._told < self._known:
                events = await self._read(self._told, READ_MAX)
                # Not by the numbers alone: a failover leaves a gap that is longer.
                if len(events) == READ_MAX and self._known - events[-1].number > BEHIND_MAX:
                    self._told = max(self._told, self._known - BEHIND_MAX)
                    continue
                # Meanwhile this process may have told of its own.
                fresh = [event for event in events if event.number > self._told]
                if fresh:
                    self._tell(fresh)
                elif not events:
                    self._known = self._told  # there is no more
        except HoldfastError:
            self._known = self._told  # the next word tells again how far there is news
        finally:
            self._task = None

    def _tell(self, events: Sequence[JobEvent]) -> None:
        self._told = events[-1].number
        self._known = max(self._known, self._told)
        for listener in tuple(self._listeners):
            listener(events)

    def _arrived(self, workers: Sequence[str]) -> None:
        for worker in workers:
            for callback in self._arrival_listeners:
                callback(worker)
