"""A clock that can be moved on: what is due in an hour is due now."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

from holdfast.locks.runtime import SYSTEM


class Clock:
    """The time of a plane and its workers: the real one, and what `advance` has added. A `Runtime`."""

    def __init__(self) -> None:
        self._skipped_s = 0.0
        self._told: list[Callable[[], object]] = []

    def on_advance(self, callback: Callable[[], object]) -> None:
        """Have it called after each `advance`."""
        self._told.append(callback)

    def advance(self, seconds: float) -> None:
        """So much time passes at once, for everybody: leases not renewed meanwhile are over, as after a suspend."""
        if not 0 <= seconds < float("inf"):
            raise ValueError("time does not go back, nor to its end")
        self._skipped_s += seconds
        for callback in self._told:
            callback()

    def now(self) -> float:
        return SYSTEM.now() + self._skipped_s

    def wall_us(self) -> int:
        return SYSTEM.wall_us() + round(self._skipped_s * 1e6)

    def boot_id(self) -> str:
        return SYSTEM.boot_id()

    def token(self) -> str:
        return SYSTEM.token()

    def jitter(self, seconds: float) -> float:
        return SYSTEM.jitter(seconds)

    def inline(self) -> bool:
        return False

    def run_in_thread(self, main: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
        return SYSTEM.run_in_thread(main, name)
