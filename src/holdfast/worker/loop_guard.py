"""The dead-man's timer over handlers in the worker's own loop: should one block the loop when its lease
is about to expire, or not stop when it is told to, the process ends with a traceback."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.locks.dead_man import DEAD_MAN
from holdfast.locks.runtime import Runtime
from holdfast.worker.lease import AttemptLease

IDLE_S = 0.1
"""After the last handler has ended the timer is left alone for this long: another one may begin."""
SOON_S = 10.0
"""A deadline that is further away than this is put right by the keeper's next look, even if it is an ended handler's."""


class LoopGuard:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._inside: set[AttemptLease] = set()
        self._setting = threading.Lock()
        self._set_to = math.inf
        """What the timer is set to. Under the lock above: the worker's loop and the keeper both set it."""
        self._idling: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    @contextmanager
    def over(self, lease: AttemptLease) -> Iterator[None]:
        """Around the handler, in the worker's loop."""
        self._inside.add(lease)
        # As a rule others began earlier, and their deadline covers this one: setting the timer costs as
        # much as a small job.
        with self._setting:
            if lease.last_moment < self._set_to:
                self._set(lease.last_moment)
        try:
            yield
        finally:
            self._inside.discard(lease)
            now = self._runtime.now()
            if self._set_to - now < SOON_S:
                self.put_off()
            elif not self._inside:
                self._idle_since = now
                if self._idling is None:
                    self._rest_in(IDLE_S)

    def put_off(self) -> None:
        """As far as the renewals up to now allow; off if no handler is inside. From any thread."""
        with self._setting:
            # A copy first: the worker's loop goes on meanwhile.
            self._set(min((lease.last_moment for lease in list(self._inside)), default=math.inf))

    def _rest_in(self, wait_s: float) -> None:
        self._idling = asyncio.get_running_loop().call_later(wait_s, self._rest)

    def _rest(self) -> None:
        self._idling = None
        if self._inside:
            return
        left_s = self._idle_since + IDLE_S - self._runtime.now()
        if left_s > 0:  # handlers have come and gone: the next one need not set the timer either
            self._rest_in(left_s)
        else:
            self.put_off()

    def _set(self, at: float) -> None:
        if at == self._set_to:
            return
        self._set_to = at
        if at == math.inf:
            DEAD_MAN.disarm(self, now=self._runtime.now())
        else:
            DEAD_MAN.arm(self, at, now=self._runtime.now())
