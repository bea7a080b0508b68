"""What happens, as it happens: one subscription to the store feeds every long poll and event stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from holdfast.core.family import fits
from holdfast.core.job import JobId, Tenant
from holdfast.core.states import TERMINAL
from holdfast.flow.newest import newest_number
from holdfast.gateway.views import event_view
from holdfast.gateway.waiting import Hints
from holdfast.ports import JobEvent, Store

QUEUE_MAX = 1000
"""Events that one reader may be behind. Then its stream ends, and it resumes from the log."""
QUEUE_BYTES_MAX = 8 << 20
"""Likewise: an event may carry an error of a megabyte."""
LINE_ENDS = tuple((chr(n).encode(), b"\\u%04x" % n) for n in (0x85, 0x2028, 0x2029))
"""They end no line of a stream, but many readers cut lines where Unicode does. JSON may have them as they are, or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    tenant: Tenant
    job_id: JobId | None
    kinds: tuple[str, ...]
    """Exact, or families ending in `*`; none means all."""
    run: str | None = None

    def matches(self, event: JobEvent) -> bool:
        return (
            event.tenant == self.tenant
            and self.job_id in {None, event.job_id}
            and self.run in {None, event.run}
            and (not self.kinds or fits(event.kind, *self.kinds))
        )


@dataclass(slots=True, eq=False)
class Reader:
    """One stream's queue. Bounded: a reader that falls behind is `overrun` and gets nothing more."""

    wanted: Wanted
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    queued_bytes: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    overrun: bool = False
    behind: bool = False
    """Something was written that this process did not hear of: the log has it."""

    def put(self, number: int, text: bytes) -> None:
        if len(self.queue) >= QUEUE_MAX or self.queued_bytes >= QUEUE_BYTES_MAX:
            self.overrun = True
        elif self.keeps_up():
            self.queue.append((number, text))
            self.queued_bytes += len(text)
        self.news.set()

    def keeps_up(self) -> bool:
        return not (self.overrun or self.behind)

    def fall_behind(self) -> None:
        self.behind = True
        self.news.set()

    def take(self) -> list[tuple[int, bytes]]:
        self.news.clear()
        taken = list(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        return taken


class Feed:
    def __init__(self, store: Store) -> None:
        self.jobs = Hints()
        """By a job's id: something happened to it."""
        self.ends = Hints()
        """By a job's id: it has ended."""
        self.runs = Hints()
        """By a run's id: something happened to the run itself."""
        self.heard_until = 0
        """The number of the newest event that was heard of; 0 until `last_number` is asked or one is heard."""
        self._store = store
        self._readers: set[Reader] = set()
        self._end = store.subscribe(self._heard)

    @property
    def closed(self) -> bool:
        return self.jobs.closed

    def close(self) -> None:
        self._end()
        self.jobs.close()
        self.ends.close()
        self.runs.close()
        for reader in self._readers:
            reader.news.set()

    @contextmanager
    def reading(self, wanted: Wanted) -> Iterator[Reader]:
        reader = Reader(wanted)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def last_number(self) -> int:
        """Of the newest event; 0 if there is none. Asked of the store: of what another process wrote, the word may not have come."""
        newest = await newest_number(self._store, at_least=self.heard_until)
        # No further than was heard, once something was: by that readers know what they have missed.
        self.heard_until = self.heard_until or newest
        return newest

    def _heard(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            self.jobs.give(event.job_id)
            if event.state in TERMINAL:
                self.ends.give(event.job_id)
            if not event.job_id and event.kind.startswith("run."):
                self.runs.give(event.run)
            if self._readers:
                self._fan_out(event)
            self.heard_until = event.number

    def _fan_out(self, event: JobEvent) -> None:
        if event.number > self.heard_until + 1:
            for reader in self._readers:
                reader.fall_behind()
        text = b""
        for reader in self._readers:
            if reader.wanted.matches(event):
                # Encoded once, for the first reader that wants it.
                text = text or sse_text(event)
                reader.put(event.number, text)


def sse_text(event: JobEvent) -> bytes:
    told = msgspec.json.encode(event_view(event))
    if not told.isascii():
        for character, escaped in LINE_ENDS:
            told = told.replace(character, escaped)
    return b"id: %d\ndata: %b\n\n" % (event.number, told)
