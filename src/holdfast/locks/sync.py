"""`SyncLocks`: the same verbs for threads.

A free lock is taken and released on a blocking connection of the calling thread's own. Waiting
goes through the keeper's loop, which has the wake-ups.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from holdfast.locks.classes import Classes
from holdfast.locks.errors import LeaseLost, LockBusy, LockError, NotOwned, Unavailable
from holdfast.locks.keeper import Keeper
from holdfast.locks.lease import Lease
from holdfast.locks.observe import LoggingObserver, Observer
from holdfast.locks.policy import LockClass, OnStoreError, Pattern
from holdfast.locks.port import BlockingStore, Busy, Grant, Holder, Ownership, Renewal, Standing
from holdfast.locks.renewal import believe
from holdfast.locks.runtime import SYSTEM, Runtime, default_holder
from holdfast.locks.stores import blocking_store, open_store
from holdfast.locks.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

T = TypeVar("T")


class SyncLocks:
    """Leases for threads. Safe to share between threads; a lease may be released by another one.

    A lost lease cannot stop a thread: `lease.check()` raises, and so does the end of the block.
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
        store = open_store(url, holder=holder or default_holder(), prefix=prefix, runtime=runtime)
        self._keeper = Keeper(store, runtime=runtime, observer=self._observer)
        self._room = WaitingRoom(store, runtime)
        self._store: BlockingStore = _blocking(
            url, self._keeper, holder=holder or default_holder(), prefix=prefix, runtime=runtime
        )
        self._mutexes: dict[str, threading.Lock] = {}
        self._mutexes_guard = threading.Lock()
        self._windows: dict[str, str] = {}
        self.override = self._classes.override

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect. Raises `Unavailable` or `StoreRefused`, which name the store and the next step."""
        self._ask(self._keeper.store.open)

    def close(self) -> None:
        """Stop renewing and disconnect. Leases still held run out by themselves."""
        self._store.close()
        self._keeper.close()

    def hold(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> SyncHold:
        """`with locks.hold(CLASS, item) as lease:` waits, renews, and raises `LeaseLost` at the end if it was lost."""
        return SyncHold(self, lock_class, item, wait)

    def acquire(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> Lease:
        """A lease to keep by hand, renewed until `release`. Raises `LockBusy` when the budget is spent."""
        chosen = self._classes.get(lock_class)
        if chosen.pattern is Pattern.TTL_HOLD:
            raise ValueError(f"class {chosen.name!r} is ttl_hold: its windows are claimed, not held; use claim()")
        key = self._prefix + chosen.key(item)
        wait_s = chosen.wait if wait is None else wait
        if not (chosen.local_mutex or chosen.on_store_error is OnStoreError.LOCAL):
            return self._acquire(chosen, key, wait_s)
        started = self._runtime.now()
        mutex = self._mutex(key)
        if not mutex.acquire(timeout=wait_s):
            raise LockBusy(key, waited_s=wait_s, holder="this process", retry_in_s=0.0)
        try:
            return self._acquire(chosen, key, max(0.0, wait_s - (self._runtime.now() - started)))
        except Unavailable:
            if chosen.on_store_error is OnStoreError.LOCAL:
                self._observer.fallback(chosen, key)
                return Lease.local_only(chosen, key, runtime=self._runtime, observer=self._observer)
            mutex.release()
            raise
        except BaseException:
            mutex.release()
            raise

    def try_acquire(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """The lease if the lock is free now, else None."""
        try:
            return self.acquire(lock_class, item, wait=0)
        except LockBusy:
            return None

    def claim(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """A window of a `ttl_hold` class, or None if another owner's is open. See `Locks.claim`."""
        chosen = self._classes.get(lock_class)
        if chosen.pattern is not Pattern.TTL_HOLD:
            raise ValueError(
                f"class {chosen.name!r} is {chosen.pattern}: use hold() or acquire(); claim() is for ttl_hold"
            )
        key = self._prefix + chosen.key(item)
        token = self._windows.setdefault(key, self._runtime.token())
        sent_at = self._runtime.now()
        reply = self._store.acquire(key, token, ttl_ms=chosen.ttl_ms)
        return self._lease(chosen, key, token, reply.fence, sent_at) if isinstance(reply, Grant) else None

    def renew(self, lease: Lease) -> None:
        """Renew now. Raises `LeaseLost`, `NotOwned` (the lease is then lost), or `Unavailable`."""
        lease.check()
        sent_at = self._runtime.now()
        [standing] = self._store.renew([Renewal(lease.key, lease.token, lease.lock_class.ttl_ms)])
        if standing is not Standing.OWNED:
            lease.not_owned(standing, operation="renew")
            raise NotOwned(lease.key, operation="renew")
        lease.renewal_succeeded(sent_at=sent_at)

    def release(self, lease: Lease) -> None:
        """End the lease. Raises `NotOwned` or `LeaseLost`; after a loss nothing is sent."""
        if lease.lock_class.pattern is Pattern.TTL_HOLD:
            raise ValueError(f"{lease.key!r} is a ttl_hold window: it is kept to its end")
        if lease.released:
            raise NotOwned(lease.key, operation="release")
        self._keeper.forget(lease)
        lease.released = lease.lost is None
        try:
            if lease.lost is not None:
                self._observer.release_skipped(lease.lock_class, lease.key, reason=lease.lost)
                raise LeaseLost(lease.key, reason=lease.lost, fence=lease.fence)
            if not lease.fallback:
                self._release(lease)
        finally:
            mutex = self._mutexes.get(lease.key)
            if mutex is not None and mutex.locked():
                mutex.release()
        self._observer.released(lease.lock_class, lease.key, held_s=self._runtime.now() - lease.acquired_at)

    def inspect(self, lock_class: LockClass | str, item: str) -> Holder | None:
        """Who holds the lock now, or None."""
        key = self._prefix + self._classes.get(lock_class).key(item)
        return self._ask(lambda: self._keeper.store.find_holder(key))

    def list(
        self, lock_class: LockClass | str | None = None, *, after: str = "", limit: int = 100
    ) -> builtins.list[Holder]:
        """Held locks in key order, of one class or of all."""
        family = self._classes.get(lock_class).key_prefix if lock_class is not None else ""
        return self._ask(lambda: self._keeper.store.list_holders(f"{self._prefix}{family}", after=after, limit=limit))

    def history(self, lock_class: LockClass | str, item: str, *, limit: int = 100) -> builtins.list[Ownership]:
        """The newest part of the lock's timeline of owners, oldest line first."""
        key = self._prefix + self._classes.get(lock_class).key(item)
        return self._ask(lambda: self._keeper.store.list_history(key, limit=limit))

    def _acquire(self, chosen: LockClass, key: str, wait_s: float) -> Lease:
        token = self._runtime.token()
        started = sent_at = self._runtime.now()
        try:
            reply = self._store.acquire(key, token, ttl_ms=chosen.ttl_ms)
            if isinstance(reply, Busy) and wait_s > 0:
                grant, sent_at = self._ask(lambda: self._room.acquire(chosen, key, token, wait_s=wait_s))
                reply = grant
            if isinstance(reply, Busy):
                raise LockBusy(key, waited_s=0.0, holder=reply.holder, retry_in_s=max(0.0, reply.remaining_ms / 1000))
        except BaseException as error:
            if isinstance(error, LockBusy):
                self._observer.waited(chosen, key, waited_s=error.waited_s)
            # Queued or granted in the meantime, perhaps; what the store does not hear now expires.
            with suppress(LockError):
                self._store.release(key, token)
            raise
        lease = self._lease(chosen, key, token, reply.fence, sent_at)
        self._observer.acquired(chosen, key, fence=lease.fence, waited_s=sent_at - started)
        self._keeper.watch(lease)
        return lease

    def _release(self, lease: Lease) -> None:
        in_doubt = False
        for _ in range(2):
            try:
                owned = self._store.release(lease.key, lease.token)
            except Unavailable as error:
                in_doubt = in_doubt or error.applied is not False
                continue
            # Gone, after an earlier try of ours whose answer was lost: that try did it.
            if not owned and not in_doubt:
                self._observer.not_owned(lease.lock_class, lease.key, operation="release")
                raise NotOwned(lease.key, operation="release")
            return

    def _lease(self, chosen: LockClass, key: str, token: str, fence: int, sent_at: float) -> Lease:
        belief = believe(chosen.renewal, sent_at=sent_at, spread=0.8 + self._runtime.jitter(0.2))
        return Lease(chosen, key, token, fence, belief=belief, runtime=self._runtime, observer=self._observer)

    def _mutex(self, key: str) -> threading.Lock:
        with self._mutexes_guard:
            return self._mutexes.setdefault(key, threading.Lock())

    def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return cast(T, self._keeper.run_blocking(call))


