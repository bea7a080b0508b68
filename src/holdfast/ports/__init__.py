"""`Store` and `Bus`: the contracts between what happens (flow) and where it is kept.

Each sentence has a test in `tests/conformance/test_store*.py` or `test_bus.py`, which every
backend passes. The store is the truth; a bus is a wake-up and may lose, repeat or reorder.
"""

from holdfast.ports.bus import Bus
from holdfast.ports.store import Store
from holdfast.ports.words import (
    LISTED_PAYLOAD_MAX,
    Accepted,
    Change,
    DeadLetter,
    Delivery,
    JobEvent,
    JobFilter,
    KeyReused,
    Note,
    Overdue,
    Pruned,
    RecordChange,
    Snapshot,
    Submission,
    Transaction,
)

__all__ = [
    "LISTED_PAYLOAD_MAX",
    "Accepted",
    "Bus",
    "Change",
    "DeadLetter",
    "Delivery",
    "JobEvent",
    "JobFilter",
    "KeyReused",
    "Note",
    "Overdue",
    "Pruned",
    "RecordChange",
    "Snapshot",
    "Store",
    "Submission",
    "Transaction",
]
