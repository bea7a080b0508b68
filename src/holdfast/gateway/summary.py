"""`/v1/summary`: how the plane stands, in one answer that is cheap enough to be asked for every second."""

from __future__ import annotations

from holdfast.api.summary import Summary
from holdfast.gateway.calls import Answer, Call, Route
from holdfast.gateway.desk import Desk


async def get_summary(desk: Desk, call: Call) -> Answer:
    return Answer(await desk.summaries.get(call.tenant))


SUMMARY_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/summary", run=get_summary, reply=Summary, tags=("why",),
        summary="How the plane stands: jobs, workers, locks, approvals, freezes and what to look into.",
    ),
)  # fmt: skip
