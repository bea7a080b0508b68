"""Who may be dispatched, in Redis, where what is left out is more than a script may walk past."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import pytest

from holdfast.core.job import Job, Tenant
from holdfast.ports import Submission
from holdfast.stores import StoreWithBus
from holdfast.stores.redis import reads as redis_reads
from holdfast.stores.redis.link import READY, Asking
from plane.jobs import a_job
from plane.redis_namespaces import opened, url  # noqa: F401

FROZEN = "frozen"


async def many(store: StoreWithBus, tenant: str, *topics: str, priority: int = 0) -> list[Job]:
    """Jobs of these topics, in this order. Those that may be dispatched."""
    jobs = [a_job(tenant=Tenant(tenant), topic=topic, priority=priority, not_before=store.now()) for topic in topics]
    await store.submit([Submission(job=job, key=None, digest="") for job in jobs])
    return [job for job in jobs if job.topic != FROZEN]


@pytest.mark.parametrize("passes_max", [1, 3, 2000])
async def test_jobs_behind_any_number_that_are_left_out_are_found(
    url: str, monkeypatch: pytest.MonkeyPatch, passes_max: int
) -> None:
    asked: list[int] = []
    run = Asking.run

    async def counted(asking: Asking, what: object, *rest: object) -> object:
        asked.append(what is READY)
        return await run(asking, what, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(redis_reads, "PASSES_MAX", passes_max)
    async with opened(url) as store:
        wanted = await many(store, "a", *[FROZEN] * 25, "t", FROZEN, FROZEN, "t")
        await many(store, "b", *[FROZEN] * 7)
        await many(store, "c", "t")
        wanted += await many(store, "d", "t", FROZEN)
        wanted += await many(store, "e", FROZEN, "t", priority=-5)
        monkeypatch.setattr(Asking, "run", counted)

        lists = [
            await store.list_dispatchable(limit=limit, except_topics=[FROZEN], except_tenants=[Tenant("c")])
            for limit in (10, 1, 10)
        ]

    found = [{job.id for job in each} for each in lists]
    assert found[0] == found[2]
    assert found[1] <= found[0]
    assert found[0] == {job.id for job in wanted}
    assert wanted[-1] == lists[0][-1], "the least urgent comes last"
    assert (sum(asked) > 10) == (passes_max < 2000)
