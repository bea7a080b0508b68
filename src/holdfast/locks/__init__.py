"""Leases, fences and fenced writes. A library with no server; imports nothing else of Holdfast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.locks.errors import (
    LeaseLost,
    LockBusy,
    LockError,
    LossReason,
    NotOwned,
    StaleFence,
    StoreRefused,
    Unavailable,
    UndeclaredClass,
)
from holdfast.locks.lease import Lease
from holdfast.locks.locks import Locks
from holdfast.locks.observe import LoggingObserver, Observer, Observers
from holdfast.locks.policy import LockClass, OnRenewalFailure, OnStoreError, Pattern, Risk
from holdfast.locks.port import Holder, Ownership

if TYPE_CHECKING:
    from holdfast.locks.sync import SyncLocks

__all__ = [
    "Holder",
    "Lease",
    "LeaseLost",
    "LockBusy",
    "LockClass",
    "LockError",
    "Locks",
    "LoggingObserver",
    "LossReason",
    "NotOwned",
    "Observer",
    "Observers",
    "OnRenewalFailure",
    "OnStoreError",
    "Ownership",
    "Pattern",
    "Risk",
    "StaleFence",
    "StoreRefused",
    "SyncLocks",
    "Unavailable",
    "UndeclaredClass",
]


if not TYPE_CHECKING:  # type checkers would take every misspelt name for one of ours

    def __getattr__(name: str) -> type[SyncLocks]:
        """`SyncLocks` when it is asked for: few programs use both faces."""
        if name != "SyncLocks":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.locks.sync import SyncLocks  # noqa: PLC0415

        return SyncLocks
