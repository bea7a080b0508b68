"""What `holdfast.locks.guards.redis` promises, through redis-py's blocking and asyncio clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import servers
from fenced_lease import Lease
from guarding import settled
from harness import make_backend

from holdfast.locks.errors import LeaseLost, StaleFence, Unavailable
from holdfast.locks.fence import Mark
from holdfast.locks.guards import guard
from holdfast.locks.guards.redis import ANSWER_BYTES_MAX, ARGUMENTS_MAX, mark_key


@dataclass
class Redis:
    """A client under test; `call` and `enter` wait if the client is asynchronous."""

    client: Any
    prefix: str

    @property
    def resource(self) -> str:
        return f"{self.prefix}accounts/42"

    @property
    def balance(self) -> str:
        return f"{{{self.resource}}}:balance"

    def guard(self, lease: Lease, **options: Any) -> Any:
        return guard(lease, self.client, self.resource, **options)

    async def enter(self, lease: Lease, **options: Any) -> Any:
        held = self.guard(lease, **options)
        if hasattr(held, "__aenter__"):
            async with held as r:
                return r
        with held as r:
            return r

    async def call(self, held: Any, *command: Any, **options: Any) -> Any:
        return await settled(held.call(*command, **options))

    async def read(self) -> int:
        return int(await settled(self.client.get(self.balance)) or 0)


KINDS = ["redis", "redis-asyncio", "redis-decoded", "cluster", "cluster-asyncio"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[servers.Server]:
    """One node with every slot: it refuses what spans slots like a large cluster."""
    options = ("--cluster-enabled", "yes", "--cluster-port", str(servers.free_port()))
    server = servers.redis_server(*options).start()
    try:
        with redis.Redis(port=server.port) as node:
            node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            deadline = time.monotonic() + 10
            while node.cluster("INFO")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
        yield server
    finally:
        server.remove()


@pytest.fixture(params=KINDS)
async def r(
    request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path
) -> AsyncIterator[Redis]:
    backend = make_backend("redis", running, tmp_path)
    kind = request.param
    if kind.startswith("cluster"):
        port = request.getfixturevalue("cluster").port
        made: Any = (redis.asyncio.RedisCluster if "asyncio" in kind else redis.RedisCluster)("127.0.0.1", port)
    elif kind == "redis-asyncio":
        made = redis.asyncio.Redis.from_url(backend.url)
    else:
        made = redis.Redis.from_url(backend.url, decode_responses=kind == "redis-decoded")
    yield Redis(made, backend.prefix)
    await settled(made.aclose() if hasattr(made, "aclose") else made.close())


async def test_holder_calls_and_calls_again(r: Redis) -> None:
    held = await r.enter(Lease(10))

    assert await r.call(held, "INCRBY", r.balance, 5) == 5
    assert await r.call(held, "INCRBY", r.balance, 5) == 10
    assert int(await r.call(held, "GET", r.balance)) == 10
    assert held.mark == Mark(10, 4)


async def test_example_of_the_design_works(r: Redis) -> None:
    if hasattr(r.client, "aclose"):
        async with guard(Lease(10), r.client, r.resource) as held:
            await held.call("HSET", f"{{{r.resource}}}:h", "a", 1)
    else:
        with guard(Lease(10), r.client, r.resource) as held:
            held.call("HSET", f"{{{r.resource}}}:h", "a", 1)

    assert await settled(r.client.hget(f"{{{r.resource}}}:h", "a")) in (b"1", "1")


async def test_older_holder_is_refused_although_the_newer_one_has_only_entered(r: Redis) -> None:
    older = await r.enter(Lease(10))
    await r.call(older, "INCRBY", r.balance, 1)
    await r.enter(Lease(11))

    with pytest.raises(StaleFence) as refused:
        await r.call(older, "INCRBY", r.balance, 100)
    with pytest.raises(StaleFence):
        await r.call(older, "GET", r.balance)
    with pytest.raises(StaleFence):
        await r.enter(Lease(10))

    assert refused.value.current == (11, 1)
    assert refused.value.offered == (10, 3)
    assert await r.read() == 1


async def test_holders_own_delayed_call_is_refused(r: Redis) -> None:
    lease = Lease(10)
    held = await r.enter(lease)
    delayed = lease.next_seq()
    await r.call(held, "INCRBY", r.balance, 1)

    with pytest.raises(StaleFence):
        await r.call(held, "INCRBY", r.balance, 100, seq=delayed)

    assert await r.read() == 1


async def test_repeat_of_the_last_call_gives_its_reply_and_writes_nothing(r: Redis) -> None:
    held = await r.enter(Lease(10))
    commands: list[tuple[Any, ...]] = [
        ("INCRBY", r.balance, 7),
        ("SET", f"{{{r.resource}}}:s", b"\x00\xffraw" if not r.client.get_encoder().decode_responses else "plain"),
        ("GET", f"{{{r.resource}}}:s"),
        ("GET", f"{{{r.resource}}}:missing"),
        ("RPUSH", f"{{{r.resource}}}:l", "a", "b"),
        ("LRANGE", f"{{{r.resource}}}:l", 0, -1),
        ("LRANGE", f"{{{r.resource}}}:none", 0, -1),
        ("HMGET", f"{{{r.resource}}}:h", "x", "y"),
    ]
    for command in commands:
        first = await r.call(held, *command)
        again = await r.call(held, *command, seq=held.mark.seq)

        assert first == again, command
    assert await r.read() == 7


async def test_call_that_was_never_run_is_run_by_its_repeat(r: Redis) -> None:
    lease = Lease(10)
    held = await r.enter(lease)
    unsent = lease.next_seq()

    assert await r.call(held, "INCRBY", r.balance, 1, seq=unsent) == 1


async def test_reply_too_large_to_keep_is_said_to_be_applied(r: Redis) -> None:
    held = await r.enter(Lease(10))
    big = "x" * (ANSWER_BYTES_MAX + 1)
    await r.call(held, "SET", r.balance, big)
    await r.call(held, "GET", r.balance)

    with pytest.raises(Unavailable) as unknown:
        await r.call(held, "GET", r.balance, seq=held.mark.seq)

    assert unknown.value.applied is True


async def test_failing_command_raises_and_leaves_the_mark(r: Redis) -> None:
    held = await r.enter(Lease(10))
    reply = await r.call(held, "SET", r.balance, "1")
    before = held.mark

    with pytest.raises(redis.ResponseError):
        await r.call(held, "LPUSH", r.balance, "x")
    failed = held.mark

    assert await r.call(held, "SET", r.balance, "1", seq=before.seq) == reply
    assert await r.call(held, "INCRBY", r.balance, 1, seq=failed.seq) == 2


async def test_command_of_too_many_arguments_is_not_sent(r: Redis) -> None:
    held = await r.enter(Lease(10))
    items = f"{{{r.resource}}}:items"
    most = range(ARGUMENTS_MAX - len(["RPUSH", items]))
    before = held.mark

    with pytest.raises(ValueError, match=f"at most {ARGUMENTS_MAX}"):
        await r.call(held, "RPUSH", items, "one more", *most)

    assert held.mark == before
    assert await r.call(held, "RPUSH", items, *most) == len(most)


async def test_command_that_lua_cannot_pass_on_leaves_the_mark(r: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.locks.guards.redis.ARGUMENTS_MAX", 10_000)  # this server takes fewer than we think
    held = await r.enter(Lease(10))
    reply = await r.call(held, "INCRBY", r.balance, 5)
    before = held.mark

    with pytest.raises(redis.ResponseError, match="too many"):
        await r.call(held, "RPUSH", f"{{{r.resource}}}:items", *range(8_100))
    refused = held.mark

    assert await r.call(held, "INCRBY", r.balance, 5, seq=before.seq) == reply
    assert await r.call(held, "INCRBY", r.balance, 1, seq=refused.seq) == 6


async def test_command_that_memory_does_not_suffice_for_changes_nothing() -> None:
    server = servers.redis_server().start()
    try:
        with redis.Redis(port=server.port) as client:
            full = Redis(client, "")
            held = await full.enter(Lease(10))
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.OutOfMemoryError):
                await full.call(held, "INCRBY", full.balance, 1)
            client.config_set("maxmemory", 0)

            assert await full.call(held, "INCRBY", full.balance, 1, seq=held.mark.seq) == 1
    finally:
        server.remove()


async def test_once_per_fence_admits_one_guard_of_each_holder(r: Redis) -> None:
    lease = Lease(10)
    held = await r.enter(lease, once_per_fence=True)
    await r.call(held, "INCRBY", r.balance, 1)

    with pytest.raises(StaleFence):
        await r.enter(lease, once_per_fence=True)
    newer = await r.enter(Lease(11), once_per_fence=True)
    await r.call(newer, "INCRBY", r.balance, 10)

    assert await r.read() == 11


async def test_lost_lease_sends_nothing(r: Redis) -> None:
    lease = Lease(10)
    held = await r.enter(lease)
    lease.lost = True

    with pytest.raises(LeaseLost):
        await r.call(held, "INCRBY", r.balance, 1)
    with pytest.raises(LeaseLost):
        await r.enter(Lease(11, lost=True))

    assert await r.read() == 0


async def test_fences_as_large_as_microseconds_are_told_apart(r: Redis) -> None:
    fence = 4_102_444_800_000_000  # the year 2100
    older = await r.enter(Lease(fence))
    newer = await r.enter(Lease(fence + 1))

    with pytest.raises(StaleFence) as refused:
        await r.call(older, "INCRBY", r.balance, 1)

    assert refused.value.current == (fence + 1, 1)
    assert await r.call(newer, "INCRBY", r.balance, 1) == 1


async def test_unfit_arguments_are_refused(r: Redis) -> None:
    with pytest.raises(ValueError, match="without a fence"):
        r.guard(Lease(0))
    with pytest.raises(ValueError, match="NUL"):
        guard(Lease(10), r.client, "accounts/42\0x")
    with pytest.raises(ValueError, match="call"):
        r.guard(Lease(10), seq=1)
    with pytest.raises(TypeError, match="Pipeline"):
        guard(Lease(10), r.client.pipeline(), r.resource)
    with pytest.raises(ValueError, match="command"):
        await r.call(await r.enter(Lease(10)))


async def test_mark_survives_scripts_being_flushed(r: Redis) -> None:
    held = await r.enter(Lease(10))
    await settled(r.client.script_flush())

    assert await r.call(held, "INCRBY", r.balance, 1) == 1


async def test_calls_of_one_guard_keep_their_order(r: Redis) -> None:
    held = await r.enter(Lease(10))
    if hasattr(held, "__aenter__"):
        replies = await asyncio.gather(*(held.call("INCRBY", r.balance, 1) for _ in range(20)))
    else:
        replies = await asyncio.gather(*(asyncio.to_thread(held.call, "INCRBY", r.balance, 1) for _ in range(20)))

    assert sorted(replies) == list(range(1, 21))


def test_mark_is_in_the_slot_of_the_keys_that_share_the_tag() -> None:
    assert mark_key("accounts/42") == "holdfast:fence:{accounts/42}"
    assert mark_key("cart:{42}") == "holdfast:fence::cart:{42}"
    assert mark_key("{42}") != mark_key("42")
