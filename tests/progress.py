"""How far something long has come: one line that is written over on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

EVERY_S = 30.0


class Progress:
    def __init__(self, out: TextIO | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._now = now
        self._shown_at = float("-inf")
        self._pending = ""

    def show(self, line: str) -> None:
        out = self._out or sys.stdout
        if out.isatty():
            out.write(f"\r{line}\x1b[K")  # the rest of a longer one before it is wiped out
            self._pending = "\n"
        elif self._now() >= self._shown_at + EVERY_S:
            self._shown_at = self._now()
            out.write(f"{line}\n")
            self._pending = ""
        else:
            self._pending = f"{line}\n"
        out.flush()

    def end(self) -> None:
        """The last line stays, whenever it came; what is written next begins another."""
        out = self._out or sys.stdout
        out.write(self._pending)
        out.flush()
        self._pending, self._shown_at = "", float("-inf")


PROGRESS = Progress()
