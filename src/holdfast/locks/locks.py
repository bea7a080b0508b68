"""`Locks`: the library's face for asyncio."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.locks.errands import Errands, may_be_applied
from holdfast.locks.errors import LockBusy, LockError, StoreRefused, Unavailable
from holdfast.locks.front import CLAIMS_MAX, Front
from holdfast.locks.hold import Hold
from holdfast.locks.lease import Lease
from holdfast.locks.local_queue import LocalQueue, fences_to_reserve
from holdfast.locks.observe import Observer
from holdfast.locks.policy import LockClass
from holdfast.locks.port import Holder, Ownership, Renewal
from holdfast.locks.runtime import SYSTEM, Runtime, default_holder
from holdfast.locks.stores import open_store
from holdfast.locks.waiting import WaitingRoom

if TYPE_CHECKING:
    from typing import Self


class Locks:
    """Leases kept in the store that `url` names. Belongs to one event loop.

    `classes` may be used by name afterwards; a `LockClass` passed to a verb declares itself.
    `holder` is what others are told about who holds a lock (default: host and pid).
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "holdfast:",
        classes: Iterable[LockClass] = (),
        observer: Observer | None = None,
        holder: str | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._runtime = runtime
        self._store = open_store(url, holder=holder or default_holder(), prefix=prefix, runtime=runtime)
        self._room = WaitingRoom(self._store, runtime)
        self._front = Front(self._store.sibling(), prefix=prefix, classes=classes, observer=observer, runtime=runtime)
        self._keeper = self._front.keeper
        self._queues: dict[str, LocalQueue] = {}
        #: The loop it was opened in. To ask for the running one is a system call on Python 3.11, too much for every lock.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._errands = Errands(self._store, runtime)
        self.override = self._front.classes.override
        self.rule = self._front.classes.rule
        self.in_force = self._front.classes.get

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises `Unavailable` or `StoreRefused`, which name the store and the next step.

        Once they are closed they are not opened again: make others.
        """
        if self.loop is None:
            self._keeper.belong_here()
        self._keeper.check_fork()
        self._keeper.check_open()
        await self._store.open()
        self.loop = asyncio.get_running_loop()
        self._keeper.watch_loop(self.loop)

    async def close(self) -> None:
        """Stop renewing and disconnect. Leases still held run out by themselves."""
        try:
            await self._errands.close()
        finally:  # whoever has no time to wait for them still leaves nothing behind
            try:
                if self._runtime.inline():
                    self._keeper.close()
                else:
                    await asyncio.get_running_loop().run_in_executor(None, self._keeper.close)
            finally:
                await self._store.close()

    def hold(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> Hold:
        """`async with locks.hold(CLASS, item) as lease:` waits, renews, and cancels the body on loss.

        Raises `LockBusy` when the wait budget is spent, `Unavailable` if the store cannot be
        asked: no lock, no body. If the lease is lost under the `fence` policy the body is
        cancelled and `LeaseLost` is raised, also when the body had already returned.
        """
        return Hold(self, lock_class, item, wait)

    def acquire(
        self, lock_class: LockClass | str, item: str, *, wait: float | None = None
    ) -> Coroutine[Any, Any, Lease]:
        """A lease to keep by hand, renewed until `release`. Waits like `hold`; raises `LockBusy`."""
        chosen, key, wait_s = self._front.item(lock_class, item, wait)
        if chosen.takes_turns:
            return self._acquire_in_turn(chosen, key, wait_s)
        return self._acquire(chosen, key, wait_s)

    async def try_acquire(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """The lease if the lock is free now, else None. Renewed until `release`."""
        try:
            return await self.acquire(lock_class, item, wait=0)
        except LockBusy:
            return None

    async def claim(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """A window of a `ttl_hold` class: kept to its end whatever happens, renewed by nobody.

        None if another owner's window is open. The owner may claim again at any time: same fence,
        a fresh window.
        """
        chosen, key, token = self._front.window(lock_class, item)
        for _ in range(CLAIMS_MAX):
            sent_at = self._runtime.now()
            reply = await self._store.acquire(key, token, ttl_ms=chosen.ttl_ms)
            if not self._front.came_too_late(chosen, reply, sent_at=sent_at):
                return self._front.claimed(chosen, key, token, reply, sent_at=sent_at)
        raise self._front.claimed_too_late(key)

    async def renew(self, lease: Lease) -> None:
        """Renew now. Raises `LeaseLost`, `NotOwned` (the lease is then lost), or `Unavailable`. A local fallback has no end."""
        lease.check()
        if lease.fallback:
            return
        sent_at = self._runtime.now()
        [standing] = await self._store.renew([Renewal(lease.key, lease.token, lease.lock_class.ttl_ms)])
        self._front.renewed(lease, standing, sent_at=sent_at)

    async def release(self, lease: Lease) -> None:
        """End the lease. Raises `NotOwned` if it was no longer ours, `LeaseLost` if that was known.

        A release whose answer is lost, or that the store refuses, is repeated in the background until
        it is certain or the lease has expired.
        """
        already = lease.released
        queue = self._queues.get(lease.key) if lease.in_turn else None
        try:
            self._front.releasable(lease)
        except LockError:
            if not already:
                self._leave(queue)
            raise
        heir = queue.pass_on(lease) if queue is not None else None
        lease.released = True
        if heir is not None:
            self._keeper.watch(heir)
            self._front.released(lease)
            return
        try:
            if not lease.fallback and not await self._store.release(lease.key, lease.token):
                raise self._front.not_released(lease)
        except (Unavailable, StoreRefused, asyncio.CancelledError) as error:
            # A disk that is full now may have room in a moment; nobody need wait for the ttl because of it.
            self._errands.release(lease)
            if not isinstance(error, Unavailable):
                raise
        finally:
            if queue is not None:
                self._leave(queue)
        self._front.released(lease)

    async def evict(self, lock_class: LockClass | str, item: str, *, fence: int, reason: str) -> bool:
        """An operator's release: end the lease that has this fence, whoever holds it.

        False, and nothing changes, if another fence holds the lock now. The holder finds out at
        its next renewal (`LeaseLost`, revoked). The reason is kept in the history.
        """
        return await self._store.evict(self._front.key(lock_class, item), fence, reason=reason)

    def classes(self) -> builtins.list[LockClass]:
        """Every declared class, as it is in force now."""
        return self._front.classes.all()

    def named(self, key: str) -> tuple[LockClass, str]:
        """The class and the item of a key, given with the prefix or without. Raises `UndeclaredClass`."""
        return self._front.named(key)

    async def inspect(self, lock_class: LockClass | str, item: str) -> Holder | None:
        """Who holds the lock now, or None."""
        return await self._store.find_holder(self._front.key(lock_class, item))

    async def list(
        self, lock_class: LockClass | str | None = None, *, after: str = "", limit: int = 100
    ) -> builtins.list[Holder]:
        """Held locks in key order, of one class or of all; `after` is the last key of the page before."""
        return await self._store.list_holders(self._front.family(lock_class), after=after, limit=limit)

    async def history(self, lock_class: LockClass | str, item: str, *, limit: int = 100) -> builtins.list[Ownership]:
        """The newest part of the lock's timeline of owners, oldest line first."""
        return await self._store.list_history(self._front.key(lock_class, item), limit=limit)

    async def _acquire(self, chosen: LockClass, key: str, wait_s: float, *, fences: int = 1) -> Lease:
        if self.loop is not None and self.loop.is_closed():
            raise Unavailable("locks", "opened in an event loop that is closed: open others", applied=False)
        token = self._runtime.token()
        try:
            grant, sent_at, waited_s = await self._room.acquire(chosen, key, token, wait_s=wait_s, fences=fences)
            return self._front.acquired(chosen, key, token, grant, sent_at=sent_at, waited_s=waited_s)
        except BaseException as error:
            self._front.gave_up(chosen, key, error)
            # Whatever ended it (a spent budget, a lost reply, a cancellation at any await, nobody to renew it): the token
            # may be queued or even granted. The dying task must not wait for that; an errand does.
            if may_be_applied(error, queued=wait_s > 0):
                self._errands.undo(key, token, until=self._runtime.now() + chosen.ttl)
            raise

    async def _acquire_in_turn(self, chosen: LockClass, key: str, wait_s: float) -> Lease:
        """Queue behind this process's own tasks first; whoever comes out first asks the store."""
        started = self._runtime.now()
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = LocalQueue(key, self._declined)
        passed = await queue.enter(wait_s)
        waited_s = self._runtime.now() - started
        if passed is not None:
            self._front.observer.acquired(chosen, key, fence=passed.fence, waited_s=waited_s)
            return passed
        fences = fences_to_reserve(chosen)
        try:
            lease = await self._acquire(chosen, key, max(0.0, wait_s - waited_s), fences=fences)
        except BaseException as error:
            fallback = self._front.fallback(chosen, key, error)
            if fallback is None:
                self._leave(queue)
                raise
            queue.fences_end = 0  # it has no fence to pass on
            return fallback
        lease.in_turn = True
        queue.fences_end = lease.fence + fences
        return lease

    def _leave(self, queue: LocalQueue | None) -> None:
        if queue is not None:
            queue.leave()
            if queue.unused:
                self._queues.pop(queue.key, None)

    def _declined(self, queue: LocalQueue, lease: Lease | None) -> None:
        """A turn came to a task that had just been cancelled: it goes on to the next."""
        if lease is None:
            self._leave(queue)
        else:
            self._errands.send(self._give_back(lease))

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self.release(lease)
        except LockError:
            return  # lost in the meantime: there is nothing to give back
