"""Refills: jobs that come with the answer to an outcome, into the places of those that have ended.

A claim that waits was sent with the room there was. Whatever has ended since left one place more, and its outcome may
bring somebody for it: then a chain of steps needs one request for each, and the claim goes on waiting.

Whichever answer is lost, to a claim or to outcomes, the next claim says what this worker holds. Nothing is asked
for beside such a claim: what both answers name would be begun twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.worker.link import Unreachable


class Refills:
    """`vacant` says how many places nobody has; `freed` is called when some that were kept for an answer are free again."""

    def __init__(self, vacant: Callable[[], int], freed: Callable[[], None]) -> None:
        self._vacant = vacant
        self._asked = 0
        """Places that an answer to outcomes may fill."""
        self._claimed = 0
        """Places that the claim on its way may fill."""
        self._lost = False
        """An answer that may have brought something."""
        self._freed = freed
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def room(self) -> int:
        """Places for a claim."""
        return self._vacant() - self._asked

    async def wait_claimable(self) -> None:
        """Until a claim may be sent."""
        if self._lost:
            await self._all_answered.wait()

    @contextmanager
    def claiming(self, places: int) -> Iterator[bool]:
        """While a claim is under way. True: it must say what this worker holds."""
        recalls = self._lost
        self._claimed = places
        try:
            yield recalls
            if recalls:
                self._lost = False
        except Unreachable:
            self._lost = True
            raise
        finally:
            self._claimed = 0

    @contextmanager
    def asking(self, ended: int) -> Iterator[int]:
        """How many may be asked for with the outcomes of so many that have ended."""
        # A worker that was full has no claim under way, and leaves all to the next: that one finds what has waited, too.
        free = self.room() - self._claimed if self._claimed and not self._lost else 0
        places = max(0, min(free, ended))
        self._asked += places
        if places:
            self._all_answered.clear()
        try:
            yield places
        except BaseException:
            self._lost = self._lost or places > 0
            raise
        finally:
            self._asked -= places
            if places:
                self._all_answered.set()
                self._freed()
