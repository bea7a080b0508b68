"""The audit: what people have changed, one line each, in a chain that shows where it was tampered with.

Every line carries the hash of the line before it, and its own hash covers that. Whoever changes, removes
or inserts a line must make all later ones anew; whoever has once written down a number and its hash finds
out even then. Each tenant has a chain of its own, and the plane has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record

HEAD = "head"
"""The record that says where the chain ends. Sorts behind every line."""
BEGINNING = "0" * 64
"""What the first line carries as the hash before it."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody does."""

    tenant: Tenant
    """Whose chain it belongs to; empty for the plane's."""
    action: str
    """noun.past_verb."""
    subject: str
    """What it was done to, such as `job/0192…`."""
    by: str = ""
    """Who, by the name they gave."""
    reason: str = ""
    detail: dict[str, Any] = {}
    """Never a payload, and nothing secret: lines are for ever."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """From 1, without gaps."""
    tenant: str
    at: float
    by: str
    action: str
    subject: str
    reason: str
    detail: dict[str, Any]
    previous: str
    hash: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chain ends."""

    number: int = 0
    hash: str = BEGINNING


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    lines: int
    """How many were found to be whole, from the first on."""
    first_at: float | None
    last_at: float | None
    hash: str
    """Of the last whole line."""
    broken: int | None
    """The number of the first line that is not as it was written; None: all are."""
    why: str


def hash_of(line: Line) -> str:
    """sha256 over the hash before, a newline, and the line's canonical JSON: keys sorted, no space, without its hash."""
    said = {name: value for name, value in asdict(line).items() if name != "hash"}
    canonical = msgspec.json.encode(said, order="sorted")
    return hashlib.sha256(line.previous.encode() + b"\n" + canonical).hexdigest()


def next_line(head: Head, act: Act, *, now: float) -> Line:
    line = Line(
        number=head.number + 1,
        tenant=act.tenant,
        at=now,
        by=act.by,
        action=act.action,
        subject=act.subject,
        reason=act.reason,
        # As it will be read again: what JSON makes of it is what is hashed.
        detail=msgspec.json.decode(msgspec.json.encode(act.detail)),
        previous=head.hash,
        hash="",
    )
    return msgspec.structs.replace(line, hash=hash_of(line))


def line_id(number: int) -> str:
    """Sorts by number."""
    return f"{number:012d}"


def line_record(line: Line) -> Record:
    """Found again by what was done, and by what it was done to."""
    return Record(
        kind=Kind.AUDIT,
        tenant=Tenant(line.tenant),
        id=line_id(line.number),
        state=line.action,
        parent=line.subject,
        created_at=line.at,
        body=msgspec.json.encode(line, order="sorted"),
    )


def line_from(record: Record) -> Line:
    return msgspec.json.decode(record.body, type=Line)


def head_record(line: Line) -> Record:
    """The head once this line is written. Its version is the line's number."""
    return Record(
        kind=Kind.AUDIT,
        tenant=Tenant(line.tenant),
        id=HEAD,
        version=line.number,
        state=HEAD,
        created_at=line.at,
        body=msgspec.json.encode(Head(number=line.number, hash=line.hash)),
    )


def head_from(record: Record | None) -> Head:
    return Head() if record is None else msgspec.json.decode(record.body, type=Head)


class Verifier:
    """Reads a chain from its first line on, page by page, and stops at the first line that is not whole."""

    def __init__(self, tenant: Tenant, ends: Sequence[Head]) -> None:
        """`ends`: where the chain has ended before, by the store's word or by that of somebody who wrote it down."""
        self._tenant = tenant
        self._known = {end.number: end.hash for end in ends if end.number}
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._end = Head()
        self._why = ""

    @property
    def is_broken(self) -> bool:
        return bool(self._why)

    def read(self, records: Iterable[Record]) -> None:
        for record in records:
            if self._why:
                return
            self._why = self._judge(record)

    def verdict(self, head: Head) -> Verdict:
        """`head` is what the store says is the end, now that all lines are read."""
        longest = max(self._known, default=0)
        if not self._why and longest > self._end.number:
            self._why = f"the chain ends here, but had {longest} lines"
        elif not self._why and head.number < self._end.number:
            self._why = f"there are more lines than the {head.number} that the head of the chain knows of"
        return Verdict(
            lines=self._end.number,
            first_at=self._first_at,
            last_at=self._last_at,
            hash=self._end.hash,
            broken=self._end.number + 1 if self._why else None,
            why=self._why,
        )

    def _judge(self, record: Record) -> str:
        """What is wrong with the next line; empty, and it counts, if nothing is."""
        number = self._end.number + 1
        if record.id != line_id(number):
            return "the line is missing"
        try:
            line = line_from(record)
        except msgspec.DecodeError:
            return "the line cannot be read"
        if line.previous != self._end.hash:
            return "the line does not follow the one before it"
        if (
            line.hash != hash_of(line)
            or (line.number, line.tenant) != (number, self._tenant)
            or (record.state, record.parent, record.created_at) != (line.action, line.subject, line.at)
        ):
            return "the line was changed"
        if self._known.get(number, line.hash) != line.hash:
            return "the line is not the one that was known: the chain was made anew"
        self._first_at = line.at if self._first_at is None else self._first_at
        self._last_at = line.at
        self._end = Head(number=number, hash=line.hash)
        return ""
