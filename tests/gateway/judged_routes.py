"""Every route of the gateway, and what it may tell to whom: the table of `test_tenants_apart`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

WORKFLOW = """\
name: {name}
steps:
  - id: wait
    kind: approval
    message: {name}
"""


class Judged(Enum):
    BY_ID = auto()
    """Of a tenant, by an id or a name: for another tenant it is as if it had never been."""
    LISTED = auto()
    """What is listed or counted is the tenant's: what others have changes no word of it."""
    MADE = auto()
    """Makes something of the tenant's. A name or a key that another tenant uses is as good as any."""
    SHARED = auto()
    """The plane's: workers, locks, freezes, policy, matrix, incidents, its own chain of the audit. Everybody is told the same,
    and nothing that a tenant has said about its jobs."""
    WORKERS = auto()
    """Said by workers, which work for all tenants; a fence says which attempt is meant."""
    ANYBODY = auto()
    """Answered without a key."""


@dataclass(frozen=True)
class Line:
    judged: Judged
    of: str = ""
    """Of which thing of the other tenant's the path has the id, or the query the word."""
    body: Any = None
    query: str = ""


def by_id(of: str, body: Any = None) -> Line:
    return Line(Judged.BY_ID, of, body)


def made(body: Any) -> Line:
    """`$` in it stands for a name."""
    return Line(Judged.MADE, body=body)


LISTED, SHARED, WORKERS, ANYBODY = (Line(one) for one in (Judged.LISTED, Judged.SHARED, Judged.WORKERS, Judged.ANYBODY))

