"""Shares: limits on what works at once, and turns between tenants."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from plane.jobs import a_job

from holdfast.core.job import Job, JobId, Tenant
from holdfast.core.share import Quota, Quotas, Shares, Turns, limit_of
from holdfast.core.topic import Topic, Topics

A, B = Tenant("a"), Tenant("b")


def job(tenant: str = "a", topic: str = "t", *, key: str = "", limit: int = 1, **values: Any) -> Job:
    decision = {"concurrency": {"key": key, "limit": limit}} if key else None
    return a_job(tenant=Tenant(tenant), topic=topic, decision=decision, **values)


def test_quota_of_a_tenant_is_its_own_or_that_of_all_others() -> None:
    quotas = Quotas({"a": Quota(running_max=1), "*": Quota(running_max=5)})

    assert (quotas.of(A).running_max, quotas.of(B).running_max, Quotas().of(A).running_max) == (1, 5, 0)


def test_tenant_at_its_limit_is_full_and_others_are_not() -> None:
    shares = Shares(Quotas({"a": Quota(running_max=2)}), Topics(), {(A, "t", ""): 1, (B, "t", ""): 7})

    assert shares.has_room_for(job("a"))
    shares.take(job("a"))
    assert not shares.has_room_for(job("a", "another"))
    assert shares.has_room_for(job("b"))
    assert (shares.full_tenants, shares.full_topics, shares.full_keys) == ({A}, set(), set())


def test_topic_at_its_limit_is_full_for_all_tenants() -> None:
    topics = Topics((Topic(name="t.*", running_max=2),))
    shares = Shares(Quotas(), topics, {(A, "t.x", ""): 1, (B, "t.x", ""): 1})

    assert not shares.has_room_for(job("c", "t.x"))
    assert shares.has_room_for(job("c", "t.y"))
    assert shares.full_topics == {"t.x"}


def test_limit_of_a_rule_counts_all_that_have_its_key() -> None:
    shares = Shares(Quotas(), Topics(), {(A, "t", "k"): 1, (B, "u", "k"): 1})

    assert shares.has_room_for(job(key="k", limit=3))
    shares.take(job(key="k", limit=3))
    assert not shares.has_room_for(job(key="k", limit=3))
    assert shares.has_room_for(job(key="other", limit=1))
    assert shares.has_room_for(job())
    assert shares.full_keys == {"k"}


@pytest.mark.parametrize("decision", [None, {}, {"action": "allow"}])
def test_most_jobs_have_no_limit(decision: dict[str, Any] | None) -> None:
    assert limit_of(a_job(decision=decision)) is None


def test_negative_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Quota(running_max=-1)


def jobs_of(tenant: str, count: int, **values: Any) -> list[Job]:
    return [job(tenant, id=JobId(f"{tenant}{n}"), **values) for n in range(count)]


def test_tenant_with_many_old_jobs_does_not_go_first_each_time() -> None:
    """One place becomes free at a time, and the oldest job is always the same tenant's."""
    turns, many, few = Turns(), jobs_of("a", 100), jobs_of("b", 10)
    served: list[Tenant] = []
    for _ in range(20):
        chosen = next(turns.arrange([*many, *few]))
        turns.served([chosen])
        (many if chosen.tenant == A else few).remove(chosen)
        served.append(chosen.tenant)

    assert Counter(served) == {A: 10, B: 10}


def test_alone_a_tenant_is_served_by_priority() -> None:
    given = [*jobs_of("a", 2, priority=5), *jobs_of("a", 2)]

    assert list(Turns().arrange(given)) == given


def test_most_urgent_job_waits_for_one_other_at_most() -> None:
    turns, others = Turns(), jobs_of("b", 20)
    turns.served(jobs_of("a", 51))
    urgent = job("a", priority=50)
    arranged = list(turns.arrange([urgent, *others]))

    assert arranged.index(urgent) <= 1


def test_tenant_that_claims_the_highest_priority_gets_no_more_than_its_half() -> None:
    turns, served = Turns(), Counter[Tenant]()
    for _ in range(300):
        chosen = next(turns.arrange([*jobs_of("a", 50, priority=100), *jobs_of("b", 5), *jobs_of("c", 5)]))
        turns.served([chosen])
        served[chosen.tenant] += 1

    assert served == {A: 150, B: 75, Tenant("c"): 75}


def test_quiet_tenant_saves_nothing_up() -> None:
    turns = Turns()
    turns.served(turns.arrange(jobs_of("b", 1)))
    for _ in range(1000):
        turns.served(turns.arrange(jobs_of("a", 1)))
    arranged = list(turns.arrange([*jobs_of("a", 10), *jobs_of("b", 10)]))

    assert Counter(job.tenant for job in arranged[:10]) == {A: 5, B: 5}


def test_each_tenants_jobs_stay_in_their_order() -> None:
    given = [*jobs_of("a", 5), *jobs_of("b", 3)]
    arranged = list(Turns().arrange(given))

    assert sorted(arranged, key=given.index) == given
    for tenant in (A, B):
        assert [j.id for j in arranged if j.tenant == tenant] == [j.id for j in given if j.tenant == tenant]


@pytest.mark.parametrize("seed", range(20))
def test_backlogged_tenants_are_served_alike(seed: int) -> None:
    """However many jobs each has, and however many places become free at once."""
    chance = random.Random(seed)
    tenants = [Tenant(f"t{n}") for n in range(chance.randint(2, 12))]
    queues = [jobs_of(tenant, 40) for tenant in tenants]
    turns, served = Turns(), Counter[Tenant]()
    for _ in range(200):
        page = [job for queue in queues for job in queue[: chance.randint(5, 40)]]
        chance.shuffle(page)
        chosen = list(turns.arrange(page))[: chance.randint(1, 5)]
        turns.served(chosen)
        served.update(job.tenant for job in chosen)

    assert max(served.values()) - min(served[tenant] for tenant in tenants) <= 1
