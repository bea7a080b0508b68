"""What a lock does, told to whoever listens. Labels are classes and reasons, never keys or ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.locks.errors import LossReason
    from holdfast.locks.policy import LockClass


class Observer(Protocol):
    """Called in the thread where it happens; must not block and must not raise."""

    def acquired(self, lock_class: LockClass, key: str, *, fence: int, waited_s: float) -> None: ...

    def waited(self, lock_class: LockClass, key: str, *, waited_s: float) -> None:
        """Gave up waiting for a busy lock."""

    def renewed(self, lock_class: LockClass, count: int) -> None: ...

    def renewal_failed(self, lock_class: LockClass, key: str, *, failures: int, error: str) -> None: ...

    def abandoned(self, lock_class: LockClass, key: str, *, fence: int, reason: LossReason) -> None:
        """A lease was lost: its work was cancelled (`fence`) or goes on as suspect (`continue`)."""

    def not_owned(self, lock_class: LockClass, key: str, *, operation: str) -> None: ...

    def fallback(self, lock_class: LockClass, key: str) -> None:
        """The store failed at acquire and the class allows a local lock instead."""

    def released(self, lock_class: LockClass, key: str, *, held_s: float) -> None: ...

    def release_skipped(self, lock_class: LockClass, key: str, *, reason: LossReason) -> None: ...

    def fence_refused(self, lock_class: LockClass, resource: str) -> None: ...

    def loop_lagged(self, lag_s: float) -> None:
        """The event loop that runs the work did not get to its callbacks for this long."""

    def policy_changed(self, lock_class: LockClass, *, reason: str, for_s: float | None) -> None: ...


class LoggingObserver:
    """Structured events on the `holdfast.locks` logger: name and values as fields of the record
    (`event`, `namespace`, …), and once more in the message for people."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("holdfast.locks")

    def acquired(self, lock_class: LockClass, key: str, *, fence: int, waited_s: float) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, "lock.acquired", lock_class, lock_key=key, fence=fence, waited_s=waited_s)

    def waited(self, lock_class: LockClass, key: str, *, waited_s: float) -> None:
        self._log(logging.INFO, "lock.wait_ended", lock_class, lock_key=key, waited_s=waited_s)

    def renewed(self, lock_class: LockClass, count: int) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, "lock.renewed", lock_class, count=count)

    def renewal_failed(self, lock_class: LockClass, key: str, *, failures: int, error: str) -> None:
        self._log(logging.WARNING, "lock.renewal_failed", lock_class, lock_key=key, failures=failures, error=error)

    def abandoned(self, lock_class: LockClass, key: str, *, fence: int, reason: LossReason) -> None:
        policy = lock_class.on_renewal_failure
        self._log(logging.ERROR, "lock.abandoned", lock_class, lock_key=key, fence=fence, reason=reason, policy=policy)

    def not_owned(self, lock_class: LockClass, key: str, *, operation: str) -> None:
        self._log(logging.WARNING, "lock.not_owned", lock_class, lock_key=key, operation=operation)

    def fallback(self, lock_class: LockClass, key: str) -> None:
        self._log(logging.WARNING, "lock.fallback", lock_class, lock_key=key)

    def released(self, lock_class: LockClass, key: str, *, held_s: float) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, "lock.released", lock_class, lock_key=key, held_s=held_s)

    def release_skipped(self, lock_class: LockClass, key: str, *, reason: LossReason) -> None:
        self._log(logging.INFO, "lock.release_skipped", lock_class, lock_key=key, reason=reason)

    def fence_refused(self, lock_class: LockClass, resource: str) -> None:
        self._log(logging.WARNING, "lock.fence_refused", lock_class, resource=resource)

    def loop_lagged(self, lag_s: float) -> None:
        self._logger.warning("loop.lagged lag_s=%.3f", lag_s, extra={"event": "loop.lagged", "lag_s": lag_s})

    def policy_changed(self, lock_class: LockClass, *, reason: str, for_s: float | None) -> None:
        self._log(logging.WARNING, "lock.policy_changed", lock_class, reason=reason, for_s=for_s)

    def _log(self, level: int, event: str, lock_class: LockClass, **values: object) -> None:
        values = {"namespace": lock_class.name, **values}
        text = " ".join(f"{name}={value}" for name, value in values.items())
        self._logger.log(level, "%s %s", event, text, extra={"event": event, **values})


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def acquired(self, lock_class: LockClass, key: str, *, fence: int, waited_s: float) -> None:
        for observer in self._observers:
            observer.acquired(lock_class, key, fence=fence, waited_s=waited_s)

    def waited(self, lock_class: LockClass, key: str, *, waited_s: float) -> None:
        for observer in self._observers:
            observer.waited(lock_class, key, waited_s=waited_s)

    def renewed(self, lock_class: LockClass, count: int) -> None:
        for observer in self._observers:
            observer.renewed(lock_class, count)

    def renewal_failed(self, lock_class: LockClass, key: str, *, failures: int, error: str) -> None:
        for observer in self._observers:
            observer.renewal_failed(lock_class, key, failures=failures, error=error)

    def abandoned(self, lock_class: LockClass, key: str, *, fence: int, reason: LossReason) -> None:
        for observer in self._observers:
            observer.abandoned(lock_class, key, fence=fence, reason=reason)

    def not_owned(self, lock_class: LockClass, key: str, *, operation: str) -> None:
        for observer in self._observers:
            observer.not_owned(lock_class, key, operation=operation)

    def fallback(self, lock_class: LockClass, key: str) -> None:
        for observer in self._observers:
            observer.fallback(lock_class, key)

    def released(self, lock_class: LockClass, key: str, *, held_s: float) -> None:
        for observer in self._observers:
            observer.released(lock_class, key, held_s=held_s)

    def release_skipped(self, lock_class: LockClass, key: str, *, reason: LossReason) -> None:
        for observer in self._observers:
            observer.release_skipped(lock_class, key, reason=reason)

    def fence_refused(self, lock_class: LockClass, resource: str) -> None:
        for observer in self._observers:
            observer.fence_refused(lock_class, resource)

    def loop_lagged(self, lag_s: float) -> None:
        for observer in self._observers:
            observer.loop_lagged(lag_s)

    def policy_changed(self, lock_class: LockClass, *, reason: str, for_s: float | None) -> None:
        for observer in self._observers:
            observer.policy_changed(lock_class, reason=reason, for_s=for_s)
