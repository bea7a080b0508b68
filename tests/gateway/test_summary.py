"""`/v1/summary`: how the plane stands, for the tenant who asks."""

from __future__ import annotations

from gateway.conftest import Served
from holdfast.gateway.summaries import LINE_MAX


async def test_longest_wait_is_seen_behind_a_tenant_with_many_urgent_jobs(served: Served) -> None:
    urgent = [{"topic": "t", "priority": 9} for _ in range(LINE_MAX)]
    await served.post("/v1/jobs:batch", {"jobs": urgent}, holdfast_tenant="busy")
    await served.post("/v1/jobs", {"topic": "t"}, holdfast_tenant="small")

    said = {
        tenant: (await served.http.get("/v1/summary", headers={"holdfast-tenant": tenant})).json()
        for tenant in ("busy", "small", "absent")
    }

    assert [said[tenant]["states"] for tenant in said] == [{"SCHEDULED": LINE_MAX}, {"SCHEDULED": 1}, {}]
    assert [said[tenant]["waiting_longest_s"] is not None for tenant in said] == [True, True, False]
