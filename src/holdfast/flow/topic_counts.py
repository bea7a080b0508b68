"""How many live jobs there are of each topic, for many who ask.

A store may have to read every live job for it, a tenth of a second for each 100,000: so nobody counts for himself, and what has
taken long is not counted again soon.
"""

from __future__ import annotations

import asyncio

from holdfast.core.job import Tenant
from holdfast.ports import Store

APART = 10
"""So many times as long as it took passes before it is counted again."""
FRESH_S_MAX = 5.0


class TopicCounts:
    def __init__(self, store: Store, *, fresh_s: float) -> None:
        self._store = store
        self._fresh_s = fresh_s
        self._not_before = float("-inf")
        self._counting = asyncio.Lock()
        self.known: dict[tuple[Tenant, str], int] = {}
        """By tenant and topic, as of when it was counted last."""

    async def count(self) -> bool:
        """Whether it was time to count anew; else nothing happens."""
        async with self._counting:
            began = self._store.now()
            if began < self._not_before:
                return False
            self.known = await self._store.count_topics()
            ended = self._store.now()
            self._not_before = ended + min(max(self._fresh_s, APART * (ended - began)), FRESH_S_MAX)
            return True
