"""What the plane's store on Redis refuses: servers that could not keep it, keys that are not its own, values, and URLs."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import servers

from holdfast.core.job import Tenant
from holdfast.core.topic import Topics
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Accepted, Submission
from holdfast.stores import open_store
from plane.jobs import ACME, a_job, sending, submitted
from plane.redis_namespaces import named, opened, raw, url  # noqa: F401


def submission(**changes: Any) -> Submission:
    return Submission(job=a_job(**changes), key=None, digest="")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_server_that_may_throw_jobs_away_is_refused(policy: str) -> None:
    server = servers.redis_server("--maxmemory-policy", policy).start()
    try:
        with pytest.raises(StoreUnavailable, match=f"{policy}.*set it to noeviction"):
            await open_store(server.url, topics=Topics(), runtime=SYSTEM).open()
    finally:
        server.remove()


async def test_full_server_refuses_a_write_as_a_whole(raw: redis.Redis) -> None:
    server = servers.redis_server().start()
    try:
        async with opened(server.url) as store:
            job = await submitted(store)
            with redis.Redis(port=server.port) as admin:
                admin.config_set("maxmemory", 1)
                with pytest.raises(StoreUnavailable, match="maxmemory") as caught:
                    await store.apply([sending(store, job)])
                assert caught.value.applied is False
                assert await store.get_job(ACME, job.id) == job
                admin.config_set("maxmemory", 0)
            assert await store.apply([sending(store, job)]) == [True]
    finally:
        server.remove()


@pytest.mark.parametrize("taken", ["tenant:acme", "ready", "payloads", "counts", "events", "hand:w1"])
async def test_key_that_another_program_has_taken_fails_a_write_as_a_whole(
    url: str, raw: redis.Redis, taken: str
) -> None:
    """A script that fails in the middle takes nothing back, and its next try would find the job, and acknowledge it."""
    async with opened(url) as store:
        job = await submitted(store)
        key, aside = named(url, taken), named(url, "aside")
        if raw.exists(key):
            raw.rename(key, aside)
        raw.set(key, "theirs")
        kept = {name: raw.dump(name) for name in raw.keys(named(url, "*"))}
        writing = store.apply([sending(store, job)]) if taken == "hand:w1" else submitted(store)
        with pytest.raises(StoreUnavailable, match=r"is a string.*namespace=NAME") as caught:
            await writing

        assert caught.value.applied is False
        assert {name: raw.dump(name) for name in raw.keys(named(url, "*"))} == kept
        raw.delete(key)
        if raw.exists(aside):
            raw.rename(aside, key)
        assert await store.apply([sending(store, job)]) == [True]


async def test_keys_of_a_newer_kind_are_refused(url: str, raw: redis.Redis) -> None:
    raw.hset(named(url, "settings"), mapping={"version": 9, "oldest": 9})

    with pytest.raises(StoreUnavailable, match="upgrade this process first"):
        await open_store(url, topics=Topics(), runtime=SYSTEM).open()


async def test_server_that_is_away_is_unavailable_and_its_password_is_not_shown() -> None:
    store = open_store(f"redis://ann:s3cret@127.0.0.1:{servers.free_port()}/0", topics=Topics(), runtime=SYSTEM)

    with pytest.raises(StoreUnavailable) as caught:
        await store.open()

    assert caught.value.applied is False
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:s3/cret@127.0.0.1:1/0",
        "redis://ann:s3cret@127.0.0.1:1/0?namespace={x}",
        "redis://ann:s3cret@127.0.0.1:1/0?sslmode=s3cret",
        "redis://ann:s3cret@127.0.0.1:x/0",
    ],
)
def test_url_that_cannot_be_used_is_not_repeated_in_the_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"percent-encoded|braces|option|port") as caught:
        open_store(url, topics=Topics(), runtime=SYSTEM)

    assert "s3" not in str(caught.value)


async def test_value_that_cannot_be_stored_fails_alone_and_is_not_repeated_in_the_error(url: str) -> None:
    async with opened(url) as store:
        good = submission()
        answers = await asyncio.gather(
            store.submit([submission(topic="s3cret\0")]),
            store.submit([good]),
            store.submit([submission(tenant=Tenant("s3cret\0"))]),
            store.submit([submission(priority=2**40)]),
            return_exceptions=True,
        )

    assert answers[1] == [Accepted(good.job, repeated=False)]
    for refused in (answers[0], *answers[2:]):
        assert isinstance(refused, HoldfastError)
        assert isinstance(refused, ValueError)
        assert "s3cret" not in str(refused)
