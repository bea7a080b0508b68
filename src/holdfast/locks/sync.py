"""`SyncLocks`: the library's face for threads.

A free lock is taken and released on a blocking connection of the calling thread's own. Waiting
goes through the keeper's loop, which has the wake-ups.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from holdfast.locks.errands import Errands, may_be_applied
from holdfast.locks.errors import LeaseLost, LockBusy, LockError, NotOwned, StoreRefused, Unavailable
from holdfast.locks.front import CLAIMS_MAX, Front
from holdfast.locks.hold import IN_USE
from holdfast.locks.keeper import Keeper
from holdfast.locks.lease import Lease
from holdfast.locks.local_queue import fences_to_reserve
from holdfast.locks.observe import Observer
from holdfast.locks.policy import LockClass
from holdfast.locks.port import BlockingStore, Busy, Grant, Holder, Ownership, Renewal, Standing
from holdfast.locks.runtime import SYSTEM, Runtime, default_holder
from holdfast.locks.stores import blocking_store, open_store
from holdfast.locks.thread_queue import ThreadQueues
from holdfast.locks.waiting import WaitingRoom, may_try_again, spent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
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
        who = holder or default_holder()
        self._runtime = runtime
        store = open_store(url, holder=who, prefix=prefix, runtime=runtime)
        self._room = WaitingRoom(store, runtime)
        self._front = Front(store, prefix=prefix, classes=classes, observer=observer, runtime=runtime)
        self._keeper = self._front.keeper
        native = blocking_store(url, holder=who, prefix=prefix, runtime=runtime)
        self._store: BlockingStore = native or _Bridge(self._keeper)
        self._queues = ThreadQueues(self._give_back)
        self._errands = Errands(store, runtime)  # in the keeper's loop, as the store is
        self.override = self._front.classes.override
        self.rule = self._front.classes.rule
        self.in_force = self._front.classes.get

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect. Raises `Unavailable` or `StoreRefused`, which name the store and the next step."""
        if not self._keeper.started:
            self._front.belong_here()
        self._ask(self._keeper.open)

    def close(self) -> None:
        """Stop renewing and disconnect. Leases still held run out by themselves."""
        try:
            if self._keeper.at_work:
                self._ask(self._errands.close)
        finally:
            self._store.close()
            self._keeper.close()

    def hold(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> SyncHold:
        """`with locks.hold(CLASS, item) as lease:` waits and renews; raises `LeaseLost` at the end if it was lost."""
        return SyncHold(self, lock_class, item, wait)

    def acquire(self, lock_class: LockClass | str, item: str, *, wait: float | None = None) -> Lease:
        """A lease to keep by hand, renewed until `release`. Raises `LockBusy` when the budget is spent."""
        chosen, key, wait_s = self._front.item(lock_class, item, wait)
        if chosen.takes_turns:
            return self._acquire_in_turn(chosen, key, wait_s)
        return self._acquire(chosen, key, wait_s)

    def try_acquire(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """The lease if the lock is free now, else None."""
        try:
            return self.acquire(lock_class, item, wait=0)
        except LockBusy:
            return None

    def claim(self, lock_class: LockClass | str, item: str) -> Lease | None:
        """A window of a `ttl_hold` class, or None if another owner's is open. See `Locks.claim`."""
        chosen, key, token = self._front.window(lock_class, item)
        for _ in range(CLAIMS_MAX):
            sent_at = self._runtime.now()
            reply = self._store.acquire(key, token, ttl_ms=chosen.ttl_ms)
            if not self._front.came_too_late(chosen, reply, sent_at=sent_at):
                return self._front.claimed(chosen, key, token, reply, sent_at=sent_at)
        raise self._front.claimed_too_late(key)

    def renew(self, lease: Lease) -> None:
        """Renew now. Raises `LeaseLost`, `NotOwned` (the lease is then lost), or `Unavailable`."""
        lease.check()
        if lease.fallback:
            return
        sent_at = self._runtime.now()
        [standing] = self._store.renew([Renewal(lease.key, lease.token, lease.lock_class.ttl_ms)])
        self._front.renewed(lease, standing, sent_at=sent_at)

    def release(self, lease: Lease) -> None:
        """End the lease. Raises `NotOwned` or `LeaseLost`; after a loss nothing is sent.

        A release whose answer is lost, or that the store refuses, is repeated in the background until
        it is certain or the lease has expired.
        """
        try:
            self._front.releasable(lease)
        except LeaseLost:
            # Raised to one of all who release it. A forked child is no part of its parent's queue.
            if lease.in_turn and not self._keeper.is_parents:
                self._queues.leave(lease.key)
            raise
        if not lease.in_turn:
            lease.released = True
            self._release(lease)
        elif not self._queues.pass_on(lease, self._keeper.watch):
            try:
                if not lease.fallback:
                    self._release(lease)
            finally:
                self._queues.leave(lease.key)
        self._front.released(lease)

    def evict(self, lock_class: LockClass | str, item: str, *, fence: int, reason: str) -> bool:
        """An operator's release: end the lease that has this fence, whoever holds it. See `Locks.evict`."""
        key = self._front.key(lock_class, item)
        return self._ask(lambda: self._keeper.store.evict(key, fence, reason=reason))

    def inspect(self, lock_class: LockClass | str, item: str) -> Holder | None:
        """Who holds the lock now, or None."""
        key = self._front.key(lock_class, item)
        return self._ask(lambda: self._keeper.store.find_holder(key))

    def list(
        self, lock_class: LockClass | str | None = None, *, after: str = "", limit: int = 100
    ) -> builtins.list[Holder]:
        """Held locks in key order, of one class or of all."""
        family = self._front.family(lock_class)
        return self._ask(lambda: self._keeper.store.list_holders(family, after=after, limit=limit))

    def history(self, lock_class: LockClass | str, item: str, *, limit: int = 100) -> builtins.list[Ownership]:
        """The newest part of the lock's timeline of owners, oldest line first."""
        key = self._front.key(lock_class, item)
        return self._ask(lambda: self._keeper.store.list_history(key, limit=limit))

    def _acquire_in_turn(self, chosen: LockClass, key: str, wait_s: float) -> Lease:
        """Queue behind this process's own threads first; whoever comes out first asks the store."""
        started = self._runtime.now()
        passed = self._queues.enter(key, wait_s)
        waited_s = self._runtime.now() - started
        if passed is not None:
            self._front.observer.acquired(chosen, key, fence=passed.fence, waited_s=waited_s)
            return passed
        fences = fences_to_reserve(chosen)
        try:
            lease = self._acquire(chosen, key, max(0.0, wait_s - waited_s), fences=fences)
        except BaseException as error:
            fallback = self._front.fallback(chosen, key, error)
            if fallback is None:
                self._queues.leave(key)
                raise
            self._queues.reserve(key, 0)  # it has no fence to pass on
            return fallback
        lease.in_turn = True
        self._queues.reserve(key, lease.fence + fences)
        return lease

    def _acquire(self, chosen: LockClass, key: str, wait_s: float, *, fences: int = 1) -> Lease:
        token = self._runtime.token()
        started = sent_at = self._runtime.now()
        deadline = started + wait_s
        reply: Grant | Busy | None = None
        in_doubt = False
        try:
            try:
                reply = self._store.acquire(key, token, ttl_ms=chosen.ttl_ms, fences=fences)
            except Unavailable as error:
                if not may_try_again(self._runtime.now(), deadline):
                    raise
                in_doubt = error.applied is not False
            now = self._runtime.now()
            if isinstance(reply, Busy) and now >= deadline:
                raise spent(key, reply, waited_s=now - started)
            if not isinstance(reply, Grant) or now >= sent_at + chosen.renewal.trust_s:
                # Busy, without an answer, or granted so long ago that the window is over: asked again, same token,
                # with the queue. That is on another connection: nothing is to be waited for first.
                left_s = max(0.0, deadline - now)
                reply, sent_at, _ = self._ask(
                    lambda: self._room.acquire(chosen, key, token, wait_s=left_s, fences=fences, in_doubt=in_doubt)
                )
            return self._front.acquired(chosen, key, token, reply, sent_at=sent_at, waited_s=sent_at - started)
        except BaseException as error:
            self._front.gave_up(chosen, key, error)
            # Whatever ended it, the token may be queued or even granted; the thread does not wait for its undoing.
            if in_doubt or isinstance(reply, Grant) or may_be_applied(error, queued=wait_s > 0):
                until = self._runtime.now() + chosen.ttl
                self._keeper.hand(lambda: self._errands.undo(key, token, until=until))
            raise

    def _release(self, lease: Lease) -> None:
        try:
            owned = self._store.release(lease.key, lease.token)
        except BaseException as error:
            # Without an answer, refused for now, or interrupted. The thread does not wait for what comes of it.
            self._keeper.hand(lambda: self._errands.release(lease))
            if not isinstance(error, Unavailable):
                raise
        else:
            if not owned:
                raise self._front.not_released(lease)

    def _give_back(self, lease: Lease) -> None:
        with suppress(LockError):  # lost in the meantime: there is nothing to give back
            self.release(lease)

    def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return cast("T", self._keeper.run_blocking(call))


class SyncHold:
    """What `SyncLocks.hold` returns: the lease for the length of a block."""

    __slots__ = ("_entered", "_item", "_lease", "_lock_class", "_locks", "_wait")

    def __init__(self, locks: SyncLocks, lock_class: LockClass | str, item: str, wait: float | None) -> None:
        self._locks = locks
        self._lock_class = lock_class
        self._item = item
        self._wait = wait
        self._entered = threading.Lock()

    def __enter__(self) -> Lease:
        if not self._entered.acquire(blocking=False):
            raise RuntimeError(IN_USE)
        try:
            lease = self._lease = self._locks.acquire(self._lock_class, self._item, wait=self._wait)
        except BaseException:
            self._entered.release()
            raise
        if lease.in_turn:
            try:
                lease.check()  # passed on, and lost before this thread ran: no lock, no body
            except LeaseLost:
                self._entered.release()
                with suppress(LockError):
                    self._locks.release(lease)
                raise
        return lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        lease = self._lease
        self._entered.release()
        if lease.released and lease.lost is None:  # by the block itself
            return
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
        except (NotOwned, LeaseLost):
            if not lease.carries_on and error is None:
                raise
        except StoreRefused:
            if error is None:  # else that is what is told, Ctrl-C above all; the release goes on in the background
                raise


class _Bridge:
    """A store's verbs for threads, run in the keeper's loop: for stores without a blocking client."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy:
        store = self._keeper.store
        return cast(
            "Grant | Busy",
            self._keeper.run_blocking(
                lambda: store.acquire(key, token, ttl_ms=ttl_ms, queue_ms=queue_ms, fences=fences)
            ),
        )

    def renew(self, renewals: Sequence[Renewal]) -> builtins.list[Standing]:
        return cast("list[Standing]", self._keeper.run_blocking(lambda: self._keeper.store.renew(renewals)))

    def release(self, key: str, token: str) -> bool:
        return cast("bool", self._keeper.run_blocking(lambda: self._keeper.store.release(key, token)))

    def close(self) -> None:
        """The keeper closes the store it runs on."""
