"""The policy matrix: by risk and namespace, what a holder does when its renewals fail, or the store is away.

The defaults are the declared lock classes. A cell changes some of it, for all classes of a risk or for one
namespace, mostly for a while. A namespace's own cell beats that of its risk, and both beat what an
incident has set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record
from holdfast.errors import Invalid
from holdfast.locks.policy import LockClass, Pattern

CELLS_MAX = 100
INCIDENT = "incident:"
"""Starts the selectors of cells that an incident has set."""
_SELECTOR = re.compile(r"(?:incident:)?(?:risk=(?:low|medium|high)|namespace=[a-z][a-z0-9_.-]{0,63})")
RELEASE = "skip"
"""What is done about the lock after a loss: nothing, ever. It may be somebody else's by then. Not to be changed."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cell changes; None: nothing."""

    failures: int | None = None
    """Consecutive failed renewals after which a lease is given up."""
    action: str | None = None
    """What that means: `fence` or `continue`."""
    reacquire_s: float | None = None
    """How long the lock is waited for, also when it is taken again after a loss."""
    fallback: str | None = None
    """When the store is away at acquire: `fail` or `local`."""

    def settings(self) -> dict[str, Any]:
        """As a lock class has them."""
        named = {
            "renewal_failures": self.failures,
            "on_renewal_failure": self.action,
            "wait": self.reacquire_s,
            "on_store_error": self.fallback,
        }
        return {name: value for name, value in named.items() if value is not None}


STRICT = {
    "risk=high": Rules(failures=1, action="fence", fallback="fail"),
    "risk=medium": Rules(action="fence", fallback="fail"),
    "risk=low": Rules(action="fence", fallback="fail"),
}
"""For the duration of an incident: nothing goes on without its lock, and what matters most stops at the first doubt."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    selector: str
    """`risk=<risk>` or `namespace=<lock class>`."""
    rules: Rules
    reason: str
    by: str = ""
    since: float
    until: float | None
    """When it reverts by itself; None: when somebody resets it."""
    version: int = 0

    def has_ended(self, now: float) -> bool:
        return self.until is not None and now >= self.until

    def covers(self, lock_class: LockClass) -> bool:
        what, _, value = self.selector.removeprefix(INCIDENT).partition("=")
        return value == (lock_class.risk if what == "risk" else lock_class.name)

    @property
    def rank(self) -> int:
        """Who has the last word: the higher."""
        if self.selector.startswith(INCIDENT):
            return 0
        return 1 if self.selector.startswith("risk=") else 2


def governs(lock_class: LockClass) -> bool:
    """Windows (`ttl_hold`) are neither renewed nor waited for: the matrix has nothing to say about them."""
    return lock_class.pattern is Pattern.PER_ITEM


def cells_over(lock_class: LockClass, cells: Iterable[Cell], *, now: float) -> list[Cell]:
    """Those that have a word on the class now, the last word last."""
    return sorted((c for c in cells if c.covers(lock_class) and not c.has_ended(now)), key=lambda c: c.rank)


def settings_for(lock_class: LockClass, cells: Iterable[Cell], *, now: float) -> dict[str, Any]:
    """What the cells change about the class."""
    settings: dict[str, Any] = {}
    for cell in cells_over(lock_class, cells, now=now):
        settings |= cell.rules.settings()
    return settings


def ruled(lock_class: LockClass, cells: Iterable[Cell], *, now: float) -> LockClass:
    """The class as the cells would have it. Raises `Invalid` for settings that cannot work."""
    try:
        return lock_class.with_policy(**settings_for(lock_class, cells, now=now))
    except ValueError as error:
        raise Invalid(str(error)) from None


def check_selector(selector: str) -> str:
    if not _SELECTOR.fullmatch(selector):
        raise Invalid("a cell is risk=low|medium|high or namespace=LOCK-CLASS")
    return selector


def cell_record(cell: Cell) -> Record:
    """As it is to be stored, one version on."""
    version = cell.version + 1
    return Record(
        kind=Kind.CELL,
        tenant=PLANE,
        id=cell.selector,
        version=version,
        state="set",
        due=cell.until,
        created_at=cell.since,
        body=msgspec.json.encode(msgspec.structs.replace(cell, version=version)),
    )


def cell_from(record: Record) -> Cell:
    return msgspec.json.decode(record.body, type=Cell)
