"""What can be asked about the audit, as values; see `asks`."""

from __future__ import annotations

from holdfast.api.audit import AuditLine, AuditPage, AuditVerdict, VerifyAudit
from holdfast.client.asks import Ask, get_ask, post_ask, read_as


def audit(
    *,
    plane: bool = False,
    action: str | None = None,
    subject: str | None = None,
    oldest_first: bool = False,
    cursor: str | None = None,
    limit: int = 100,
) -> Ask[AuditPage]:
    """A page of what people have changed, of the tenant or of the plane."""
    query = [("plane", plane or None), ("action", action), ("subject", subject), ("oldest_first", oldest_first or None)]
    return get_ask("/v1/audit", read_as(AuditPage), *query, ("cursor", cursor), ("limit", limit))


def audit_line(number: int, *, plane: bool = False) -> Ask[AuditLine]:
    """One line of the audit."""
    return get_ask(f"/v1/audit/{number}", read_as(AuditLine), ("plane", plane or None))


def verify_audit(*, plane: bool = False, known: str | None = None) -> Ask[AuditVerdict]:
    """Whether the chain is whole; with a line as somebody once wrote it down, `NUMBER:HASH`, also whether that is still in it."""
    body = VerifyAudit(plane=plane, known=known)
    return post_ask("/v1/audit:verify", read_as(AuditVerdict), body, repeatable=True)
