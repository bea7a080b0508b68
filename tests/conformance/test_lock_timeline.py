"""What a `LockStore` tells of leases that have ended, where there are many, once, for every store."""

from __future__ import annotations

import asyncio

from harness import Backend

from holdfast.locks.port import Grant, LockStore

A = "a" * 32
LONG = 60_000


async def test_history_tells_of_each_lease_that_ended_together_with_others(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n:02d}") for n in range(30)]
    fences: dict[str, list[int]] = {key: [] for key in keys}
    for _ in range(3):  # the second time on, the locks are known and free
        for key, grant in zip(
            keys, await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys)), strict=True
        ):
            assert isinstance(grant, Grant)
            fences[key].append(grant.fence)
        assert all(await asyncio.gather(*(store.release(key, A) for key in keys)))

    for key in keys:
        lines = await store.list_history(key)
        assert [line.event for line in lines] == ["granted", "released"] * 3
        assert [line.fence for line in lines] == [fence for fence in fences[key] for _ in range(2)]
        assert {(line.key, line.holder) for line in lines} == {(key, "test-holder")}
        assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert await store.list_history(keys[3], limit=3) == (await store.list_history(keys[3]))[-3:]
