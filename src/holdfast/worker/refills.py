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
    """`freed` is called when places that were kept for an answer are free again."""

    def __init__(self, freed: Callable[[], None]) -> None:
        self.asked = 0
        """Places that an answer on its way may fill."""
        self._lost = False
        """An answer that may have brought something."""
        self._freed = freed
        self._beside_claim = False
        self._left = 0
        """Places that were left since the claim that waits was sent."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def wait_claimable(self) -> None:
        """Until a claim may be sent."""
        if self._lost:
            await self._all_answered.wait()

    @contextmanager
    def claiming(self) -> Iterator[bool]:
        """While a claim is under way. True: it must say what this worker holds."""
        recalls = self._lost
        self._beside_claim, self._left = not recalls, 0
        try:
            yield recalls
            if recalls:
                self._lost = False
        except Unreachable:
            self._lost = True
            raise
        finally:
            self._beside_claim = False

    def place_left(self) -> None:
        self._left += 1

    @contextmanager
    def asking(self, most: int) -> Iterator[int]:
        """How many may be asked for with outcomes that are sent now."""
        places = min(self._left, most) if self._beside_claim else 0
        self._left -= places
        self.asked += places
        if places:
            self._all_answered.clear()
        try:
            yield places
        except BaseException:
            self._lost = self._lost or places > 0
            raise
        finally:
            self.asked -= places
            if places:
                self._all_answered.set()
                self._freed()