TABLE: dict[str, Line] = {
    "POST /v1/jobs": made({"topic": "t", "idempotency_key": "$", "session": "$", "session_policy": "reject"}),
    "POST /v1/jobs:batch": made({"jobs": [{"topic": "t", "idempotency_key": "$-2", "session": "$-2"}]}),
    "GET /v1/jobs": LISTED,
    "GET /v1/jobs/{id}": by_id("job"),
    "GET /v1/jobs/{id}/events": by_id("job"),
    "GET /v1/jobs/{id}/why": by_id("job"),
    "POST /v1/jobs/{id}:cancel": by_id("job"),
    "POST /v1/jobs/{id}:retry": by_id("failed"),
    "POST /v1/work/hello": WORKERS,
    "POST /v1/work/claim": WORKERS,
    "POST /v1/work/start": WORKERS,
    "POST /v1/work/renew": WORKERS,
    "POST /v1/work/listen": WORKERS,
    "POST /v1/work/progress": WORKERS,
    "POST /v1/work/complete": WORKERS,
    "POST /v1/work/effect/prepare": WORKERS,
    "POST /v1/work/effect/commit": WORKERS,
    "POST /v1/work/effect/withdraw": WORKERS,
    "POST /v1/work/goodbye": WORKERS,
    "GET /v1/workers": SHARED,
    "GET /v1/workers/{id}/why": SHARED,
    "POST /v1/workers/{id}:drain": SHARED,
    "GET /v1/locks": SHARED,
    "GET /v1/locks/{key}/why": SHARED,
    "POST /v1/locks/{key}:evict": SHARED,
    "GET /v1/lock-classes": SHARED,
    "GET /v1/dead-letters": LISTED,
    "GET /v1/dead-letters/{number}": by_id("letter"),
    "POST /v1/dead-letters/{number}:replay": by_id("letter"),
    "GET /v1/effects": LISTED,
    "POST /v1/effects/{job}/{key}:resolve": by_id("effect", {"state": "absent", "reason": "r"}),
    "GET /v1/events": Line(Judged.BY_ID, "job", query="job"),
    "GET /problems/{code}": ANYBODY,
    "GET /livez": ANYBODY,
    "GET /readyz": ANYBODY,
    "GET /metrics": SHARED,
    "GET /v1/approvals": LISTED,
    "GET /v1/approvals/{id}": by_id("approval"),
    "GET /v1/approvals/{id}/why": by_id("approval"),
    "POST /v1/approvals/{id}:decide": by_id("approval", {"decision": "approve"}),
    "POST /v1/approvals/{id}:delegate": by_id("approval", {"to": "eve"}),
    "GET /v1/policy": SHARED,
    "POST /v1/policy:publish": SHARED,
    "POST /v1/policy:rollback": SHARED,
    "POST /v1/policy:simulate": Line(Judged.LISTED, body={"document": {"format": 1, "default": {"action": "deny", "reason": "r"}}}),
    "GET /v1/policy/versions": SHARED,
    "GET /v1/policy/versions/{version}": SHARED,
    "POST /v1/workflows": made({"document": WORKFLOW.format(name="$")}),
    "GET /v1/workflows": LISTED,
    "GET /v1/workflows/{name}": by_id("workflow"),
    "GET /v1/workflows/{name}/revisions": by_id("workflow"),
    "POST /v1/runs": Line(Judged.BY_ID, "workflow", {"workflow": "$"}),
    "POST /v1/runs:plan": Line(Judged.BY_ID, "workflow", {"workflow": "$"}),
    "GET /v1/runs": LISTED,
    "GET /v1/runs/{id}": by_id("run"),
    "GET /v1/runs/{id}/timeline": by_id("run"),
    "GET /v1/runs/{id}/steps": by_id("run"),
    "GET /v1/runs/{id}/why": by_id("run"),
    "POST /v1/runs/{id}:cancel": by_id("run"),
    "POST /v1/runs/{id}:pause": by_id("run"),
    "POST /v1/runs/{id}:resume": by_id("run"),
    "POST /v1/runs/{id}:rerun": by_id("run", {"step": "wait"}),
    "POST /v1/schedules": made({"name": "$", "every_s": 3600, "job": {"topic": "t"}}),
    "GET /v1/schedules": LISTED,
    "GET /v1/schedules/{name}": by_id("schedule"),
    "POST /v1/schedules/{name}:pause": by_id("schedule"),
    "POST /v1/schedules/{name}:resume": by_id("schedule"),
    "POST /v1/schedules/{name}:trigger": by_id("schedule"),
    "POST /v1/schedules/{name}:remove": by_id("schedule"),
    "POST /v1/webhooks": made({"name": "$", "url": "http://127.0.0.1:9/"}),
    "GET /v1/webhooks": LISTED,
    "GET /v1/webhooks/{name}": by_id("webhook"),
    "GET /v1/webhooks/{name}/posts": by_id("webhook"),
    "POST /v1/webhooks/{name}:enable": by_id("webhook"),
    "POST /v1/webhooks/{name}:rotate": by_id("webhook"),
    "POST /v1/webhooks/{name}:test": by_id("webhook"),
    "POST /v1/posts/{id}:retry": by_id("post"),
    "POST /v1/webhooks/{name}:remove": by_id("webhook"),
    "GET /v1/summary": LISTED,
    "GET /v1/audit": LISTED,
    "GET /v1/audit/{number}": by_id("line"),
    "POST /v1/audit:verify": Line(Judged.LISTED, body={}),
    "GET /v1/freezes": SHARED,
    "POST /v1/freezes": SHARED,
    "POST /v1/freezes:thaw": SHARED,
    "GET /v1/matrix": SHARED,
    "POST /v1/matrix:set": SHARED,
    "POST /v1/matrix:reset": SHARED,
    "POST /v1/matrix:simulate": SHARED,
    "GET /v1/incidents": SHARED,
    "POST /v1/incidents": SHARED,
    "GET /v1/incidents/{number}": SHARED,
    "POST /v1/incidents/{number}:note": SHARED,
    "POST /v1/incidents/{number}:stop": SHARED,
    "GET /v1/incidents/{number}/export": SHARED,
}  # fmt: skip


def lines(*judged: Judged) -> Iterator[tuple[str, str, Line]]:
    for route, line in TABLE.items():
        if line.judged in judged:
            method, path = route.split(" ")
            yield method, path, line
