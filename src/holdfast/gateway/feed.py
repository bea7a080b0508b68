"""What happens, as it happens: one subscription to the store feeds every long poll and event stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from holdfast.core.job import Tenant
from holdfast.gateway.views import event_view
from holdfast.gateway.waiting import Hints
from holdfast.ports import JobEvent, Store

QUEUE_MAX = 1000
"""Events that one reader may be behind. Then its stream ends, and it resumes from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    tenant: Tenant
    job_id: str | None
    kinds: tuple[str, ...]
    """Exact, or families ending in `*`; none means all."""

    def matches(self, event: JobEvent) -> bool:
        return (
            event.tenant == self.tenant
            and self.job_id in {None, event.job_id}
            and (not self.kinds or any(_fits(event.kind, kind) for kind in self.kinds))
        )


def _fits(kind: str, wanted: str) -> bool:
    return kind == wanted or (wanted.endswith("*") and kind.startswith(wanted[:-1]))


@dataclass(slots=True, eq=False)
class Reader:
    """One stream's queue. Bounded: a reader that falls behind is `overrun` and gets nothing more."""

    wanted: Wanted
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    overrun: bool = False

    def put(self, number: int, text: bytes) -> None:
        if len(self.queue) >= QUEUE_MAX:
            self.overrun = True
        elif not self.overrun:
            self.queue.append((number, text))
        self.news.set()

    def take(self) -> list[tuple[int, bytes]]:
        self.news.clear()
        taken = list(self.queue)
        self.queue.clear()
        return taken


class Feed:
    def __init__(self, store: Store) -> None:
        self.jobs = Hints()
        """Given by a job's id, at each of its events."""
        self._readers: set[Reader] = set()
        self._end = store.subscribe(self._heard)

    @property
    def closed(self) -> bool:
        return self.jobs.closed

    def close(self) -> None:
        self._end()
        self.jobs.close()
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

    def _heard(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            self.jobs.give(event.job_id)
            if self._readers:
                self._fan_out(event)

    def _fan_out(self, event: JobEvent) -> None:
        text = b""
        for reader in self._readers:
            if reader.wanted.matches(event):
                # Encoded once, for the first reader that wants it.
                text = text or sse_text(event)
                reader.put(event.number, text)


def sse_text(event: JobEvent) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (event.number, msgspec.json.encode(event_view(event)))
