"""The lock classes a program has declared, and what an operator has changed about them for a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.locks.errors import UndeclaredClass
from holdfast.locks.policy import LockClass

if TYPE_CHECKING:
    from holdfast.locks.observe import Observer
    from holdfast.locks.runtime import Runtime


class Classes:
    def __init__(self, declared: Iterable[LockClass], *, runtime: Runtime, observer: Observer) -> None:
        self._runtime = runtime
        self._observer = observer
        self._declared: dict[str, LockClass] = {}
        self._overrides: dict[str, tuple[LockClass, float | None]] = {}
        for lock_class in declared:
            self._declare(lock_class)

    def get(self, wanted: LockClass | str) -> LockClass:
        """The class in force now. Raises `UndeclaredClass` for a name nobody declared."""
        if isinstance(wanted, LockClass):
            name = wanted.name
            if self._declared.get(name) is not wanted:
                self._declare(wanted)
        else:
            name = wanted
        declared = self._declared.get(name)
        if declared is None:
            raise UndeclaredClass(name, list(self._declared))
        if self._overrides:
            return self._overridden(name, declared)
        return declared

    def override(self, name: str, *, reason: str, for_s: float | None = None, **settings: object) -> None:
        """Change settings of a declared class for leases acquired from now on.

        Reverts by itself after `for_s` seconds. No settings at all reverts at once. Every change
        is told to the observer with its reason.
        """
        if not reason.strip():
            raise ValueError("an override needs a reason: it is what the next person on call reads")
        declared = self._declared.get(name)
        if declared is None:
            raise UndeclaredClass(name, list(self._declared))
        changed = declared.with_policy(**settings)
        if settings:
            self._overrides[name] = changed, None if for_s is None else self._runtime.now() + for_s
        else:
            self._overrides.pop(name, None)
        self._observer.policy_changed(changed, reason=reason, for_s=for_s)

    def _declare(self, lock_class: LockClass) -> None:
        earlier = self._declared.get(lock_class.name)
        if earlier is not None and earlier != lock_class:
            raise ValueError(f"lock class {lock_class.name!r} is declared twice with different settings")
        self._declared[lock_class.name] = lock_class

    def _overridden(self, name: str, declared: LockClass) -> LockClass:
        override = self._overrides.get(name)
        if override is None:
            return declared
        changed, until = override
        if until is not None and self._runtime.now() >= until:
            del self._overrides[name]
            self._observer.policy_changed(declared, reason="the override has run out", for_s=None)
            return declared
        return changed
