"""The dead-man's timer: ends this process, with a traceback, unless somebody puts it off in time.

It belongs to the kernel and needs no GIL, so it also ends a C call that never gives it up. A process
has one of them, and more than one keeper may want it: the earliest deadline counts.
"""

from __future__ import annotations

import faulthandler
import math
import threading
from collections.abc import Hashable

STDERR = 2
"""The descriptor, not the object: that may have been replaced by something without one."""


class DeadMan:
    """May be called from any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._deadlines: dict[Hashable, float] = {}
        self._set_to = math.inf

    def arm(self, owner: Hashable, at: float, *, now: float) -> None:
        """End the process at this time of the runtime's clock. Replaces what the same owner said before."""
        with self._changing:
            self._deadlines[owner] = at
            self._set(now)

    def disarm(self, owner: Hashable, *, now: float) -> None:
        with self._changing:
            self._deadlines.pop(owner, None)
            self._set(now)

    def _set(self, now: float) -> None:
        earliest = min(self._deadlines.values(), default=math.inf)
        if earliest == self._set_to:
            return
        self._set_to = earliest
        if earliest == math.inf:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(max(0.001, earliest - now), exit=True, file=STDERR)


DEAD_MAN = DeadMan()
