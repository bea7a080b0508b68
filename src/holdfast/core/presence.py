"""Presence: a process of the plane says that it is there, and which workers speak to it.

One record for each process. Whoever dispatches, recovers or is asked about a worker may be another
process than the one the worker speaks to.
"""

from __future__ import annotations

import msgspec

from holdfast.core.policy_version import PLANE
from holdfast.core.record import Kind, Record

FORGET_S = 30.0
"""Without a word for this long a process is taken for gone. Its workers speak to another one by then."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    process: str
    roles: tuple[str, ...]
    at: float
    """Its last word, by the store's clock."""
    since: float
    workers: msgspec.Raw
    """As the registry tells them."""


def to_record(presence: Presence, *, version: int) -> Record:
    return Record(
        kind=Kind.PRESENCE,
        tenant=PLANE,
        id=presence.process,
        version=version,
        due=presence.at + FORGET_S,
        created_at=presence.since,
        body=msgspec.json.encode(presence),
    )


def from_record(record: Record) -> Presence:
    return msgspec.json.decode(record.body, type=Presence)
