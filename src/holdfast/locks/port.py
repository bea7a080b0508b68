"""`LockStore`: the contract between the lock library and whatever keeps the locks.

Each sentence below has a test in `tests/conformance/test_lock_store.py`, which every store passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

FENCES_PER_GRANT_MAX = 64


class Grant(NamedTuple):
    """The lock is the caller's. `fence` is the first of the block of fences that was asked for."""

    fence: int


class Busy(NamedTuple):
    """The lock is somebody else's. `remaining_ms` until it would expire if nobody renewed it."""

    holder: str | None
    remaining_ms: int


class Renewal(NamedTuple):
    key: str
    token: str
    ttl_ms: int


class Standing(Enum):
    """What the store says of a renewal."""

    OWNED = "owned"
    GONE = "gone"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a key now. `token_digest` identifies a holder without letting anybody act as it."""

    key: str
    fence: int
    holder: str
    token_digest: str
    remaining_ms: int
    waiters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One line of a key's timeline, oldest first: what happened to the holder with this fence."""

    key: str
    fence: int
    holder: str
    event: str
    """`granted`, `released` or `evicted`. A grant that follows another grant followed an expiry."""
    at: float
    """Seconds since the epoch, by the store's clock."""
    note: str = ""


def require_token(token: str) -> None:
    """For every store: nothing is owned with an empty token."""
    if not token:
        raise ValueError("a lock is owned with a token, and this one is empty")


WakeCallback = Callable[[str, str], None]


class LockStore(Protocol):
    """Keeps leases. Instances belong to one event loop; `sibling()` makes one for another.

    Every verb is safe to repeat with the same token. A verb that ends without an answer raises
    `Unavailable` whose `applied` is False only if the store certainly did not change. No verb
    waits longer than the store's timeout (2 s by default, `timeout_s` of the constructor), and
    none retries by itself. An empty token is a `ValueError`.
    """

    async def open(self) -> None:
        """Connect and prepare the store. Raises `Unavailable`, or `StoreRefused` with a next step.

        May be repeated; concurrent opens of one store by several processes are safe.
        """

    def acquire(
        self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1
    ) -> Awaitable[Grant | Busy]:
        """Take the lock if it is free, in one atomic step with its fence.

        Free means: no unexpired holder, and no live waiter ahead. Expiry is judged by the store's
        clock alone. A grant's fences are greater than every fence ever granted for the key,
        also after expiry, eviction, loss of the store's data or a failover (clock floor:
        `fence.next_fence`); `fences` consecutive numbers are reserved, at most
        FENCES_PER_GRANT_MAX.

        The holder repeating it (same token) gets the same fence again, and its ttl starts anew.

        `queue_ms` > 0 enters the caller into the key's queue if it is not there yet, and marks it
        alive for that long; repeating the call keeps the place and the mark. Waiters are granted
        in order of entry. Whoever finds the lock free (a release, or any acquire after an expiry)
        grants it at once to the first live waiter, for min(its ttl, its queue_ms), and wakes it;
        the waiter then repeats its acquire, gets the fence and the whole ttl. Waiters whose mark
        has run out are skipped. `queue_ms` == 0 never leaves a trace in the queue.
        """

    def renew(self, renewals: Sequence[Renewal]) -> Awaitable[list[Standing]]:
        """Start each ttl anew where key and token match an unexpired holder; change nothing else.

        One answer per renewal, in order: OWNED; TAKEN if another token holds the key; else GONE.
        """

    def release(self, key: str, token: str) -> Awaitable[bool]:
        """End the holder's lease and hand the lock to the next waiter, in one atomic step.

        True if key and token matched an unexpired holder. A waiter's token leaves the queue
        (and the answer is False). Anything else changes nothing.
        """

    def evict(self, key: str, fence: int, *, reason: str) -> Awaitable[bool]:
        """An operator's release: end the lease that has this fence, whoever holds it.

        False, and nothing changes, if the current fence is another one. The reason is kept in
        the history. The next waiter is granted as by a release.
        """

    def find_holder(self, key: str) -> Awaitable[Holder | None]:
        """The unexpired holder of the key, if any."""

    def list_holders(self, prefix: str, *, after: str = "", limit: int = 100) -> Awaitable[list[Holder]]:
        """Unexpired holders whose key starts with `prefix` and sorts after `after`, in key order."""

    def list_history(self, key: str, *, limit: int = 100) -> Awaitable[list[Ownership]]:
        """The newest `limit` lines of the key's timeline, oldest first.

        A store may forget what is older than an hour; under heavy traffic, what is older than
        its newest 20,000 batches of changes.
        """

    def on_wake(self, callback: WakeCallback) -> None:
        """Call `callback(key, token)`, in the store's loop, when a waiter of this instance should
        repeat its acquire. A hint: it may be lost, late, repeated or mistaken. An empty token
        means every waiter for that key; an empty key means every waiter."""

    def sibling(self) -> LockStore:
        """Another, unopened connection to the same store, for another event loop or thread."""

    async def close(self) -> None:
        """Drop the connection and every task and thread of this instance. Holds no lock back."""


class BlockingStore(Protocol):
    """The verbs a thread needs, as blocking calls; same promises, usable from any thread."""

    def acquire(self, key: str, token: str, *, ttl_ms: int, queue_ms: int = 0, fences: int = 1) -> Grant | Busy: ...

    def renew(self, renewals: Sequence[Renewal]) -> list[Standing]: ...

    def release(self, key: str, token: str) -> bool: ...

    def close(self) -> None: ...
