"""The roles of a plane: what one process may be. `holdfast up` is all of them at once."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    GATEWAY = "gateway"
    """Speaks HTTP: to clients, people and workers."""
    SCHEDULER = "scheduler"
    """Moves on whatever somebody waits for: dispatches jobs, advances runs, obeys schedules."""
    RECONCILER = "reconciler"
    """Puts right what time has left behind, and does what may wait a moment: recovery, expiry, webhooks, retention."""


ALL = frozenset(Role)
