"""Tenants: limits on what waits and what works, and a fair share of the dispatches (T2)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from locks.virtual import VirtualRuntime, on_virtual_time

from flow.stage import Stage, staged
from flow.telling import undelivered
from holdfast.core.decision import Decision, Throttle
from holdfast.core.job import Job, Tenant
from holdfast.core.share import Quota, Quotas
from holdfast.core.states import Event, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import TooMany
from holdfast.flow.submit import Order
from holdfast.ports import JobEvent, JobFilter
from holdfast.scheduler import BATCH

A, B = Tenant("a"), Tenant("b")


class Throttling:
    """A policy that lets two jobs of topic `slow` work at once, whosesoever they are."""

    version = 1

    def decide(self, job: Job) -> Decision:
        throttle = Throttle(key="slow", concurrency=2) if job.topic == "slow" else None
        return Decision(Event.ALLOW, version=1, rule="slow", throttle=throttle)


def order_of(tenant: Tenant, topic: str = "t", *, priority: int = 0, labels: dict[str, str] | None = None) -> Order:
    return Order(tenant=tenant, topic=topic, payload=b"{}", labels=labels or {}, priority=priority)


async def submit_many(stage: Stage, tenant: Tenant, count: int, topic: str = "t", *, priority: int = 0) -> list[Job]:
    return await stage.submit_all([order_of(tenant, topic, priority=priority)] * count)


def most_at_once(events: list[JobEvent], of: set[str]) -> int:
    """How many of these jobs were DISPATCHED or RUNNING at the same time, at most."""
    active: set[str] = set()
    most = 0
    for event in events:
        if event.job_id in of:
            if event.kind == "job.dispatched":
                active.add(event.job_id)
            elif event.state is not None and event.state not in ("DISPATCHED", "RUNNING"):
                active.discard(event.job_id)
            most = max(most, len(active))
    return most


def ids(jobs: list[Job]) -> set[str]:
    return {job.id for job in jobs}


@on_virtual_time
async def test_tenant_works_on_no_more_than_it_may_and_others_are_not_held_up(runtime: VirtualRuntime) -> None:
    quotas = Quotas({A: Quota(running_max=2)})
    async with staged(runtime, quotas=quotas) as stage:
        ours = await submit_many(stage, A, 300)
        theirs = await submit_many(stage, B, 20)
        async with stage.loops(), stage.working(slots=10, work_s=1):
            await stage.wait_ended(*theirs, within_s=30)
            assert not (await stage.job(ours[-1].id)).is_terminal
        await stage.seen.look()

    assert most_at_once(stage.seen.events, ids(ours)) == 2
    # All that is left of the ten slots, also while ours are between two jobs; and never more than there are.
    assert most_at_once(stage.seen.events, ids(theirs)) >= 8
    assert most_at_once(stage.seen.events, ids([*ours, *theirs])) == 10


@on_virtual_time
async def test_topic_works_on_no_more_than_it_may_over_all_tenants(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="scarce", running_max=3),))
    async with staged(runtime, topics=topics) as stage:
        scarce = await submit_many(stage, A, 10, "scarce") + await submit_many(stage, B, 10, "scarce")
        plenty = await submit_many(stage, B, 10, "plenty")
        async with stage.loops(), stage.working(slots=10, work_s=1):
            await stage.wait_ended(*scarce, *plenty, within_s=60)
        await stage.seen.look()

    assert most_at_once(stage.seen.events, ids(scarce)) == 3
    assert most_at_once(stage.seen.events, ids(plenty)) >= 7


@on_virtual_time
async def test_limit_of_a_rule_holds_and_those_behind_it_are_served(runtime: VirtualRuntime) -> None:
    async with staged(runtime, policy=Throttling()) as stage:
        slow = await submit_many(stage, A, 250, "slow")
        quick = await submit_many(stage, A, 10, "quick")
        async with stage.loops(), stage.working(slots=10, work_s=1):
            await stage.wait_ended(*quick, within_s=20)
        await stage.seen.look()

    assert most_at_once(stage.seen.events, ids(slow)) == 2


@pytest.mark.parametrize("kinds", [1, 50])
@on_virtual_time
async def test_jobs_of_a_topic_are_served_behind_many_that_want_labels_nobody_has(
    runtime: VirtualRuntime, kinds: int
) -> None:
    async with staged(runtime) as stage:
        wanting = await stage.submit_all(
            [order_of(A, labels={"require.gpu": f"g{n % kinds}", "number": str(n)}) for n in range(BATCH + 50)]
        )
        await asyncio.sleep(1)
        plain = await submit_many(stage, A, 10)
        async with stage.loops(), stage.working(slots=10):
            await stage.wait_ended(*plain, within_s=20)

        assert {(await stage.job(job.id)).state for job in wanting[::50]} == {State.SCHEDULED}


@on_virtual_time
async def test_jobs_behind_a_thousand_different_demands_are_found_in_a_few_looks(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        wanting = [order_of(A, labels={"require.host": f"gone{n}"}) for n in range(1_050)]
        await stage.submit_all(wanting)
        await asyncio.sleep(1)
        [pinned] = await stage.submit_all([order_of(A, labels={"require.host": "h1"})])
        [plain] = await submit_many(stage, A, 1)
        stage.hello("w1", slots=10, host="h1")
        await stage.scheduler.tick()

        assert stage.store.calls["list_dispatchable"] <= 4
        assert {(await stage.job(job.id)).state for job in (pinned, plain)} == {State.DISPATCHED}


@on_virtual_time
async def test_jobs_behind_many_that_wait_for_a_worker_without_room_are_found(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        unmet = [order_of(A, labels={"require.host": f"gone{n}"}) for n in range(BATCH)]
        waiting = [order_of(A, labels={"require.host": "full", "require.n": f"{n % 300}"}) for n in range(600)]
        await stage.submit_all(unmet + waiting)
        await asyncio.sleep(1)
        [plain] = await submit_many(stage, A, 1)
        for n in range(300):
            stage.hello(f"full{n}", slots=1, host="full", n=str(n))
        stage.hello("w1", slots=10)
        for _ in range(2):
            await stage.scheduler.tick()

        assert (await stage.job(plain.id)).state is State.DISPATCHED
        assert sum((await stage.inner.count_active()).values()) == 301


@on_virtual_time
async def test_limits_that_nobody_set_are_not_counted(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        jobs = await submit_many(stage, A, 20)
        async with stage.loops(), stage.working(slots=10):
            await stage.wait_ended(*jobs, within_s=20)

        assert stage.store.calls.get("count_active", 0) == 0
        assert stage.store.calls.get("count_topics", 0) == 0


@undelivered
@on_virtual_time
async def test_topics_that_take_long_to_count_are_counted_seldom(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="t", live_jobs_max=25),))
    async with staged(runtime, topics=topics) as stage:
        stage.store.fault("count_topics", None, request_s=0.3)
        for _ in range(25):
            await stage.submit("t", tenant=A)
            await asyncio.sleep(1)
        with pytest.raises(TooMany, match="of topic t"):
            await stage.submit("t", tenant=A)

        assert 8 <= stage.store.calls["count_topics"] <= 10, "every 3.3 s"


@undelivered
@on_virtual_time
async def test_queue_of_a_tenant_is_as_long_as_its_own_limit(runtime: VirtualRuntime) -> None:
    quotas = Quotas({A: Quota(live_jobs_max=2), "*": Quota(live_jobs_max=4)})
    async with staged(runtime, quotas=quotas, live_jobs_max=3) as stage:
        await submit_many(stage, A, 2)
        await submit_many(stage, B, 4)
        for tenant in (A, B):
            with pytest.raises(TooMany, match="unfinished") as caught:
                await stage.submit(tenant=tenant)
            assert caught.value.retry_after_s > 0


@on_virtual_time
async def test_queue_of_a_topic_is_limited_for_each_tenant(runtime: VirtualRuntime) -> None:
    topics = Topics((Topic(name="scarce.*", live_jobs_max=2),))
    async with staged(runtime, topics=topics) as stage:
        first, _ = await submit_many(stage, A, 2, "scarce.x")
        with pytest.raises(TooMany, match=r"scarce\.x"):
            await stage.submit("scarce.x", A)
        await stage.submit("scarce.y", A)
        await stage.submit("scarce.x", B)
        await stage.dispatch(first)
        await stage.complete(await stage.claim_one())
        await asyncio.sleep(1.1)
        await stage.submit("scarce.x", A)


@pytest.mark.parametrize("seed", range(3))
@on_virtual_time
async def test_t2_every_busy_tenant_keeps_its_share(runtime: VirtualRuntime, seed: int) -> None:
    """With n busy tenants each gets at least 1/(2n) of the dispatches, however long the others' queues are,
    however long they stood there before, whatever priorities they claim, and however quickly places become free."""
    chance = random.Random(seed)
    tenants = [Tenant(f"t{n}") for n in range(chance.randint(2, 6))]
    async with staged(runtime) as stage:
        backlog = {tenant: chance.choice([60, 60, 400]) for tenant in tenants}
        for tenant in sorted(tenants, key=lambda tenant: -backlog[tenant]):
            await submit_many(stage, tenant, backlog[tenant], priority=chance.choice([-100, 0, 0, 100]))
        async with stage.loops(), stage.working(slots=chance.randint(1, 12), work_s=chance.choice([0.2, 1.0])):
            while True:
                await asyncio.sleep(1)
                await stage.seen.look()
                sent = Counter(event.tenant for event in stage.seen.events if event.kind == "job.dispatched")
                if max(sent.values(), default=0) >= 50:
                    break

    total = sum(sent.values())
    assert total > 0
    for tenant in tenants:
        assert sent[tenant] >= total / (2 * len(tenants)), (sent, backlog)


@on_virtual_time
async def test_tenant_that_comes_late_is_served_soon(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        await submit_many(stage, A, 500)
        async with stage.loops(), stage.working(slots=2, work_s=1):
            await asyncio.sleep(20)
            late = await submit_many(stage, B, 3)
            ended = await stage.wait_ended(*late, within_s=8)

    assert len(ended) == 3


@pytest.mark.parametrize("seed", range(2))
@on_virtual_time
async def test_priorities_of_a_tenant_are_honoured(runtime: VirtualRuntime, seed: int) -> None:
    """None of its jobs begins while one of a higher priority waits."""
    chance = random.Random(seed)
    async with staged(runtime) as stage:
        drawn = [(chance.choice([A, B]), chance.choice([-5, 0, 0, 50])) for _ in range(80)]
        jobs = await stage.submit_all([order_of(tenant, priority=priority) for tenant, priority in drawn])
        async with stage.loops(), stage.working(slots=3, work_s=0.5):
            await stage.wait_ended(*jobs, within_s=120)
        await stage.seen.look()

    priority = {job.id: job.priority for job in jobs}
    for tenant in (A, B):
        begun = [e for e in stage.seen.events if e.kind == "job.dispatched" and e.tenant == tenant]
        if not stage.bus.atomic:
            # Those of one moment are given out together, each in a write of its own, and one of them is first.
            begun.sort(key=lambda e: (e.at, -priority[e.job_id]))
        assert [priority[e.job_id] for e in begun] == sorted((priority[e.job_id] for e in begun), reverse=True)


@on_virtual_time
async def test_urgent_job_does_not_wait_for_the_queues_of_others(runtime: VirtualRuntime) -> None:
    async with staged(runtime) as stage:
        for tenant in (A, B):
            await submit_many(stage, tenant, 300)
        async with stage.loops(), stage.working(slots=1, work_s=1):
            await asyncio.sleep(20)
            urgent = await stage.submit(tenant=A, priority=100)
            # The one that runs, one other, and itself; and the worker's own half second between each.
            await stage.wait_ended(urgent, within_s=6)

        ahead = await stage.inner.list_jobs(A, JobFilter(state=State.SCHEDULED), before=None, limit=1000)
        assert (await stage.job(urgent.id)).state is State.SUCCEEDED
        assert len(ahead) > 250, "the queue it did not wait for is still there"
