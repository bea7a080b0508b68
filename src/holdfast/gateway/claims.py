"""Claims that are being served: who waits for deliveries to which worker, and which of them nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GHOSTS_S_MAX = 2.0


class Claim:
    def __init__(self) -> None:
        self.hint = asyncio.Event()
        self.is_ghost = False
        """Its worker has said that it waits for no other claim than a later one."""
        self.ended = asyncio.Event()


class Claims:
    """Registered before the first look, so that no hint falls between."""

    def __init__(self) -> None:
        self._served: defaultdict[str, list[Claim]] = defaultdict(list)

    def give_hint(self, worker: str) -> None:
        if worker in self._served:
            for claim in self._served[worker]:
                claim.hint.set()

    def close(self) -> None:
        """Whoever waits gets its last look at once."""
        for worker in list(self._served):
            self.give_hint(worker)

    @contextmanager
    def serving(self, worker: str) -> Iterator[Claim]:
        claim = Claim()
        self._served[worker].append(claim)
        try:
            yield claim
        finally:
            claim.ended.set()
            self._served[worker].remove(claim)
            if not self._served[worker]:
                del self._served[worker]

    async def wait_alone(self, worker: str, claim: Claim) -> None:
        """End every other claim of the worker's: their answers would be read by nobody."""
        ghosts = [other for other in self._served[worker] if other is not claim]
        for ghost in ghosts:
            ghost.is_ghost = True
            ghost.hint.set()
        # One that the store keeps for longer than this may still be given something: its lease runs out then.
        with suppress(TimeoutError):
            async with asyncio.timeout(GHOSTS_S_MAX):
                for ghost in ghosts:
                    await ghost.ended.wait()
