"""The plane on a Redis Cluster that moves its slot: for a while its keys are in two places, and some commands are turned away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import servers
from locks.redis_moving import Slot, moving
from locks.redis_setup import client

from holdfast.core.job import Job, amend
from holdfast.errors import StoreUnavailable
from holdfast.locks.stores.redis.cluster import slot_of
from holdfast.ports import Change
from plane.jobs import submitted
from plane.redis_namespaces import named, opened

pytest_plugins = ["locks.redis_fixtures"]

_namespaces = (f"m{n}" for n in count() if slot_of(f"{{m{n}}}") < 8192)


@pytest.fixture
def url(cluster: list[servers.Server]) -> str:
    """Of a plane that begins on the first server."""
    return f"redis+cluster://127.0.0.1:{cluster[0].port}?namespace={next(_namespaces)}"


@contextmanager
def slot_of_plane(cluster: list[servers.Server], url: str) -> Iterator[Slot]:
    with moving(cluster, named(url, "")) as slot:
        yield slot


async def test_write_is_not_begun_while_the_slot_is_on_its_way(cluster: list[servers.Server], url: str) -> None:
    """All that the script names is there, and something that it changes is not: it would be stopped half-way."""
    async with opened(url, timeout_s=1.0) as store:
        await submitted(store, session="s")
        job = await submitted(store)
        with client(cluster[0]) as raw, slot_of_plane(cluster, url) as slot:
            plane_id, _, _ = str(raw.get(named(url, "head"))).partition(":")
            raw.set(named(url, "turn"), plane_id)
            slot.begin()
            slot.carry(named(url, f"history:{job.id}"))
            change = asking_to_cancel(job)
            with pytest.raises(StoreUnavailable) as caught:
                await store.apply([change])
            slot.carry_all()
            slot.finish()

        assert caught.value.applied is False
        assert [event.kind for event in await store.list_events(after=2, limit=10)] == []
        assert await store.apply([change]) == [True]
        assert [event.kind for event in await store.list_events(after=2, limit=10)] == ["job.cancel_requested"]


def asking_to_cancel(job: Job) -> Change:
    return Change(before=job, after=amend(job, cancel_requested=True), kind="job.cancel_requested")
