"""What is governed in a story: two tenants, a policy that changes, workflows, schedules, and who may say yes."""

from __future__ import annotations

from typing import Any

from holdfast.core.job import Tenant
from holdfast.core.schedule import JobToSubmit, Missed, RunToStart, Schedule
from holdfast.core.share import Quota, Quotas

ACME, GLOBEX = TENANTS = (Tenant("acme"), Tenant("globex"))
WORDS = {ACME: "of-acme-alone", GLOBEX: "of-globex-alone"}
"""What each tenant writes into its payloads. Nobody else may ever read it."""
RUNNING_MAX = 1
QUOTAS = Quotas({GLOBEX: Quota(running_max=RUNNING_MAX)})
APPROVERS = ("ann", "ben", "cid")
REQUESTER = "ann"
"""Asks for payouts, and could approve those of others."""
EXPIRES_S = 6.0
LARGE = 100
"""Payouts above it need somebody's word."""


def policy(*, quorum: int) -> dict[str, Any]:
    return {
        "format": 1,
        "default": {"action": "allow"},
        "rules": [
            {
                "name": "payouts",
                "match": {"topic": "pay"},
                "when": f"payload.amount > {LARGE}",
                "action": "require_approval",
                "approval": {
                    "approvers": list(APPROVERS),
                    "quorum": quorum,
                    "expires_s": EXPIRES_S,
                    "separate": True,
                },
            },
            {"name": "danger", "match": {"topic": "danger"}, "action": "deny", "reason": "nobody needs this"},
            {
                "name": "bulk",
                "match": {"topic": "bulk"},
                "action": "throttle",
                "throttle": {"rate": "1/s", "burst": 1},
            },
        ],
    }


def quorum_of(document: dict[str, Any]) -> int:
    quorum: int = document["rules"][0]["approval"]["quorum"]
    return quorum


def _job(topic: str, payload: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "job", "topic": topic, "payload": payload, **more}


_AMOUNT = {"amount": "${input.amount}", "word": "${input.word}"}
_READ = _job("read", {"word": "${input.word}"})

PAYOUT: dict[str, Any] = {
    "name": "payout",
    "steps": [
        {"id": "gather", "kind": "for_each", "items": "[1, 2]", "parallel": 2, "step": _READ},
        {
            "id": "consent",
            "kind": "approval",
            "depends_on": ["gather"],
            "message": "Pay?",
            "payload": _AMOUNT,
            "approvers": list(APPROVERS),
            "separate": True,
            "expires_s": EXPIRES_S,
        },
        {
            "id": "pay",
            **_job("pay", _AMOUNT, depends_on=["consent"]),
            "compensate": {"topic": "refund", "payload": {"word": "${input.word}"}},
        },
        {"id": "ship", **_job("ship", {"word": "${input.word}", "fails": "${input.fails}"}, depends_on=["pay"])},
    ],
}
LEAF: dict[str, Any] = {"name": "leaf", "steps": [{"id": "read", **_READ}]}
TOUR: dict[str, Any] = {
    "name": "tour",
    "steps": [
        {
            "id": "both",
            "kind": "parallel",
            "branches": {"job": _READ, "run": {"kind": "workflow", "workflow": "leaf", "input": "${input}"}},
        },
        {"id": "nap", "kind": "delay", "seconds": 0.5, "depends_on": ["both"]},
        {"id": "end", **_READ, "depends_on": ["nap"]},
    ],
}
WORKFLOWS = {definition["name"]: definition for definition in (PAYOUT, LEAF, TOUR)}
ERRAND: dict[str, Any] = {
    "name": "errand",
    "steps": [
        {"id": "book", **_job("book", {}), "compensate": {"topic": "unbook"}},
        {"id": "ship", **_job("ship", {"fails": "${input.fails}"}, depends_on=["book"])},
    ],
}
OUTING: dict[str, Any] = {
    "name": "outing",
    "steps": [{"id": "within", "kind": "workflow", "workflow": "errand", "input": "${input}"}],
}
BLINK: dict[str, Any] = {"name": "blink", "steps": [{"id": "say", "kind": "transform", "value": 1}]}
SESSION_WORKFLOWS = {definition["name"]: definition for definition in (ERRAND, OUTING, BLINK)}
"""What is run in sessions: one that can be undone, one with a run within it, and one that ends as it begins."""
DEPENDENCIES: dict[str, dict[str, list[str]]] = {
    name: {step["id"]: step.get("depends_on", []) for step in definition["steps"]}
    for name, definition in (WORKFLOWS | SESSION_WORKFLOWS).items()
}
PARTS = {"payout": {"gather": ("gather[0]", "gather[1]")}, "tour": {"both": ("both[job]", "both[run]")}}


def schedules(now: float) -> list[Schedule]:
    """One that submits jobs, and one that starts runs; each misses ticks in its own way."""
    beat = JobToSubmit(topic="read", payload={"word": WORDS[ACME]})
    tour = RunToStart(workflow="leaf", input={"word": WORDS[ACME]})
    return [
        Schedule(tenant=ACME, name="beat", every_s=1.0, job=beat, next_at=now + 1.0, created_at=now),
        Schedule(
            tenant=ACME, name="round", every_s=3.0, missed=Missed.ALL, run=tour, next_at=now + 3.0, created_at=now
        ),
    ]
