"""The server's time, told by this host's steady clock: planes on several hosts must agree on when a lease ends."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

LOOKS_MAX = 8
QUICK_S = 0.2
"""An answer that took no longer tells the time well enough: a worker leaves a tenth of its lease."""
SLEW_MAX = 0.001
"""How much faster or slower than this host's clock time may go, to follow the server's."""


class ServerClock:
    """Grows, and never steps: neither with the host's wall clock, nor with the server's."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._offset_s = 0.0
        self._learnt_at = 0.0
        self._last = 0.0

    def now(self) -> float:
        self._last = max(self._last, self._offset_s + self._steady())
        return self._last

    async def start(self, look: Callable[[], Awaitable[float]], *, not_before: float = 0.0) -> None:
        """`look` asks for what the server's clock shows. How old an answer is nobody knows but that it is no older than it took
        to come: so one that was slow is asked for again, and the quickest counts. Whatever the clock is off by now, it stays
        off by for long."""
        quickest_s = math.inf
        for _ in range(LOOKS_MAX):
            asked_at = self._steady()
            server_s = await look()
            took_s = self._steady() - asked_at
            if took_s < quickest_s:
                quickest_s = took_s
                self._offset_s = server_s - (asked_at + took_s / 2)
            if took_s <= QUICK_S:
                break
        self._learnt_at = self._steady()
        self._offset_s = max(self._offset_s, not_before - self._learnt_at)

    def learn(self, server_s: float, *, asked_at: float) -> None:
        """What the server's clock showed between `asked_at` and now, by the steady clock."""
        now = self._steady()
        ahead_s = server_s - (self._offset_s + (asked_at + now) / 2)
        if abs(ahead_s) <= (now - asked_at) / 2:
            return  # as good as it can be told
        most = SLEW_MAX * (now - self._learnt_at)
        self._offset_s += min(max(ahead_s, -most), most)
        self._learnt_at = now
