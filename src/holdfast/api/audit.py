"""The audit: what people have changed."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.api.words import Reply, Request

KnownLine = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,17}:[0-9a-f]{64}$(?!\n)")]


class AuditLine(Reply, kw_only=True):
    number: int
    tenant: str
    """Whose chain it is in; empty: the plane's."""
    at: float
    by: str
    """Who, by the name they gave; empty if they gave none."""
    action: str
    subject: str
    reason: str
    detail: dict[str, Any]
    previous: str
    """The hash of the line before."""
    hash: str


class AuditPage(Reply, kw_only=True):
    items: list[AuditLine]
    next_cursor: str | None


class VerifyAudit(Request, kw_only=True):
    """`POST /v1/audit:verify`."""

    plane: bool = False
    """The plane's chain instead of the tenant's."""
    known: KnownLine | None = None
    """A line as somebody once wrote it down, number and hash: it must still be in the chain."""


class AuditVerdict(Reply, kw_only=True):
    intact: bool
    lines: int
    """How many are whole, from the first on: this is what the verdict covers."""
    first_at: float | None
    last_at: float | None
    hash: str
    """Of the last whole line. Write it down elsewhere, with its number: it is what proves the chain later."""
    broken: int | None
    """The first line that is not as it was written."""
    why: str
