"""`/v1/audit`: what people have changed, and whether anybody has changed that."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from holdfast import api
from holdfast.api.audit import AuditLine, AuditPage, AuditVerdict, VerifyAudit
from holdfast.core.audit import Head, Line
from holdfast.core.job import Tenant
from holdfast.core.policy_version import PLANE
from holdfast.flow.audit import get_line, list_lines, verify
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk
from holdfast.gateway.limits import get_number
from holdfast.gateway.pages import Cursor, Limit, cut, number_from_cursor

Word = Annotated[str, Meta(min_length=1, max_length=200)]


class ChainQuery(api.Request, kw_only=True):
    plane: bool = False
    """The plane's chain instead of the tenant's."""


class AuditQuery(ChainQuery, kw_only=True):
    action: Word | None = None
    """Such as `job.cancelled`."""
    subject: Word | None = None
    """Such as `schedule/nightly`."""
    oldest_first: bool = False
    cursor: Cursor | None = None
    limit: Limit = 100


async def list_audit(desk: Desk, call: Call) -> Answer:
    query: AuditQuery = call.query
    place = number_from_cursor(query.cursor)
    found = await list_lines(
        _chain(call, plane=query.plane),
        store=desk.plane.store,
        limit=query.limit + 1,
        after=(place or 0) if query.oldest_first else None,
        before=place,
        action=query.action,
        subject=query.subject,
    )
    page, more = cut(found, query.limit, lambda line: line.number)
    return Answer(AuditPage(items=[_view(line) for line in page], next_cursor=more))


async def get_audit_line(desk: Desk, call: Call) -> Answer:
    query: ChainQuery = call.query
    number = get_number(call.path["number"], of="lines of the audit")
    return Answer(_view(await get_line(_chain(call, plane=query.plane), number, store=desk.plane.store)))


async def verify_audit(desk: Desk, call: Call) -> Answer:
    wanted: VerifyAudit = call.body
    number, _, digest = (wanted.known or "0:").partition(":")
    known = Head(number=int(number), hash=digest)
    found = await verify(_chain(call, plane=wanted.plane), store=desk.plane.store, known=known)
    return Answer(AuditVerdict(intact=found.broken is None, **asdict(found)))


def _chain(call: Call, *, plane: bool) -> Tenant:
    return PLANE if plane else call.tenant


def _view(line: Line) -> AuditLine:
    return AuditLine(**asdict(line))


_TAGS = ("audit",)

AUDIT_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/audit", run=list_audit, query=AuditQuery, reply=AuditPage, tags=_TAGS,
        summary="What people have changed, newest first.",
    ),
    Route(
        method="GET", path="/v1/audit/{number}", run=get_audit_line, query=ChainQuery, reply=AuditLine, tags=_TAGS,
        summary="One line of the audit.",
    ),
    Route(
        method="POST", path="/v1/audit:verify", run=verify_audit, request=VerifyAudit,
        reply=AuditVerdict, tags=_TAGS,
        summary="Read the whole chain, and say where it was tampered with. Changes nothing.",
    ),
)  # fmt: skip
