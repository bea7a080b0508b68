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
        self._rules: dict[str, _Rule] = {}
        self._revision = 0
        #: Whether anybody ever changed anything: else a class in force is the one that was declared.
        self.changed = False
        for lock_class in declared:
            self._declare(lock_class)

    def get(self, wanted: LockClass | str) -> LockClass:
        """The class in force now. Raises `UndeclaredClass` for a name nobody declared."""
        name = wanted if isinstance(wanted, str) else wanted.name
        declared = self._declared.get(name)
        if declared is not wanted and not isinstance(wanted, str):
            declared = self._declare(wanted)
        if declared is None:
            raise UndeclaredClass(name, list(self._declared))
        if self._overrides:
            declared = self._overridden(name, declared)
        return self._ruled(name, declared) if self._rules else declared

    def all(self) -> list[LockClass]:
        """Every declared class, as it is in force now."""
        return [self.get(name) for name in self._declared]

    def of_key(self, key: str) -> LockClass:
        """The class that declares this key (without the deployment's prefix). Raises `UndeclaredClass`."""
        families = [known for known in self._declared.values() if key.startswith(known.key_prefix or "")]
        if not families:
            raise UndeclaredClass(key, list(self._declared))
        return self.get(max(families, key=lambda known: len(known.key_prefix or "")).name)

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
        self.changed = True
        if settings:
            self._overrides[name] = changed, None if for_s is None else self._runtime.now() + for_s
        else:
            self._overrides.pop(name, None)
        self._observer.policy_changed(changed, reason=reason, for_s=for_s)

    def rule(self, name: str, *, reason: str, for_s: float | None = None, **settings: object) -> None:
        """As `override`, on top of it, and for leases that are held as well: they obey at their next renewal.

        Of a held lease `renewal_failures` and `on_renewal_failure` change. What is lost stays lost.
        """
        if not reason.strip():
            raise ValueError("a rule needs a reason: it is what the next person on call reads")
        base = self._declared.get(name)
        if base is None:
            raise UndeclaredClass(name, list(self._declared))
        changed = base.with_policy(**settings)
        self.changed = True
        if settings:
            self._rules[name] = _Rule(settings, None if for_s is None else self._runtime.now() + for_s)
        else:
            self._rules.pop(name, None)
        self._revision += 1
        self._observer.policy_changed(changed, reason=reason, for_s=for_s)

    def revision(self) -> int:
        """Another number whenever the rules are others."""
        for name in tuple(self._rules):
            self.get(name)
        return self._revision

    def _declare(self, lock_class: LockClass) -> LockClass:
        earlier = self._declared.get(lock_class.name)
        if earlier is not None and earlier != lock_class:
            raise ValueError(f"lock class {lock_class.name!r} is declared twice with different settings")
        self._declared[lock_class.name] = lock_class
        return lock_class

    def _overridden(self, name: str, declared: LockClass) -> LockClass:
        override = self._overrides.get(name)
        if override is None:
            return declared
        changed, until = override
        if until is not None and self._runtime.now() >= until:
            self._overrides.pop(name, None)
            self._observer.policy_changed(declared, reason="the override has run out", for_s=None)
            return declared
        return changed

    def _ruled(self, name: str, base: LockClass) -> LockClass:
        rule = self._rules.get(name)
        if rule is None:
            return base
        if rule.until is not None and self._runtime.now() >= rule.until:
            # The keeper's thread may come here at the same moment; then one of them tells.
            if self._rules.pop(name, None) is not None:
                self._revision += 1
                self._observer.policy_changed(base, reason="the rule has run out", for_s=None)
            return base
        made = rule.made
        if made is None or made[0] is not base:
            # Both in one assignment: the keeper's thread may come here at the same moment.
            made = rule.made = base, base.with_policy(**rule.settings)
        return made[1]


class _Rule:
    """Settings for a while, and what they make of a class: worked out once."""

    __slots__ = ("made", "settings", "until")

    def __init__(self, settings: dict[str, object], until: float | None) -> None:
        self.settings = settings
        self.until = until
        self.made: tuple[LockClass, LockClass] | None = None
        """From which class, and what."""
