"""A lease: the right to act on one key until a time, as its holder sees it."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.locks.errors import LeaseLost, LossReason, NotOwned
from holdfast.locks.policy import OnRenewalFailure
from holdfast.locks.renewal import Belief, believe, doubt, held_anew, why_abandoned, why_not_owned
from holdfast.locks.runtime import FORKS

if TYPE_CHECKING:
    from holdfast.locks.observe import Observer
    from holdfast.locks.policy import LockClass
    from holdfast.locks.port import Standing
    from holdfast.locks.runtime import Runtime

_LOSING = threading.Lock()


@cache
def _guard_maker(connection_class: Any) -> Callable[..., Any]:
    """What makes guards for such connections. Imported when first needed: it is a tenth of the library's import time."""
    from holdfast.locks.guards import maker  # noqa: PLC0415

    return maker(connection_class)


@lru_cache(64)
def _ruled(lock_class: LockClass, failures: int, action: str) -> LockClass:
    """Leases of one class are many: what they change to is worked out once."""
    return lock_class.with_policy(renewal_failures=failures, on_renewal_failure=action)


class Lease:
    """Belongs to no task and no thread: pass it to whoever does the work.

    `token` is the secret that proves ownership to the lock store; `fence` is the number that
    downstream stores check. A loss is final. `lost` says how it came about, None while held.
    """

    __slots__ = (
        "_fork",
        "_observer",
        "_runtime",
        "_seq",
        "_trusted_until",
        "acquired_at",
        "belief",
        "fallback",
        "fence",
        "in_turn",
        "key",
        "lock_class",
        "look_at",
        "lost",
        "numbered",
        "on_loss",
        "released",
        "renewing",
        "suspect",
        "token",
    )

    def __init__(
        self,
        lock_class: LockClass,
        key: str,
        token: str,
        fence: int,
        *,
        belief: Belief,
        runtime: Runtime,
        observer: Observer,
    ) -> None:
        self.lock_class = lock_class
        self.key = key
        self.token = token
        self.fence = fence
        sent_at, trusted_until, due, _, _ = belief
        self.acquired_at = sent_at
        #: True if the store was unreachable and only this process is excluded; such a lease has no fence.
        self.fallback = False
        #: True if it came through this process's own queue (`local_mutex`), and so must let the next one in.
        self.in_turn = False
        #: True if the lease may be lost but the class says to carry on (`continue`).
        self.suspect = False
        self.lost: LossReason | None = None
        self.released = False
        #: A renewal is under way; the keeper sends no second one beside it.
        self.renewing = False
        #: What we hold true of it; only the methods below replace it.
        self.belief = belief
        #: Called, in whatever thread finds out, when the lease is lost.
        self.on_loss: Callable[[], None] | None = None
        #: When the keeper must look at it again: to renew it, or to end it.
        self.look_at = due if due < trusted_until else trusted_until  # noqa: FURB136  (min takes five times as long)
        self._runtime = runtime
        self._observer = observer
        self._seq = itertools.count(1)
        #: Somebody has asked for a number: only then can an operation arrive late, or again.
        self.numbered = False
        # Its own place, too: every guarded write asks for it twice.
        self._trusted_until = trusted_until
        self._fork = FORKS.generation

    @classmethod
    def local_only(cls, lock_class: LockClass, key: str, *, runtime: Runtime, observer: Observer) -> Lease:
        """The store could not be asked: excludes this process's own work, without a fence or an end."""
        lease = cls(
            lock_class, key, "", 0, belief=Belief(runtime.now(), math.inf, math.inf), runtime=runtime, observer=observer
        )
        lease.fallback = True
        lease.in_turn = True
        return lease

    def __reduce__(self) -> NoReturn:
        # A copy would count its operations from the same number, and trust a clock that is another one on another host.
        raise TypeError("a lease is not copied, nor sent to another process: have that one acquire a lock of its own")

    def __repr__(self) -> str:
        state = "released" if self.released else self.lost or ("suspect" if self.suspect else "held")
        return f"<Lease {self.key!r} fence={self.fence} {state}>"

    def remaining(self) -> float:
        """Seconds of the trust window that are left; 0 once the lease is lost or released."""
        if self.lost is not None or self.released or self._fork != FORKS.generation:
            return 0.0
        return max(0.0, self._trusted_until - self._runtime.now())

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost or its trust window over, `NotOwned` once it is released.

        A forked child never holds its parent's leases. Under `continue` it does not raise; it
        marks the lease `suspect`.
        """
        if self._fork != FORKS.generation:
            self.check_fork()
        if self.lost is None and not self.released:
            if self._runtime.now() < self._trusted_until:
                return
            self.abandon()
        if self.lost is not None and not self.carries_on:
            raise LeaseLost(self.key, reason=self.lost, fence=self.fence)
        if self.released:
            raise NotOwned(self.key, operation="use", was_released=True)

    def check_fork(self) -> None:
        if self._fork != FORKS.generation:
            raise LeaseLost(self.key, reason=LossReason.PAUSED, fence=self.fence)

    def next_seq(self) -> int:
        """The next number for an operation under this fence, starting at 1."""
        self.numbered = True
        return next(self._seq)

    def guard(self, connection: Any, resource: str, *, seq: int | None = None, once_per_fence: bool = False) -> Any:
        """Claim `resource` in the caller's own database: reads and writes inside are fenced.

        Accepts connections of asyncpg, psycopg, SQLAlchemy, sqlite3, apsw and redis-py; see
        `holdfast.locks.guards.guard`.
        """
        # Straight to its maker: after a write that waited for the disk every step on the way is a slow one.
        return _guard_maker(connection.__class__)(self, connection, resource, seq, once_per_fence)

    def fence_refused(self, resource: str) -> None:
        self._observer.fence_refused(self.lock_class, resource)

    # -- for the keeper and the facades ------------------------------------------------------------

    @property
    def carries_on(self) -> bool:
        return self.lock_class.on_renewal_failure is OnRenewalFailure.CONTINUE

    def obey(self, ruling: LockClass) -> None:
        """Go on by the rules of `ruling`: how many failures end it, and what that means. The keeper looks at it at once."""
        own = self.lock_class
        if (own.renewal_failures, own.on_renewal_failure) != (ruling.renewal_failures, ruling.on_renewal_failure):
            self.lock_class = _ruled(own, ruling.renewal_failures, str(ruling.on_renewal_failure))
            self.look_at = self.belief.sent_at

    def renewal_succeeded(self, *, sent_at: float, neighbour: Lease | None = None) -> None:
        """`neighbour` has the same class and was renewed by the same request: what is true of it is true here."""
        # A late answer never shortens or revives anything: beliefs only move forward, a loss is final.
        known = self.belief
        if self.lost is not None or sent_at <= known.sent_at:
            return
        # A quarter of what a renewal costs, if ten thousand leases each worked it out and kept their own.
        belief = known if neighbour is None else neighbour.belief
        if belief.sent_at != sent_at or belief.hold_until != known.hold_until:
            spread = 0.8 + self._runtime.jitter(0.2)
            belief = believe(self.lock_class.renewal, sent_at=sent_at, spread=spread, hold_until=known.hold_until)
        self.belief = belief
        _, trusted_until, due, _, _ = belief
        self._trusted_until = trusted_until
        self.look_at = due if due < trusted_until else trusted_until  # noqa: FURB136
        self.suspect = False

    def renewal_failed(self, *, tried_at: float, error: str) -> None:
        if self.lost is None:
            self.belief = doubt(self.belief, self.lock_class.renewal, tried_at=tried_at)
            # Too many failures end it at once, not at the next try.
            spent = self.belief.failures >= self.lock_class.renewal.failures_max
            self.look_at = tried_at if spent else min(self.belief.due, self.belief.trusted_until)
            self._observer.renewal_failed(self.lock_class, self.key, failures=self.belief.failures, error=error)

    def not_owned(self, standing: Standing, *, operation: str) -> None:
        """The store says, definitely, that key and token do not match."""
        if self.lost is None and not self.released:
            try:
                self._observer.not_owned(self.lock_class, self.key, operation=operation)
            finally:
                self.lose(why_not_owned(self.belief, standing, self._runtime.now()))

    def abandon(self) -> None:
        """Stop trusting the lease. Under `continue` the work, and the renewing, go on as suspect."""
        reason = why_abandoned(self.belief, self.lock_class.renewal)
        if not self.carries_on:
            self.lose(reason)
        elif not self.suspect:
            self.suspect = True
            self._observer.abandoned(self.lock_class, self.key, fence=self.fence, reason=reason)

    def lose(self, reason: LossReason) -> None:
        with _LOSING:  # the keeper's thread and the work's own may find out at the same moment
            if self.lost is not None or self.released:
                return
            self.lost = reason
        try:
            if not self.suspect:
                self._observer.abandoned(self.lock_class, self.key, fence=self.fence, reason=reason)
        finally:  # an observer that raises breaks its word, and must not keep the work from being stopped
            self.suspect = self.carries_on
            told = self.on_loss
            if told is not None and not self.carries_on:
                told()

    def end(self) -> bool:
        """It is to be released. False if somebody else has said so before: of two threads at the same moment, one. A loss
        that is not known by now is none any more."""
        with _LOSING:
            if self.released:
                return False
            self.released = True
            return True

    def count_on_from(self, earlier: Lease) -> None:
        """Go on numbering operations where another lease with the same fence stopped."""
        self._seq = earlier._seq
        # Both: what the earlier one does without a number could not be told from what is late.
        self.numbered = earlier.numbered = True

    def successor(self, fence: int) -> Lease:
        """The same right, passed on inside this process, under a fence of its own."""
        now, max_hold = self._runtime.now(), self.lock_class.max_hold
        heir = Lease(
            self.lock_class,
            self.key,
            self.token,
            fence,
            belief=self.belief if max_hold is None else held_anew(self.belief, self.lock_class.renewal, now + max_hold),
            runtime=self._runtime,
            observer=self._observer,
        )
        heir.acquired_at = now
        heir.in_turn = True
        return heir
