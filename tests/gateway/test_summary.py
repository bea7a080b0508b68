"""`/v1/summary`: how the plane stands, for the tenant who asks."""

from __future__ import annotations

import asyncio

import pytest

from gateway.conftest import Served
from holdfast.core.job import Tenant
from holdfast.gateway.summaries import LINE_MAX, Summaries


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


async def test_jobs_of_topics_are_counted_once_for_all_tenants_who_ask(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [Tenant(f"t{n}") for n in range(5)]
    for tenant in tenants:
        await served.post("/v1/jobs", {"topic": tenant}, holdfast_tenant=tenant)
    store, now, asked = served.plane.store, served.plane.store.now(), 0
    count_topics = store.count_topics

    async def counted() -> object:
        nonlocal asked
        asked += 1
        return await count_topics()

    monkeypatch.setattr(store, "count_topics", counted)
    monkeypatch.setattr(store, "now", lambda: now)
    summaries = Summaries(served.plane)
    said = await asyncio.gather(*map(summaries.get, tenants))

    assert [one.topics for one in said] == [{tenant: 1} for tenant in tenants]
    assert asked == 1
