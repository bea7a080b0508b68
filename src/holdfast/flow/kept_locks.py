"""Locks that are kept for a moment after their use, and then given back.

One engine at a time advances a run. The steps of a chain follow each other within milliseconds, and
taking and releasing the run's lock around each of them would cost two more commits a step. So the
lock stays until the run is quiet, or somebody else ought to have a turn. Inside the process whoever
wants it queues for it first.

None of this is what keeps a run whole: that is its version and its fence, compared in the very
transaction that writes it. The lock spares engines from working in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from holdfast.flow.gone import IsGone, evict_gone
from holdfast.locks import LeaseLost, LockBusy, LockClass, LockError, Locks
from holdfast.locks.lease import Lease
from holdfast.locks.runtime import Runtime

RUN = LockClass(
    "workflow.run", ttl=30, renew_every=10, wait=2, local_mutex=True, risk="high", key_prefix="wf:run:lock:"
)
ADMISSION = LockClass("admission", ttl=10, renew_every=0, wait=2, key_prefix="wf:run:admission:")

IDLE_S = 0.05
"""How long a lock is kept after its use: a little more than a short step takes."""
KEEP_S = 1.0
"""How long it is kept at most, however busy its run is: others have something to say to it, too."""


@dataclass(slots=True, eq=False)
class _Kept:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    lease: Lease | None = None
    since: float = 0.0
    used_at: float = 0.0
    wanted: int = 0
    """How many tasks have it or wait for it."""


class KeptLocks:
    """The locks of one class that this process has now."""

    def __init__(self, locks: Locks, lock_class: LockClass, *, runtime: Runtime, is_gone: IsGone) -> None:
        self._locks = locks
        self._lock_class = lock_class
        self._now = runtime.now
        self._is_gone = is_gone
        self._kept: dict[str, _Kept] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False

    async def try_take(self, item: str) -> int | None:
        """The lock's fence, or None if somebody else has it. What was taken must be put back."""
        kept = self._kept.get(item)
        if kept is not None and kept.wanted:
            return None
        try:
            return await self._take(item, wait_s=0.0)
        except LockError:
            return None

    async def take_kept(self, item: str) -> int | None:
        """The fence of a lock that is here and nobody uses; None: the store would have to be asked, or somebody
        waited for. What was taken must be put back."""
        kept = self._kept.get(item)
        if kept is None or kept.wanted or kept.lease is None:
            return None
        try:
            kept.lease.check()
        except LeaseLost:
            return None
        kept.wanted += 1
        await kept.turn.acquire()  # nobody has it: that does not wait
        return kept.lease.fence

    async def keep(self, item: str) -> None:
        """Have the lock at hand for a moment, if nobody else has it."""
        if await self.try_take(item) is not None:
            self.put_back(item)

    @asynccontextmanager
    async def hold(self, item: str) -> AsyncIterator[int]:
        """The lock's fence, after waiting for it as long as the class says. Raises `LockBusy`."""
        fence = await self._take(item, wait_s=self._locks.in_force(self._lock_class).wait)
        try:
            yield fence
        finally:
            self.put_back(item)

    def put_back(self, item: str) -> None:
        kept = self._kept[item]
        kept.wanted -= 1
        kept.used_at = self._now()
        kept.turn.release()
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def drop(self, item: str) -> None:
        """Whoever has taken it has found that it is no good any more: the next one asks the store again."""
        kept = self._kept[item]
        lease, kept.lease = kept.lease, None
        if lease is not None:
            await self._let_go(lease)

    async def close(self) -> None:
        """Give back what nobody uses now."""
        self._closing = True
        if self._sweeping is not None:
            # Not cancelled: what it is just giving back would be kept from others until it has run out.
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._release(item for item, kept in self._kept.items() if not kept.wanted)
        self._closing = False

    async def _sweep(self) -> None:
        """Give back what was not used for a moment, or was had for long, until nothing is kept."""
        while self._kept and not self._closing:
            await asyncio.sleep(IDLE_S)
            now = self._now()
            await self._release(
                item
                for item, kept in self._kept.items()
                if not kept.wanted and (now >= kept.used_at + IDLE_S or now >= kept.since + KEEP_S)
            )

    async def _take(self, item: str, *, wait_s: float) -> int:
        kept = self._kept.get(item)
        if kept is None:
            kept = self._kept[item] = _Kept()
        kept.wanted += 1
        try:
            async with asyncio.timeout(wait_s or None):
                await kept.turn.acquire()
        except BaseException as error:
            self._forget(item, kept)
            if isinstance(error, TimeoutError):
                raise LockBusy(item, waited_s=wait_s, holder="this process", retry_in_s=0.0) from None
            raise
        try:
            return (await self._lease(item, kept, wait_s)).fence
        except BaseException:
            kept.turn.release()
            self._forget(item, kept)
            raise

    async def _lease(self, item: str, kept: _Kept, wait_s: float) -> Lease:
        if kept.lease is not None:
            try:
                kept.lease.check()
            except LeaseLost:
                lost, kept.lease = kept.lease, None
                await self._let_go(lost)
            else:
                return kept.lease
        try:
            kept.lease = await self._locks.acquire(self._lock_class, item, wait=wait_s)
        except LockBusy as busy:
            if not await evict_gone(busy, self._lock_class, item, locks=self._locks, is_gone=self._is_gone):
                raise
            kept.lease = await self._locks.acquire(self._lock_class, item, wait=wait_s)
        kept.since = self._now()
        return kept.lease

    async def _release(self, items: Iterable[str]) -> None:
        leases = [lease for item in list(items) if (lease := self._kept.pop(item).lease) is not None]
        # One after the other would be a commit each.
        await asyncio.gather(*map(self._let_go, leases))

    async def _let_go(self, lease: Lease) -> None:
        # What is lost is not ours to release; what the store did not hear runs out by itself.
        with suppress(LockError):
            await self._locks.release(lease)

    def _forget(self, item: str, kept: _Kept) -> None:
        kept.wanted -= 1
        if not kept.wanted and kept.lease is None:
            self._kept.pop(item, None)
