"""What a caller is about to change, as the audit will have it."""

from __future__ import annotations

from typing import Any

from holdfast.core.audit import Act
from holdfast.core.job import Tenant
from holdfast.flow.audit import Entry
from holdfast.gateway.actors import find_actor
from holdfast.gateway.calls import Call
from holdfast.gateway.desk import Desk


def entry_of(
    desk: Desk, call: Call, action: str, subject: str, *, reason: str = "", tenant: Tenant | None = None, **detail: Any
) -> Entry:
    """In the chain of the caller's tenant, unless another is named: what concerns all belongs to the plane's."""
    act = Act(
        tenant=call.tenant if tenant is None else tenant,
        action=action,
        subject=subject,
        by=find_actor(call),
        reason=reason,
        detail=detail,
    )
    return Entry(desk.plane.audit, act)
