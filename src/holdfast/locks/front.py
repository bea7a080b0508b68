"""What `Locks` and `SyncLocks` have in common: every decision that does not wait for the store."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.locks.classes import Classes
from holdfast.locks.errors import LeaseLost, LockBusy, NotOwned, Unavailable
from holdfast.locks.keeper import Keeper
from holdfast.locks.lease import Lease
from holdfast.locks.observe import LoggingObserver, Observer
from holdfast.locks.policy import LockClass, OnStoreError, Pattern
from holdfast.locks.port import Busy, Grant, LockStore, Standing
from holdfast.locks.renewal import believe

if TYPE_CHECKING:
    from holdfast.locks.runtime import Runtime


WINDOWS_KEPT = 1000
"""Only among more are those looked for that are over. Who claims one per message has a new one each time."""

CLAIMS_MAX = 2
"""How often a window is asked for that comes too late to be trusted."""

#: On Python 3.11 it takes longer to find a member of an enum than to make a key.
_TTL_HOLD = Pattern.TTL_HOLD


class _Window:
    """What its owner needs to claim it again."""

    __slots__ = ("lease", "over_at", "token")

    def __init__(self, token: str) -> None:
        self.token = token
        self.over_at = math.inf
        self.lease: Lease | None = None

    def asked_at(self, now: float, chosen: LockClass) -> None:
        self.over_at = now + 2 * chosen.ttl  # at the store it begins later, and may end late


class Front:
    """Names keys, makes leases and hands them to the keeper, and rules on renewals and releases."""

    def __init__(
        self,
        keeper_store: LockStore,
        *,
        prefix: str,
        classes: Iterable[LockClass],
        observer: Observer | None,
        runtime: Runtime,
    ) -> None:
        self.observer: Observer = observer or LoggingObserver()
        self.classes = Classes(classes, runtime=runtime, observer=self.observer)
        self.keeper = Keeper(keeper_store, runtime=runtime, observer=self.observer, rule=self._rule)
        self._obeyed = self.classes.revision()
        self._prefix = prefix
        self._runtime = runtime
        self._windows: dict[str, _Window] = {}
        self._windows_max = WINDOWS_KEPT

    def belong_here(self) -> None:
        """What was made before a fork, and not opened, belongs to whoever opens it; the windows claimed until then do not."""
        if self.keeper.is_parents:
            self._windows.clear()
            self.keeper.belong_here()

    def key(self, lock_class: LockClass | str, item: str) -> str:
        self.keeper.check_fork()
        return self._prefix + self.classes.get(lock_class).key(item)

    def family(self, lock_class: LockClass | str | None) -> str:
        """What the keys of one class, or of all, start with."""
        self.keeper.check_fork()
        return self._prefix if lock_class is None else f"{self._prefix}{self.classes.get(lock_class).key_prefix}"

    def named(self, key: str) -> tuple[LockClass, str]:
        """The class and the item of a key, given with the prefix or without. Raises `UndeclaredClass`."""
        bare = key.removeprefix(self._prefix)
        chosen = self.classes.of_key(bare)
        return chosen, bare.removeprefix(chosen.key_prefix or "")

    def item(self, lock_class: LockClass | str, item: str, wait: float | None) -> tuple[LockClass, str, float]:
        """The class in force and the key of something to hold and release, and for how long to wait for it."""
        self.keeper.check_fork()
        chosen = self.classes.get(lock_class)
        if chosen.pattern is _TTL_HOLD:
            raise ValueError(f"class {chosen.name!r} is ttl_hold: its windows are claimed, not held; use claim()")
        wait_s = chosen.wait if wait is None else wait
        if wait_s != wait_s:  # noqa: PLR0124  (the one number that is not itself, and before which no deadline ever comes)
            raise ValueError("wait must be a number of seconds, not nan")
        return chosen, self._prefix + chosen.key(item), wait_s

    def window(self, lock_class: LockClass | str, item: str) -> tuple[LockClass, str, str]:
        """The class, key and token of a window; the token stays, so that its owner can claim again."""
        self.keeper.check_fork()  # the child would have the token of its parent, and so its windows
        chosen = self.classes.get(lock_class)
        if chosen.pattern is not _TTL_HOLD:
            raise ValueError(f"class {chosen.name!r} is {chosen.pattern}: use hold() or acquire(), not claim()")
        key = self._prefix + chosen.key(item)
        now = self._runtime.now()
        if len(self._windows) >= self._windows_max:
            self._forget_windows(now)
        window = self._windows.get(key)
        if window is None:
            window = self._windows.setdefault(key, _Window(self._runtime.token()))
        window.asked_at(now, chosen)
        return chosen, key, window.token

    def came_too_late(self, chosen: LockClass, reply: Grant | Busy, *, sent_at: float) -> bool:
        """The answer waited while we did not run, and its window is over: ask again, same token."""
        return isinstance(reply, Grant) and self._runtime.now() >= sent_at + chosen.renewal.trust_s

    @staticmethod
    def claimed_too_late(key: str) -> Unavailable:
        return Unavailable(key, "the window came after it could be trusted", applied=True)

    def claimed(self, chosen: LockClass, key: str, token: str, reply: Grant | Busy, *, sent_at: float) -> Lease | None:
        if isinstance(reply, Busy):
            return None
        lease = self._lease(chosen, key, token, reply.fence, sent_at)
        window = self._windows.setdefault(key, _Window(token))
        window.asked_at(sent_at, chosen)
        earlier, window.lease = window.lease, lease
        if earlier is not None and earlier.fence == lease.fence:
            # The same fence once more: a sequence that started anew would look like old operations.
            lease.count_on_from(earlier)
            self.observer.renewed(chosen, 1)
        else:
            self.observer.acquired(chosen, key, fence=lease.fence, waited_s=0.0)
        return lease

    def acquired(
        self, chosen: LockClass, key: str, token: str, grant: Grant, *, sent_at: float, waited_s: float
    ) -> Lease:
        lease = self._lease(chosen, key, token, grant.fence, sent_at)
        self.observer.acquired(chosen, key, fence=grant.fence, waited_s=waited_s)
        # Also one that is not renewed: the keeper ends it when its window ends.
        self.keeper.watch(lease)
        if self.classes.changed and (ruling := self.classes.get(chosen.name)) is not chosen:
            lease.obey(ruling)  # it changed while the lock was waited for, and the keeper did not know this lease yet
        return lease

    def gave_up(self, chosen: LockClass, key: str, error: BaseException) -> None:
        if isinstance(error, LockBusy):
            self.observer.waited(chosen, key, waited_s=error.waited_s)

    def fallback(self, chosen: LockClass, key: str, error: BaseException) -> Lease | None:
        """A local lease, if it ended because the store cannot be asked, and the class allows one."""
        if not isinstance(error, Unavailable) or chosen.on_store_error is not OnStoreError.LOCAL:
            return None
        self.observer.fallback(chosen, key)
        return Lease.local_only(chosen, key, runtime=self._runtime, observer=self.observer)

    def renewed(self, lease: Lease, standing: Standing, *, sent_at: float) -> None:
        if standing is not Standing.OWNED:
            lease.not_owned(standing, operation="renew")
            raise NotOwned(lease.key, operation="renew")
        lease.renewal_succeeded(sent_at=sent_at)
        self.observer.renewed(lease.lock_class, 1)

    def releasable(self, lease: Lease) -> None:
        """Raise unless there is something to release. After a loss nothing is sent to the store: whoever holds the lock now
        must not be disturbed. Of all who release a lost lease one is told so, and the others that it is released."""
        if lease.lock_class.pattern is _TTL_HOLD:
            raise ValueError(f"{lease.key!r} is a ttl_hold window: it is kept to its end")
        lease.check_fork()
        if lease.released:
            raise NotOwned(lease.key, operation="release", was_released=True)
        self.keeper.forget(lease)
        if lease.lost is not None:
            if not lease.end():
                raise NotOwned(lease.key, operation="release", was_released=True)
            self.observer.release_skipped(lease.lock_class, lease.key, reason=lease.lost)
            raise LeaseLost(lease.key, reason=lease.lost, fence=lease.fence)

    def released(self, lease: Lease) -> None:
        self.observer.released(lease.lock_class, lease.key, held_s=self._runtime.now() - lease.acquired_at)

    def not_released(self, lease: Lease) -> NotOwned:
        self.observer.not_owned(lease.lock_class, lease.key, operation="release")
        return NotOwned(lease.key, operation="release")

    def _forget_windows(self, now: float) -> None:
        """Those that are over: whoever claims them next is their owner, with any token."""
        for key, window in list(self._windows.items()):
            if window.over_at <= now:
                self._windows.pop(key, None)
        self._windows_max = max(WINDOWS_KEPT, 2 * len(self._windows))

    def _rule(self, leases: list[Lease]) -> None:
        revision = self.classes.revision()
        if revision != self._obeyed:
            self._obeyed = revision
            for lease in leases:
                lease.obey(self.classes.get(lease.lock_class.name))

    def _lease(self, chosen: LockClass, key: str, token: str, fence: int, sent_at: float) -> Lease:
        hold_until = math.inf if chosen.max_hold is None else sent_at + chosen.max_hold
        spread = 0.8 + self._runtime.jitter(0.2)
        belief = believe(chosen.renewal, sent_at=sent_at, spread=spread, hold_until=hold_until)
        return Lease(chosen, key, token, fence, belief=belief, runtime=self._runtime, observer=self.observer)
