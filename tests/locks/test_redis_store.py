"""What is special to Redis: other locks on the same keys, what is left behind, restarts, lost replies."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio
import servers
from harness import SOON_S, eventually

from holdfast.locks.errors import StoreRefused, Unavailable
from holdfast.locks.port import Busy, Grant, Renewal, Standing
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from locks.redis_setup import LONG, A, B, C, blocking, client, dropping_replies, granted, granted_yet, opened

pytest_plugins = ["locks.redis_fixtures"]


async def test_lock_of_redis_py_excludes_ours(server: servers.Server, prefix: str) -> None:
    key = f"{prefix}k"
    async with opened(server.url, prefix) as store, redis.asyncio.from_url(server.url) as theirs:
        lock = theirs.lock(key, timeout=20)
        assert await lock.acquire()

        busy = await store.acquire(key, A, ttl_ms=LONG)

        assert isinstance(busy, Busy)
        assert busy.holder == "foreign"
        assert 0 < busy.remaining_ms <= 20_000
        assert await store.renew([Renewal(key, A, LONG)]) == [Standing.TAKEN]
        assert not await store.release(key, A)
        await lock.release()
        await granted(store, key, A)


async def test_our_lock_excludes_that_of_redis_py(server: servers.Server, prefix: str) -> None:
    key = f"{prefix}k"
    async with opened(server.url, prefix) as store, redis.asyncio.from_url(server.url) as theirs:
        await granted(store, key, A)
        assert not await theirs.lock(key, timeout=20).acquire(blocking=False)

        await store.release(key, A)

        assert await theirs.lock(key, timeout=20).acquire(blocking=False)


async def test_foreign_lock_is_shown_and_can_be_evicted(server: servers.Server, prefix: str) -> None:
    key = f"{prefix}k"
    with client(server) as theirs:
        assert theirs.lock(key).acquire()  # never expires
    async with opened(server.url, prefix) as store:
        holder = await store.find_holder(key)
        assert holder is not None
        assert (holder.fence, holder.holder) == (0, "foreign")
        assert holder.remaining_ms > 24 * 3600 * 1000

        assert await store.evict(key, 0, reason="left over")

        await granted(store, key, A)


async def test_key_of_another_type_is_held_and_spoils_nobody_elses_answer(server: servers.Server, prefix: str) -> None:
    with client(server) as theirs:
        theirs.hset(f"{prefix}hash", "redisson", 1)
    async with opened(server.url, prefix) as store:
        replies = await asyncio.gather(
            store.acquire(f"{prefix}hash", A, ttl_ms=LONG), store.acquire(f"{prefix}free", A, ttl_ms=LONG)
        )

    assert isinstance(replies[0], Busy)
    assert isinstance(replies[1], Grant)


async def test_operators_can_read_a_lock_with_get_and_pttl(server: servers.Server, prefix: str) -> None:
    async with opened(server.url, prefix, holder="db-7:4242") as store:
        fence = await granted(store, f"{prefix}k", A)
        with client(server) as theirs:
            assert theirs.get(f"{prefix}k") == f"{A}:{fence}:db-7:4242"
            assert LONG - 5000 < theirs.pttl(f"{prefix}k") <= LONG
        held = await store.find_holder(f"{prefix}k")

    assert held is not None
    assert held.holder == "db-7:4242"


# -- what is left behind ---------------------------------------------------------------------------


async def test_released_locks_leave_only_the_fence_and_the_history(server: servers.Server, prefix: str) -> None:
    async with opened(server.url, prefix) as store:
        for n in range(20):
            await granted(store, f"{prefix}k{n}", A)
            await store.acquire(f"{prefix}k{n}", B, ttl_ms=LONG, queue_ms=5000)
            await store.release(f"{prefix}k{n}", A)
            await store.release(f"{prefix}k{n}", B)

    with client(server) as theirs:
        assert sorted(theirs.keys(f"*{prefix}*")) == [f"{prefix}fence", f"{prefix}history"]


async def test_abandoned_queue_expires(server: servers.Server, prefix: str) -> None:
    async with opened(server.url, prefix) as store:
        await granted(store, f"{prefix}k", A)
        await store.acquire(f"{prefix}k", B, ttl_ms=LONG, queue_ms=5000)
        await store.acquire(f"{prefix}k", C, ttl_ms=LONG, queue_ms=100)

    with client(server) as theirs:
        for name in ("queue", "waiters"):
            assert 5000 < theirs.pttl(f"{{{prefix}k}}:{name}") <= 6000


# -- many in one run -------------------------------------------------------------------------------


async def test_items_of_one_run_see_what_those_before_them_did(server: servers.Server, prefix: str) -> None:
    key = f"{prefix}k"
    async with opened(server.url, prefix) as store:
        first = await granted(store, key, A)

        released, second, again, busy, gone, left = await asyncio.gather(
            store.release(key, A),
            store.acquire(key, B, ttl_ms=LONG),
            store.acquire(key, B, ttl_ms=LONG),
            store.acquire(key, C, ttl_ms=LONG, queue_ms=5000),
            store.release(key, A),
            store.release(key, B),
        )
        third = await granted(store, key, C)
        history = await store.list_history(key)

    assert (released, gone, left) == (True, False, True)
    assert isinstance(second, Grant)
    assert again == second
    assert isinstance(busy, Busy)
    assert first < second.fence < third
    assert [(line.event, line.fence) for line in history] == [
        ("granted", first),
        ("released", first),
        ("granted", second.fence),
        ("released", second.fence),
        ("granted", third),
    ]


async def test_counter_ahead_of_the_clock_is_only_ever_raised(server: servers.Server, prefix: str) -> None:
    ahead = SYSTEM.wall_us() + 3600 * 1_000_000
    async with opened(server.url, prefix) as store:
        with client(server) as theirs:
            theirs.set(f"{prefix}fence", ahead)
            one = await granted(store, f"{prefix}one", A)
            assert int(theirs.get(f"{prefix}fence")) == one == ahead + 1
            many = await asyncio.gather(*(granted(store, f"{prefix}{n}", A, fences=64) for n in range(60)))
            assert many == [one + 1 + 64 * n for n in range(60)]
            assert int(theirs.get(f"{prefix}fence")) == many[-1] + 63


# -- errors ----------------------------------------------------------------------------------------


async def test_script_flush_is_not_noticed(server: servers.Server, prefix: str) -> None:
    async with opened(server.url, prefix) as store:
        with client(server) as theirs:
            theirs.script_flush()
        fences = await asyncio.gather(*(granted(store, f"{prefix}k{n}", A) for n in range(250)))
        with client(server) as theirs:
            theirs.script_flush()
        assert await store.renew([Renewal(f"{prefix}k7", A, LONG)]) == [Standing.OWNED]

    assert len(set(fences)) == 250


async def test_killed_server_gives_typed_errors_at_once_and_then_works_again(
    own_server: servers.Server, prefix: str
) -> None:
    key = f"{prefix}k"
    async with opened(own_server.url, prefix) as store:
        before = await granted(store, key, A)
        own_server.pause()
        in_flight = asyncio.ensure_future(store.acquire(key, A, ttl_ms=LONG))
        await asyncio.sleep(0.01)
        own_server.kill()
        with pytest.raises(Unavailable) as unknown:
            await in_flight
        assert unknown.value.applied is None
        replies = await asyncio.gather(
            *(store.acquire(f"{key}{n}", A, ttl_ms=LONG) for n in range(500)), return_exceptions=True
        )
        assert all(isinstance(r, Unavailable) and r.applied is False for r in replies)

        own_server.start()

        async def works() -> bool:
            try:
                return isinstance(await store.acquire(key, B, ttl_ms=LONG), Grant)
            except Unavailable:
                return False

        await eventually(works)
        # The server came back without its data: only its clock keeps the fences growing.
        assert await granted(store, key, B) > before


async def test_server_that_hangs_is_given_up_in_time(own_server: servers.Server, prefix: str) -> None:
    loop = asyncio.get_running_loop()
    async with opened(own_server.url, prefix, timeout_s=0.5) as store:
        own_server.pause()
        began = loop.time()
        replies = await asyncio.gather(*(store.release(f"{prefix}{n}", A) for n in range(3)), return_exceptions=True)
        # The old connection is gone; the kernel accepts another, which nobody answers.
        late = await asyncio.gather(store.release(f"{prefix}k", A), return_exceptions=True)
        took = loop.time() - began
        own_server.resume()

        assert all(isinstance(r, Unavailable) and r.applied is None for r in replies)
        assert isinstance(late[0], Unavailable)
        assert late[0].applied is False
        assert 0.5 <= took < SOON_S
        await eventually(lambda: granted_yet(store, f"{prefix}k"))


async def test_lost_reply_is_unknown_and_the_repeat_gets_the_same_grant(server: servers.Server, prefix: str) -> None:
    async with dropping_replies(server.port) as (port, replies_left):
        async with opened(f"redis://127.0.0.1:{port}", prefix) as store, opened(server.url, prefix) as direct:
            replies_left.clear()
            with pytest.raises(Unavailable) as lost:
                await store.acquire(f"{prefix}k", A, ttl_ms=LONG)
            holder = await direct.find_holder(f"{prefix}k")
            replies_left.set()

            again = await granted(store, f"{prefix}k", A)

    assert lost.value.applied is None
    assert holder is not None
    assert again == holder.fence


async def test_wrong_password_is_refused_without_showing_it(prefix: str) -> None:
    locked = servers.redis_server("--requirepass", "s3cret-right")
    locked.ready = lambda server: servers._exchange(server.port, b"PING\r\n").startswith(b"-NOAUTH")
    locked.start()
    try:
        for login, hint in (("", "password"), (":s3cret-wrong@", "password"), ("nobody:s3cret-wrong@", "password")):
            url = f"redis://{login}127.0.0.1:{locked.port}/0"
            with pytest.raises(StoreRefused) as refused:
                async with opened(url, prefix):
                    pass
            with blocking(url, prefix) as store, pytest.raises(StoreRefused) as refused_sync:
                store.acquire(f"{prefix}k", A, ttl_ms=LONG)
            for error in (refused.value, refused_sync.value):
                assert hint in error.next_step
                assert "s3cret" not in f"{error!r} {error}"
        async with opened(f"redis://:s3cret-right@127.0.0.1:{locked.port}/3", prefix) as store:
            await granted(store, f"{prefix}k", A)
    finally:
        locked.remove()


async def test_server_without_memory_refuses_new_locks_and_still_releases(
    own_server: servers.Server, prefix: str
) -> None:
    async with opened(own_server.url, prefix) as store:
        await granted(store, f"{prefix}old", A)
        with client(own_server) as theirs:
            theirs.config_set("maxmemory", 1)
        new, waiter, old = await asyncio.gather(
            store.acquire(f"{prefix}new", A, ttl_ms=LONG),
            store.acquire(f"{prefix}old", B, ttl_ms=LONG, queue_ms=5000),
            store.release(f"{prefix}old", A),
            return_exceptions=True,
        )

    assert isinstance(new, StoreRefused)
    assert "maxmemory" in new.next_step
    assert isinstance(waiter, StoreRefused)
    assert old is True


async def test_unix_socket_serves_as_well(prefix: str) -> None:
    server = servers.redis_server()
    path = server.directory / "socket"
    server.command = [*server.command, "--unixsocket", str(path)]
    server.start()
    try:
        async with opened(f"unix://{path}?db=2", prefix) as store:
            await granted(store, f"{prefix}k", A)
        with blocking(f"unix://{path}?db=2", prefix) as threads:
            assert isinstance(threads.acquire(f"{prefix}k", B, ttl_ms=LONG), Busy)
    finally:
        server.remove()


async def test_bad_urls_and_arguments_are_value_errors(server: servers.Server, prefix: str) -> None:
    for url in (
        "redis://h/notadb",
        "redis://h/0?no_such=1",
        "redis+sentinel://h:1",
        "redis://[::1:6379",
        "redis+cluster://h/1",
    ):
        with pytest.raises(ValueError, match=r".") as error:
            open_store(url.replace("://", "://u:s3cret@"), holder="h", prefix=prefix, runtime=SYSTEM)
        assert "s3cret" not in str(error.value)
    async with opened(server.url, prefix) as store:
        for options in (
            {"ttl_ms": 0},
            {"ttl_ms": 1, "queue_ms": -1},
            {"ttl_ms": 1, "fences": 0},
            {"ttl_ms": 1, "fences": 65},
        ):
            with pytest.raises(ValueError, match="out of range"):
                store.acquire(f"{prefix}k", A, **options)


async def test_user_who_may_not_do_all_that_a_lock_takes_is_told_what_to_allow(
    own_server: servers.Server, prefix: str
) -> None:
    allowed = ["+@connection", "+@read", "+@write", "+@scripting", "+@pubsub", "+info", "+time"]
    url = f"redis://app:s3cret@127.0.0.1:{own_server.port}/0"
    with client(own_server) as theirs:
        theirs.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", f"~{prefix}*", f"&{prefix}*", *allowed)
        async with opened(url, prefix) as store:
            with pytest.raises(Unavailable, match=r"~\{PREFIX\*") as no_queue:
                await store.acquire(f"{prefix}k", A, ttl_ms=LONG)
            theirs.execute_command("ACL", "SETUSER", "app", f"~{{{prefix}*", "-xadd")
            with pytest.raises(Unavailable, match="xadd") as no_history:
                await store.acquire(f"{prefix}k", A, ttl_ms=LONG)
            theirs.execute_command("ACL", "SETUSER", "app", "+xadd")

            assert (no_queue.value.applied, no_history.value.applied) == (None, None)
            assert await granted(store, f"{prefix}k", A)


async def test_user_without_a_channel_waits_by_polling_and_spoils_nobodys_answer(
    own_server: servers.Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis 7 gives a new user no channels, whatever commands it may use."""
    with client(own_server) as theirs:
        theirs.acl_setuser("app", enabled=True, passwords=["+s3cret"], keys=["*"], categories=["+@all"])
    url = f"redis://app:s3cret@127.0.0.1:{own_server.port}/0"
    free = [f"{prefix}{n}" for n in range(3)]
    async with opened(url, prefix) as store, opened(url, prefix) as other:
        await granted(other, f"{prefix}k", A)

        waiter, *grants = await asyncio.gather(
            store.acquire(f"{prefix}k", B, ttl_ms=LONG, queue_ms=5000),
            *(store.acquire(key, C, ttl_ms=LONG) for key in free),
        )
        handed_over, *released = await asyncio.gather(
            other.release(f"{prefix}k", A), *(other.release(key, C) for key in free)
        )

        assert isinstance(waiter, Busy)
        assert len(set(grants)) == len(free)
        assert [handed_over, *released] == [True] * 4
        assert await granted(store, f"{prefix}k", B) > max(grant.fence for grant in grants if isinstance(grant, Grant))
        for key in free:
            assert await granted(other, key, B)
    assert "channel" in caplog.text
    assert "s3cret" not in caplog.text
