"""`…/why`: why a job, run, lock, approval or worker is as it is."""

from __future__ import annotations

from msgspec import to_builtins

from holdfast.api.why import AttemptLine, FindingView, WhyView
from holdfast.core.job import JobId
from holdfast.core.why import Finding
from holdfast.flow.explain import Explanation
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk


async def why_job(desk: Desk, call: Call) -> Answer:
    return _answer(await desk.plane.explainer.job(call.tenant, JobId(call.path["id"])))


async def why_run(desk: Desk, call: Call) -> Answer:
    return _answer(await desk.plane.run_explainer.run(call.tenant, call.path["id"]))


async def why_approval(desk: Desk, call: Call) -> Answer:
    approval = await desk.plane.approvals.get(call.tenant, call.path["id"])
    return _answer(await desk.plane.explainer.approval(call.tenant, approval))


async def why_worker(desk: Desk, call: Call) -> Answer:
    return _answer(await desk.plane.explainer.worker(call.tenant, call.path["id"]))


async def why_lock(desk: Desk, call: Call) -> Answer:
    return _answer(await desk.plane.explainer.lock(call.path["key"]))


def _answer(found: Explanation) -> Answer:
    return Answer(
        WhyView(
            subject=found.subject,
            id=found.id,
            state=found.state,
            at=found.at,
            findings=[_finding(one) for one in found.findings],
            attempts=[AttemptLine(**to_builtins(attempt)) for attempt in found.attempts],
        )
    )


def _finding(found: Finding) -> FindingView:
    return FindingView(
        code=found.reason,
        weight=found.weight,
        summary=found.summary,
        since=found.since,
        until=found.until,
        who=found.who,
        next=list(found.then),
        evidence=found.evidence,
    )


_WHY = ("why",)

WHY_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/jobs/{id}/why", run=why_job, reply=WhyView, tags=_WHY,
        summary="Why a job is where it is: ranked causes with evidence, and its attempts.",
    ),
    Route(
        method="GET", path="/v1/runs/{id}/why", run=why_run, reply=WhyView, tags=_WHY,
        summary="Why a run is where it is.",
    ),
    Route(
        method="GET", path="/v1/approvals/{id}/why", run=why_approval, reply=WhyView, tags=_WHY,
        summary="Why an approval is as it is, and who can decide.",
    ),
    Route(
        method="GET", path="/v1/workers/{id}/why", run=why_worker, reply=WhyView, wide=("id",), tags=_WHY,
        summary="Why a worker gets nothing, or does nothing.",
    ),
    Route(
        method="GET", path="/v1/locks/{key}/why", run=why_lock, reply=WhyView, wide=("key",), tags=_WHY,
        summary="Why a lock is held, by whom, and until when.",
    ),
)  # fmt: skip
