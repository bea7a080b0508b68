"""Claims that are being served: who waits for deliveries to which worker, and which of them nobody waits for any more.

While a claim waits, jobs can be handed to it directly: see `flow.dispatch`. A place in it that was
opened is waited for before it is answered, so that nothing is started for a claim that has gone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.core.job import Job
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import Runtime

GHOSTS_S_MAX = 2.0
QUIET_S = 1.0
"""For so long it is believed that nothing waits for a worker: hints may be lost between planes."""
QUIET_MAX = 10_000
"""Workers of which that is remembered."""


class Claim:
    def __init__(self) -> None:
        self.hint = asyncio.Event()
        self.is_ghost = False
        """Its worker has said that it waits for no other claim than a later one."""
        self.ended = asyncio.Event()
        self.opened_at: float | None = None
        """When its first place was opened; the leases of what is handed over began later."""
        self._room = 0
        """Places that may have been opened in it, all in all."""
        self._opened = 0
        self._handed: list[Job] = []
        self._places_open = 0
        self._all_shut = asyncio.Event()
        self._in_doubt = False

    @contextmanager
    def open_for(self, jobs: int) -> Iterator[None]:
        """While it waits, so many jobs may be handed to it."""
        self._room = jobs
        try:
            yield
        finally:
            self._room = 0

    def resize(self, jobs: int) -> int:
        """It turns out that so many may be, those among them that have been already: how many these are."""
        self._room = jobs
        return self._opened

    def open(self, now: float) -> Place | None:
        if self._opened >= self._room or self.is_ghost:
            return None
        if self.opened_at is None:
            self.opened_at = now
        self._opened += 1
        self._places_open += 1
        return Place(self)

    def close_place(self, job: Job | None, *, in_doubt: bool) -> None:
        if job is not None:
            self._handed.append(job)
        self._in_doubt = self._in_doubt or in_doubt
        self._places_open -= 1
        if not self._places_open:
            self._all_shut.set()
            self.hint.set()

    async def take_handed(self) -> list[Job]:
        """What was handed to it, once nothing more can be.

        Raises `StoreUnavailable` if something may have been started of which nobody knows: the worker
        must hear that, for its next claim then says what it holds, and is given the rest.
        """
        if self._places_open:
            self._all_shut.clear()
            await self._all_shut.wait()
        if self._in_doubt:
            raise StoreUnavailable("claim", "the store did not say whether it was started", applied=None)
        return self._handed


class Place:
    """A `Door`."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def hand(self, job: Job) -> None:
        self._claim.close_place(job, in_doubt=False)

    def shut(self, *, in_doubt: bool = False) -> None:
        self._claim.close_place(None, in_doubt=in_doubt)


class Claims:
    """Registered before the first look, so that no hint falls between."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._served: defaultdict[str, list[Claim]] = defaultdict(list)
        self._quiet_until: dict[str, float] = {}

    def give_hint(self, worker: str) -> None:
        """Without a name: to all of them."""
        if not worker:
            self._quiet_until.clear()
            for each in self._served:
                self.give_hint(each)
            return
        self._quiet_until.pop(worker, None)
        if worker in self._served:
            for claim in self._served[worker]:
                claim.hint.set()

    def open(self, worker: str) -> Place | None:
        """A place in one of the worker's claims that wait here, if there is one."""
        if worker not in self._served:
            return None
        now = self._runtime.now()
        return next((place for claim in self._served[worker] if (place := claim.open(now)) is not None), None)

    def found_nothing(self, worker: str, claim: Claim, *, looked_at: float) -> None:
        """Somebody has looked for this claim, and found nothing."""
        if not claim.hint.is_set():
            if len(self._quiet_until) >= QUIET_MAX:
                self._quiet_until.clear()
            self._quiet_until[worker] = looked_at + QUIET_S

    def quiet_for(self, worker: str) -> float:
        """For how many seconds more it is believed that nothing waits: somebody looked a moment ago, and no hint has come since.
        What the worker was handed since then did not wait."""
        until = self._quiet_until.get(worker)
        return 0.0 if until is None else max(0.0, until - self._runtime.now())

    def waits(self, worker: str) -> bool:
        """Whether the worker waits for deliveries here, at this moment."""
        return worker in self._served

    def close(self) -> None:
        """Whoever waits gets its last look at once."""
        self.give_hint("")

    @contextmanager
    def serving(self, worker: str, *, first: bool = False) -> Iterator[Claim]:
        """With `first` it is handed jobs before those that wait already."""
        claim = Claim()
        self._served[worker].insert(0 if first else len(self._served[worker]), claim)
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