class SyncHold:
    """What `SyncLocks.hold` returns: the lease for the length of a block."""

    def __init__(self, locks: SyncLocks, lock_class: LockClass | str, item: str, wait: float | None) -> None:
        self._locks = locks
        self._lock_class = lock_class
        self._item = item
        self._wait = wait

    def __enter__(self) -> Lease:
        self._lease = self._locks.acquire(self._lock_class, self._item, wait=self._wait)
        return self._lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        lease = self._lease
        try:
            lease.check()
        except LeaseLost as lost:
            with suppress(LockError):
                self._locks.release(lease)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                return
            raise lost from error
        try:
            self._locks.release(lease)
        except LockError:
            if not lease.carries_on and error is None:
                raise


class _Bridge:
    """A store's verbs for threads, run in the keeper's loop: for stores without a blocking client."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        return cast(
            "Grant | Busy",
            self._keeper.run_blocking(
                lambda: self._keeper.store.acquire(key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences)
            ),
        )

    def renew(self, renewals: Sequence[Renewal]) -> builtins.list[Standing]:
        return cast("list[Standing]", self._keeper.run_blocking(lambda: self._keeper.store.renew(renewals)))

    def release(self, key: str, token: str) -> bool:
        return cast(bool, self._keeper.run_blocking(lambda: self._keeper.store.release(key, token)))

    def close(self) -> None:
        """The keeper closes the store it runs on."""


def _blocking(url: str, keeper: Keeper, *, holder: str, prefix: str, runtime: Runtime) -> BlockingStore:
    native = blocking_store(url, holder=holder, prefix=prefix, runtime=runtime)
    return native if native is not None else _Bridge(keeper)
