"""How many items share a run on Redis, and answers that are longer than the buffer they are read into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import servers

from holdfast.locks.port import Grant
from holdfast.locks.stores.redis.connection import BUFFER_BYTES, Connection, Run
from holdfast.locks.stores.redis.store import PER_RUN_MAX, PER_RUN_MIN
from locks.redis_setup import LONG, A, opened

pytest_plugins = ["locks.redis_fixtures"]


@pytest.mark.parametrize(("tasks", "half"), [(4, 4), (30, 15), (60, 30), (400, PER_RUN_MAX)])
async def test_half_of_a_crowd_goes_out_at_a_time(
    server: servers.Server, prefix: str, tasks: int, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = Connection.run

    def counted(connection: Connection, runs: Sequence[Run], *, load: bool = False) -> None:
        sent.extend(len(run.keys) for run in runs)
        send(connection, runs, load=load)

    monkeypatch.setattr(Connection, "run", counted)
    keys = [f"{prefix}{n}" for n in range(tasks)]
    async with opened(server.url, prefix) as store:
        grants = await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys))
        assert all(isinstance(grant, Grant) for grant in grants)
        assert all(await asyncio.gather(*(store.release(key, A) for key in keys)))

    assert sent[0] == min(tasks, PER_RUN_MIN), "nobody knows yet how many there are"
    assert max(sent) == half


async def test_answer_that_is_longer_than_the_buffer_is_read_whole(server: servers.Server, prefix: str) -> None:
    keys = [f"{prefix}{n:04d}{'x' * 400}" for n in range(300)]
    assert len("".join(keys)) > BUFFER_BYTES
    async with opened(server.url, prefix) as store:
        await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys))

        assert [holder.key for holder in await store.list_holders(prefix, limit=300)] == keys
