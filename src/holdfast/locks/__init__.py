"""Leases, fences and fenced writes. A library with no server; imports nothing else of Holdfast."""

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
