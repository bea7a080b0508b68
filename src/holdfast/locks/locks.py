"""`Locks`: the library's face for asyncio."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.locks.classes import Classes
from holdfast.locks.errors import LeaseLost, LockBusy, LockError, NotOwned, StoreRefused, Unavailable
from holdfast.locks.keeper import Keeper
from holdfast.locks.lease import Lease
from holdfast.locks.local_queue import LocalQueue
from holdfast.locks.observe import LoggingObserver, Observer
from holdfast.locks.policy import LockClass, OnStoreError, Pattern
from holdfast.locks.port import Grant, Holder, Ownership, Renewal, Standing
from holdfast.locks.renewal import believe
from holdfast.locks.runtime import SYSTEM, Runtime, default_holder
from holdfast.locks.stores import open_store
from holdfast.locks.waiting import RETRY_S, WaitingRoom

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
        self._prefix = prefix
        self._runtime = runtime
        self._observer: Observer = observer or LoggingObserver()
        self._classes = Classes(classes, runtime=runtime, observer=self._observer)
        self._store = open_store(url, holder=holder or default_holder(), prefix=prefix, runtime=runtime)
        self._room = WaitingRoom(self._store, runtime)
        self._keeper = Keeper(self._store.sibling(), runtime=runtime, observer=self._observer)
        self._queues: dict[str, LocalQueue] = {}
        self._windows: dict[str, str] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self.override = self._classes.override

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises `Unavailable` or `StoreRefused`, which name the store and the next step."""
        await self._store.open()
        self._keeper.watch_loop(asyncio.get_running_loop())

    async def close(self) -> None:
        """Stop renewing and disconnect. Leases still held run out by themselves."""
        if self._errands:
            await asyncio.wait(self._errands, timeout=2.0)
        for errand in self._errands:
            errand.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        if self._runtime.inline():
            self._keeper.close()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._keeper.close)
        await self._store.close()

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> Hold:
        """`async with locks.hold(CLASS, item) as lease:` waits, renews, and cancels the body on loss.

        Raises `LockBusy` when the wait budget is spent, `Unavailable` if the store cannot be
        asked: no lock, no body. If the lease is lost under the `fence` policy the body is
        cancelled and `LeaseLost` is raised, also when the body had already returned.
        """
        return Hold(self, lock_class, item, wait)

    async def acquire(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> Lease:
        """A lease to keep by hand, renewed until `release`. Waits like `hold`; raises `LockBusy`."""
        chosen = self._classes.get(lock_class)
        if chosen.pattern is Pattern.TTL_HOLD:
            raise ValueError(f"class {chosen.name!r} is ttl_hold: its windows are claimed, not held; use claim()")
        key = self._prefix + chosen.key(item)
        wait_s = chosen.wait if wait is None else wait
        if chosen.local_mutex or chosen.on_store_error is OnStoreError.LOCAL:
            return await self._acquire_locally(chosen, key, wait_s)
        return await self._acquire(chosen, key, wait_s)

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
        chosen = self._classes.get(lock_class)
        if chosen.pattern is not Pattern.TTL_HOLD:
            raise ValueError(
                f"class {chosen.name!r} is {chosen.pattern}: use hold() or acquire(); claim() is for ttl_hold"
            )
        key = self._prefix + chosen.key(item)
        token = self._windows.setdefault(key, self._runtime.token())
        sent_at = self._runtime.now()
        reply = await self._store.acquire(key, token, ttl_ms=chosen.ttl_ms)
        return self._lease(chosen, key, token, reply.fence, sent_at) if isinstance(reply, Grant) else None

    async def renew(self, lease: Lease) -> None:
        """Renew now. Raises `LeaseLost`, `NotOwned` (the lease is then lost), or `Unavailable`."""
        lease.check()
        sent_at = self._runtime.now()
        [standing] = await self._store.renew([Renewal(lease.key, lease.token, lease.lock_class.ttl_ms)])
        if standing is not Standing.OWNED:
            lease.not_owned(standing, operation="renew")
            raise NotOwned(lease.key, operation="renew")
        lease.renewal_succeeded(sent_at=sent_at)

    async def release(self, lease: Lease) -> None:
        """End the lease. Raises `NotOwned` if it was no longer ours, `LeaseLost` if that was known.

        After a loss nothing is sent: whoever holds the lock now must not be disturbed. A release
        whose answer is lost is repeated in the background until it is certain or has expired.
        """
        if lease.lock_class.pattern is Pattern.TTL_HOLD:
            raise ValueError(f"{lease.key!r} is a ttl_hold window: it is kept to its end")
        if lease.released:
            raise NotOwned(lease.key, operation="release")
        self._keeper.forget(lease)
        queue = self._queues.get(lease.key)
        if lease.lost is not None:
            self._observer.release_skipped(lease.lock_class, lease.key, reason=lease.lost)
            self._leave(queue)
            raise LeaseLost(lease.key, reason=lease.lost, fence=lease.fence)
        if queue is not None:
            heir = queue.pass_on(lease)
            if heir is not None:
                lease.released = True
                self._keep(heir)
                return
        await self._release(lease, queue)

    # -- looking -----------------------------------------------------------------------------------

    async def inspect(self, lock_class: LockClass | str, item: str) -> Holder | None:
        """Who holds the lock now, or None."""
        return await self._store.find_holder(self._prefix + self._classes.get(lock_class).key(item))

    async def list(
        self, lock_class: LockClass | str | None = None, *, after: str = "", limit: int = 100
    ) -> builtins.list[Holder]:
        """Held locks in key order, of one class or of all; `after` is the last key of the page before."""
        family = self._classes.get(lock_class).key_prefix if lock_class is not None else ""
        return await self._store.list_holders(f"{self._prefix}{family}", after=after, limit=limit)

    async def history(self, lock_class: LockClass | str, item: str, *, limit: int = 100) -> builtins.list[Ownership]:
        """The newest part of the lock's timeline of owners, oldest line first."""
        return await self._store.list_history(self._prefix + self._classes.get(lock_class).key(item), limit=limit)

    # -- how -----------------------------------------------------------------------------------------

    async def _acquire(self, chosen: LockClass, key: str, wait_s: float, *, fences: int = 1) -> Lease:
        token = self._runtime.token()
        started = self._runtime.now()
        try:
            grant, sent_at = await self._room.acquire(chosen, key, token, wait_s=wait_s, fences=fences)
        except BaseException as error:
            # Whatever ended it (a full budget, a lost reply, a cancellation at any await): the token
            # may be queued or even granted. The dying task must not wait for it, so an errand does.
            if not (isinstance(error, Unavailable) and error.applied is False) and not isinstance(error, StoreRefused):
                self._send(self._undo(key, token, self._runtime.now() + chosen.ttl))
            if isinstance(error, LockBusy):
                self._observer.waited(chosen, key, waited_s=error.waited_s)
            raise
        lease = self._lease(chosen, key, token, grant.fence, sent_at)
        self._observer.acquired(chosen, key, fence=grant.fence, waited_s=sent_at - started)
        self._keep(lease)
        return lease

    async def _acquire_locally(self, chosen: LockClass, key: str, wait_s: float) -> Lease:
        started = self._runtime.now()
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = LocalQueue(key, self._declined)
        passed = await queue.enter(wait_s)
        if passed is not None:
            self._observer.acquired(chosen, key, fence=passed.fence, waited_s=self._runtime.now() - started)
            return passed
        fences = chosen.local_passes if chosen.local_mutex else 1
        try:
            left = max(0.0, wait_s - (self._runtime.now() - started))
            lease = await self._acquire(chosen, key, left, fences=fences)
        except Unavailable:
            if chosen.on_store_error is not OnStoreError.LOCAL:
                self._leave(queue)
                raise
            self._observer.fallback(chosen, key)
            lease = Lease.local_only(chosen, key, runtime=self._runtime, observer=self._observer)
        except BaseException:
            self._leave(queue)
            raise
        queue.fences_end = lease.fence + fences
        return lease

    def _lease(self, chosen: LockClass, key: str, token: str, fence: int, sent_at: float) -> Lease:
        belief = believe(chosen.renewal, sent_at=sent_at, spread=0.8 + self._runtime.jitter(0.2))
        return Lease(chosen, key, token, fence, belief=belief, runtime=self._runtime, observer=self._observer)

    def _keep(self, lease: Lease) -> None:
        # Also those that are not renewed: the keeper ends them when their window ends.
        self._keeper.watch(lease)

    async def _release(self, lease: Lease, queue: LocalQueue | None) -> None:
        lease.released = True
        held_s = self._runtime.now() - lease.acquired_at
        try:
            if not lease.fallback and not await self._store.release(lease.key, lease.token):
                self._observer.not_owned(lease.lock_class, lease.key, operation="release")
                raise NotOwned(lease.key, operation="release")
        except (Unavailable, asyncio.CancelledError) as error:
            self._send(self._undo(lease.key, lease.token, lease.belief.sent_at + lease.lock_class.ttl))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._leave(queue)
        self._observer.released(lease.lock_class, lease.key, held_s=held_s)

    async def _undo(self, key: str, token: str, until: float) -> None:
        """Take the token out of the store, however often it must be asked; after `until` it is gone anyway."""
        while self._runtime.now() < until:
            try:
                await self._store.release(key, token)
            except LockError:
                await asyncio.sleep(self._runtime.jitter(RETRY_S))
            else:
                return

    def _send(self, errand: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _leave(self, queue: LocalQueue | None) -> None:
        if queue is not None:
            queue.leave()
            if queue.unused:
                self._queues.pop(queue.key, None)

    def _declined(self, queue: LocalQueue, lease: Lease | None) -> None:
        """A turn came to a task that had just been cancelled."""
        if lease is None:
            self._leave(queue)
            return

        async def give_back() -> None:
            try:
                await self.release(lease)
            except LockError:
                return  # lost in the meantime: there is nothing to give back

        self._send(give_back())


class Hold:
    """What `Locks.hold` returns: the lease for the length of a block."""

    __slots__ = ("_cancelled", "_entry_cancels", "_item", "_lease", "_lock_class", "_locks", "_loop", "_task", "_wait")

    def __init__(self, locks: Locks, lock_class: LockClass | str, item: str, wait: float | None) -> None:
        self._locks = locks
        self._lock_class = lock_class
        self._item = item
        self._wait = wait
        self._cancelled = False

    async def __aenter__(self) -> Lease:
        lease = self._lease = await self._locks.acquire(self._lock_class, self._item, wait=self._wait)
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] | None = task
        self._entry_cancels = task.cancelling()
        self._loop = task.get_loop()
        lease.on_loss(self._lost)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        lease, task = self._lease, self._task
        assert task is not None
        # From here on a late callback of the keeper finds nobody to cancel.
        self._task = None
        lease.on_loss(None)
        outer_cancel = False
        if self._cancelled:
            outer_cancel = task.uncancel() > self._entry_cancels
        # The clock is read once more: a body that never awaited may have overrun its lease unnoticed.
        try:
            lease.check()
        except LeaseLost as lost:
            await self._skip_release()
            if outer_cancel or isinstance(error, (KeyboardInterrupt, SystemExit)):
                return False
            raise lost from error
        try:
            await self._locks.release(lease)
        except NotOwned:
            # The store ended it inside the trust window: the work cannot be trusted either.
            if not lease.carries_on and error is None:
                raise
        except LeaseLost:
            # Only under `continue`, where losing the lease is no error of the work's.
            return False
        return False

    async def _skip_release(self) -> None:
        try:
            await self._locks.release(self._lease)
        except LockError:
            return

    def _lost(self) -> None:
        """Called in the thread that found out."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and the work with it
            return

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()
