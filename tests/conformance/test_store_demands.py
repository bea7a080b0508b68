"""What `holdfast.ports.Store` promises about jobs that want labels of their worker: they hide nobody, however many they are."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import random
from collections.abc import Collection

from plane.jobs import ACME, OTHER, a_job, submitted
from plane.store_fixtures import clock, store, url  # noqa: F401

from holdfast.core.job import Job, Tenant
from holdfast.core.placement import REQUIRE, Labels, demand_of
from holdfast.ports import Submission
from holdfast.stores import StoreWithBus

GPU, EU = ("require.gpu", "a100"), ("require.zone", "eu = 1")
MANY = 1200
"""More than SQLite lets conditions be nested."""


async def submitted_many(store: StoreWithBus, *labels: dict[str, str], tenant: Tenant = ACME) -> list[Job]:
    jobs = [a_job(tenant=tenant, topic="a", labels=each, not_before=store.now()) for each in labels]
    await store.submit([Submission(job=job, key=None, digest="") for job in jobs])
    return jobs


def is_met(job: Job, by: Collection[Labels]) -> bool:
    wanted = set(demand_of(job).labels)
    return not wanted or any(wanted <= set(labels) for labels in by)


async def test_of_a_topic_only_those_are_listed_whose_demand_is_met(store: StoreWithBus) -> None:
    both = await submitted(store, topic="a", labels=dict([GPU, EU]))
    one = await submitted(store, topic="a", labels=dict([GPU, ("zone", "eu = 1")]))
    limited = await submitted(store, topic="a", labels=dict([EU]), decision={"concurrency": {"limit": 1, "key": "k"}})
    none = await submitted(store, topic="a", labels={"a": "require.gpu", "b": 'x"require.zone'})
    other = await submitted(store, topic="b", labels=dict([GPU]))

    async def left(*, keys: Collection[str] = (), **met_by: Collection[Labels]) -> list[Job]:
        return await store.list_dispatchable(limit=10, met_by=met_by, except_keys=keys)

    assert await left() == [both, one, limited, none, other]
    assert await left(a=[]) == await left(a=[()]) == [none, other]
    assert await left(a=[(GPU,)]) == [one, none, other]
    assert await left(a=[(GPU,), (EU,)]) == [one, limited, none, other], "each has one, and nobody has both"
    assert await left(a=[(EU,), (GPU, EU)], b=[(EU,)], c=[(GPU,)]) == [both, one, limited, none]
    assert await left(a=[(("require.gpu", "a1"),), (("gpu", "a100"),)], b=[(GPU,)]) == [none, other]
    assert await left(a=[(GPU, EU)], keys=["k"]) == [both, one, none, other]


async def test_those_behind_more_than_a_thousand_different_demands_are_found(store: StoreWithBus) -> None:
    await submitted_many(store, *({"require.host": f"gone{n}"} for n in range(MANY)))
    await submitted_many(
        store, *({"require.host": "h7", "require.zone": f"gone{n}"} for n in range(MANY)), tenant=OTHER
    )
    [plain, pinned] = await submitted_many(store, {"number": "1"}, {"require.host": "h7"})
    nothing: dict[str, Collection[Labels]] = {f"t{n}": [] for n in range(MANY)}
    met_by: dict[str, Collection[Labels]] = {
        "a": [(("require.host", f"h{n}"), ("require.zone", "eu")) for n in range(MANY)]
    }

    assert await store.list_dispatchable(limit=10, met_by={"a": []}) == [plain]
    assert await store.list_dispatchable(limit=10, met_by=met_by) == [plain, pinned]
    assert await store.list_dispatchable(limit=1, met_by=nothing | met_by) == [plain]


async def test_whether_a_demand_is_met_is_the_same_wherever_jobs_are_kept(store: StoreWithBus) -> None:
    chance = random.Random(7)
    names, values = ("gpu", "zone", 'z"o\\n', "größe"), ("", "1", "2", "a=b", "*", "null", 'q"\\', "ü")

    def drawn(prefix: str) -> dict[str, str]:
        return {f"{prefix}{name}": chance.choice(values) for name in chance.sample(names, chance.randint(0, 3))}

    jobs = await submitted_many(store, *(drawn(REQUIRE) | drawn("") for _ in range(300)))
    for size in (0, 1, 5, 50):
        by = [tuple(sorted(drawn(REQUIRE).items())) for _ in range(size)]

        found = await store.list_dispatchable(limit=1000, met_by={"a": by, "b": []})

        assert {job.id for job in found} == {job.id for job in jobs if is_met(job, by)}
