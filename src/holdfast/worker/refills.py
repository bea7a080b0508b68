"""Refills: jobs that come with the answer to an outcome, into the places of those that have ended.

An outcome may bring somebody for the place that it leaves: then a chain of steps needs one request for each. The
places of a claim are the claim's, whether it waits already or is about to be sent.

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
        # Without a claim under way, the next one is for the places that were free before these ended. A worker that
        # was full has none but theirs, and leaves them to its claim: that one finds what has waited, an answer does not.
        free = self.room() - (self._claimed or ended)
        places = 0 if self._lost else max(0, min(free, ended))
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
