"""Staying awake for an answer that is about to come.

A server nearby answers before the kernel could put us to sleep and wake us up again. So whoever
asks alone looks for the answer for a moment first, which costs some more CPU and saves a third of
the time; a server that takes longer is looked for less and less often.
"""

from __future__ import annotations

import select
from collections.abc import Callable

#: On a fast machine a server nearby answers within a fifth of it, on a slow or busy one within the whole. To look longer
#: would be to look for servers further away, where a sleep is a small part of the time.
VIGIL_S = 0.0005
#: So many answers are slept for after one that was looked for in vain; then twice as many each time. Few at first: a server
#: nearby is late now and then, and with its next answer it is not.
SLEEPS_MIN = 2
SLEEPS_MAX = 1024


class Vigil:
    """Of one connection: whether to stay awake for the next answer, and until when."""

    __slots__ = ("_looks", "_now", "_penalty", "_readable", "_sleeps", "_until")

    def __init__(self, descriptor: int, now: Callable[[], float]) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        self._readable = poll.poll
        self._now = now
        self._until = 0.0
        self._looks = 0
        self._sleeps = 0
        self._penalty = SLEEPS_MIN

    def begins(self) -> bool:
        if self._sleeps:
            self._sleeps -= 1
            return False
        self._until = self._now() + VIGIL_S
        self._looks = 0
        return True

    def goes_on(self) -> bool:
        return self._now() < self._until

    def look(self) -> bool:
        """True if there is something to read."""
        self._looks += 1
        return bool(self._readable(0))

    def ended(self, *, answered: bool) -> None:
        # Each look lets go of the interpreter for an instant. An answer that is there at the first
        # one means that other threads were quick to take it, and that looking only cost a turn.
        if answered and self._looks > 1:
            self._penalty = SLEEPS_MIN
        else:
            self._sleeps = self._penalty
            self._penalty = min(2 * self._penalty, SLEEPS_MAX)
