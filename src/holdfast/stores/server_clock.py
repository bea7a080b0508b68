"""The server's time, told by this host's steady clock: planes on several hosts must agree on when a lease ends."""

from __future__ import annotations

from collections.abc import Callable

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

    def start(self, server_s: float) -> None:
        """`server_s` is what the server's clock has just shown."""
        self._learnt_at = self._steady()
        self._offset_s = server_s - self._learnt_at
        self._last = server_s

    def learn(self, server_s: float, *, asked_at: float) -> None:
        """What the server's clock showed between `asked_at` and now, by the steady clock."""
        now = self._steady()
        ahead_s = server_s - (self._offset_s + (asked_at + now) / 2)
        if abs(ahead_s) <= (now - asked_at) / 2:
            return  # as good as it can be told
        most = SLEW_MAX * (now - self._learnt_at)
        self._offset_s += min(max(ahead_s, -most), most)
        self._learnt_at = now
