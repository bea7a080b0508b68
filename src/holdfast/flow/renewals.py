"""Renewals: what an observer of this process's locks hears of failures, as episodes to be counted."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

from holdfast.core.renewals import Ending, Episode
from holdfast.locks.errors import LossReason
from holdfast.locks.observe import Observers
from holdfast.locks.policy import LockClass
from holdfast.locks.runtime import Runtime

OPEN_MAX = 10_000
"""Leases in trouble at once. Of more than that the oldest are taken for recovered."""


class _Trouble(NamedTuple):
    lock_class: LockClass
    failures: int
    last_at: float


class RenewalLog(Observers):
    """Listens to failures, and to nothing else. Told by the keeper's thread as well as by the loop's."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(())
        self._now = runtime.now
        self._lock = threading.Lock()
        self._open: dict[str, _Trouble] = {}
        self._ended: Counter[Episode] = Counter()

    def renewal_failed(self, lock_class: LockClass, key: str, *, failures: int, error: str) -> None:
        with self._lock:
            if failures == 1:
                self._recovered(key)
            self._open[key] = _Trouble(lock_class, failures, self._now())
            if len(self._open) > OPEN_MAX:
                self._recovered(next(iter(self._open)))

    def abandoned(self, lock_class: LockClass, key: str, *, fence: int, reason: LossReason) -> None:
        with self._lock:
            trouble = self._open.pop(key, None)
            if trouble is not None and reason is LossReason.UNREACHABLE:
                ending = Ending.FENCED if lock_class.on_renewal_failure == "fence" else Ending.SUSPECT
                self._ended[Episode(lock_class.name, ending, trouble.failures)] += 1

    def released(self, lock_class: LockClass, key: str, *, held_s: float) -> None:
        if self._open:
            with self._lock:
                self._recovered(key)

    def fallback(self, lock_class: LockClass, key: str) -> None:
        with self._lock:
            self._ended[Episode(lock_class.name, Ending.FALLBACK, 0)] += 1

    def take(self) -> Counter[Episode]:
        """What has ended since the last time. A lease of which nothing was heard for a whole ttl has recovered:
        it would have been given up by now."""
        with self._lock:
            now = self._now()
            for key in [key for key, one in self._open.items() if now >= one.last_at + one.lock_class.ttl]:
                self._recovered(key)
            taken, self._ended = self._ended, Counter()
        return taken

    def put_back(self, counts: Counter[Episode]) -> None:
        """They could not be written: they belong to what is taken next."""
        with self._lock:
            self._ended += counts

    def _recovered(self, key: str) -> None:
        trouble = self._open.pop(key, None)
        if trouble is not None:
            self._ended[Episode(trouble.lock_class.name, Ending.RECOVERED, trouble.failures)] += 1
