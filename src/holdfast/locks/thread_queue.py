"""The local mutex for threads: those of one process queue among themselves, in order, and pass a store lock on.

What is decided is decided in `local_queue`; here is how threads wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.locks.errors import LockBusy, NotOwned
from holdfast.locks.local_queue import may_pass_on

if TYPE_CHECKING:
    from holdfast.locks.lease import Lease


class Turn:
    """A thread's place in a line. Once it has come, `passed` is the lease, or None if the store must be asked."""

    __slots__ = ("_bell", "passed")

    def __init__(self) -> None:
        self.passed: Lease | None = None
        self._bell = threading.Lock()
        self._bell.acquire()

    def come(self) -> None:
        self._bell.release()

    def wait(self, seconds: float) -> bool:
        return self._bell.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))


class _Line:
    """One key's threads: the one that is in, and those behind it."""

    __slots__ = ("fences_end", "waiters")

    def __init__(self) -> None:
        self.fences_end = 0
        self.waiters: deque[Turn] = deque()


class ThreadQueues:
    """A line for each key that is in use. Whoever is first in it deals with the store."""

    def __init__(self, declined: Callable[[Lease], None]) -> None:
        """`declined` is given a lease that was passed on to a thread which had just been interrupted."""
        self._declined = declined
        # One for all keys: it is held for a few steps, and never while anybody waits.
        self._guard = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def enter(self, key: str, wait_s: float) -> Lease | None:
        """Become first. Returns the lease if it was passed on, None if the store must be asked.

        Raises `LockBusy` after `wait_s`.
        """
        with self._guard:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line()
                return None
            turn = Turn()
            line.waiters.append(turn)
        try:
            came = turn.wait(wait_s)
        except BaseException:
            if not self._withdraw(line, turn):
                # Its turn came in this very moment: nobody else knows, so it must go on from here.
                if turn.passed is None:
                    self.leave(key)
                else:
                    self._declined(turn.passed)
            raise
        # A turn that comes at the last moment is taken: to go without it would cost the next one time.
        if not came and self._withdraw(line, turn):
            raise LockBusy(key, waited_s=wait_s, holder="this process", retry_in_s=0.0)
        return turn.passed

    def reserve(self, key: str, fences_end: int) -> None:
        """`fences_end` is one past the last fence that may be passed on; told by whoever is first."""
        self._lines[key].fences_end = fences_end

    def pass_on(self, lease: Lease, watch: Callable[[Lease], None]) -> bool:
        """End the lease, and hand it to the next thread if it may have it. If not, the store must be told, then `leave`.

        `watch` is given the next one's lease before that thread can end it. Of two threads that end the same lease
        at once, one is raised `NotOwned`.
        """
        with self._guard:
            line = self._lines.get(lease.key)
            # Asked before it has ended: then nothing of it is left. Whoever ends it is also who leaves the line, once.
            may_pass = line is not None and bool(line.waiters) and may_pass_on(lease, line.fences_end)
            if not lease.end():
                raise NotOwned(lease.key, operation="release", was_released=True)
            if line is None or not may_pass or lease.lost is not None:
                return False
            heir = lease.successor(lease.fence + 1)
            watch(heir)
            turn = line.waiters.popleft()
            turn.passed = heir
            turn.come()
            return True

    def leave(self, key: str) -> None:
        """Let the next one in; it asks the store."""
        with self._guard:
            line = self._lines[key]
            if line.waiters:
                line.waiters.popleft().come()
            else:
                del self._lines[key]

    def _withdraw(self, line: _Line, turn: Turn) -> bool:
        """False if the turn has come already."""
        with self._guard:
            try:
                line.waiters.remove(turn)
            except ValueError:
                return False
            return True
