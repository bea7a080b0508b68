"""Versions of the policy, as records: one for each version, for ever, and one that says which is active.

A version is never changed. The active one is named by a single record, so that publishing and rolling
back are one compare-and-set, and two people who publish at once cannot both believe they did.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.schema import digest

PLANE = Tenant("")
"""The policy belongs to the whole plane, not to a tenant."""
ACTIVE = "active"
VERSION = "version"


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    hash: str
    document: Any
    published_at: float
    by: str = ""
    """Who published it, by the name they gave."""
    reason: str = ""
    file: str = ""
    """The file it came from, where a plane published it at its start."""


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """Which version holds now, and since when."""

    number: int
    hash: str
    newest: int
    """The highest number there is: rolling back does not give it anew."""
    since: float
    by: str = ""
    reason: str = ""
    files: dict[str, str] = {}
    """By file: the hash of the version that was last published from it. A plane that starts publishes a
    file only if it has changed since, and so does not undo what people did in between."""


def new_version(
    document: Any, active: Active | None, *, now: float, by: str = "", reason: str = "", file: str = ""
) -> tuple[PolicyVersion, Active]:
    """The next version, and what is active once it is stored."""
    number = 1 if active is None else active.newest + 1
    files = {} if active is None else active.files
    version = PolicyVersion(
        number=number, hash=digest(document), document=document, published_at=now, by=by, reason=reason, file=file
    )
    after = Active(
        number=number,
        hash=version.hash,
        newest=number,
        since=now,
        by=by,
        reason=reason,
        files={**files, file: version.hash} if file else files,
    )
    return version, after


def rolled_back(active: Active, to: PolicyVersion, *, now: float, by: str, reason: str) -> Active:
    return msgspec.structs.replace(active, number=to.number, hash=to.hash, since=now, by=by, reason=reason)


def version_id(number: int) -> str:
    """Sorts by number."""
    return f"{number:010d}"


def version_to_record(version: PolicyVersion) -> Record:
    return Record(
        kind=Kind.POLICY,
        tenant=PLANE,
        id=version_id(version.number),
        state=VERSION,
        parent=VERSION,
        created_at=version.published_at,
        body=msgspec.json.encode(version),
    )


def version_from_record(record: Record) -> PolicyVersion:
    return msgspec.json.decode(record.body, type=PolicyVersion)


def active_to_record(active: Active, *, version: int) -> Record:
    """`version` is the record's own: one more than that of the record it replaces."""
    return Record(
        kind=Kind.POLICY,
        tenant=PLANE,
        id=ACTIVE,
        version=version,
        state=ACTIVE,
        parent=ACTIVE,
        created_at=active.since,
        body=msgspec.json.encode(active),
    )


def active_from_record(record: Record) -> Active:
    return msgspec.json.decode(record.body, type=Active)
