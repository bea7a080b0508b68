"""Redis with TLS and a password: the plane's store and the locks, in a loop and in threads; and no password is ever shown.

The server that the tests bring along is built without TLS (`valkey-server --tls-port` says so), so a door in front of it
speaks it (`tls_door`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
import redis
import servers
from tls_door import MAKERS, certified, tls_door

from holdfast.errors import StoreUnavailable
from holdfast.locks import LockClass, Locks, StoreRefused, SyncLocks, Unavailable, stores
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores.redis.store import open_blocking_store
from plane.jobs import sending, submitted
from plane.redis_namespaces import opened

SECRET = "s3cret-w0rd"
LOCK = LockClass("payout", ttl=10)

COMMANDS = ("+@connection", "+@read", "+@write", "+@scripting", "+@pubsub", "+info", "+time")
"""As docs/how-to/run-on-redis.md says."""

Use: TypeAlias = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    server = servers.redis_server("--requirepass", SECRET)
    server.ready = lambda server: servers._exchange(server.port, b"PING\r\n").startswith(b"-NOAUTH")
    yield server.start()
    server.remove()


@pytest.fixture
async def door(server: servers.Server, tmp_path: Path) -> AsyncIterator[int]:
    """The port at which the server is reached over TLS."""
    async with tls_door(server.port, certified(tmp_path, "right")) as port:
        yield port


def url_of(port: int, password: str, ca: Path) -> str:
    return f"rediss://:{password}@127.0.0.1:{port}/0?ssl_ca_certs={ca}"


async def use_store(url: str) -> None:
    async with opened(f"{url}&namespace=access") as store:
        job = await submitted(store)
        assert [found.id for found in await store.find_jobs([job.id]) if found] == [job.id]


async def use_locks(url: str) -> None:
    async with Locks(url) as locks, locks.hold(LOCK, "k") as lease:
        assert lease.fence > 0


async def use_locks_in_a_thread(url: str) -> None:
    def hold() -> None:
        with SyncLocks(url) as locks, locks.hold(LOCK, "k") as lease:
            assert lease.fence > 0

    await asyncio.to_thread(hold)


every_use = pytest.mark.parametrize("use", [use_store, use_locks, use_locks_in_a_thread])


@every_use
async def test_tls_is_spoken_with_an_authority_of_ones_own(door: int, tmp_path: Path, use: Use) -> None:
    await use(url_of(door, SECRET, tmp_path / "right.pem"))


@pytest.mark.parametrize(
    ("password", "ca", "why"),
    [(SECRET, "other", "ssl_ca_certs=FILE"), ("wr0ng-w0rd", "right", "Check user and password")],
    ids=["nobody vouches for its certificate", "wrong password"],
)
@every_use
async def test_what_does_not_fit_is_refused_with_the_next_step_and_without_the_password(
    door: int,
    tmp_path: Path,
    use: Use,
    password: str,
    ca: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certified(tmp_path, "other")
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreUnavailable, StoreRefused), match=why) as refused:
        await use(url_of(door, password, tmp_path / f"{ca}.pem"))

    assert password not in f"{refused.value!r} {refused.value} {caplog.text}"


@pytest.mark.parametrize(("kind", "step"), MAKERS)
@every_use
async def test_certificate_that_no_authority_could_mend_is_told_with_what_does(
    server: servers.Server, tmp_path: Path, use: Use, kind: str, step: str
) -> None:
    certificate = MAKERS[kind, step](tmp_path, "right")
    async with tls_door(server.port, certificate) as port:
        with pytest.raises((StoreUnavailable, StoreRefused), match=step) as refused:
            await use(url_of(port, SECRET, certificate))

    assert "ssl_ca_certs" not in str(refused.value)


async def open_plane_store(url: str) -> None:
    async with opened(f"{url}&namespace=access", timeout_s=1):
        pass


async def open_lock_store(url: str) -> None:
    store = stores.open_store(url, holder="host:1", prefix="access:", runtime=SYSTEM, timeout_s=1)
    try:
        await store.open()
    finally:
        await store.close()


async def ask_in_a_thread(url: str) -> None:
    with closing(open_blocking_store(url, holder="host:1", prefix="access:", runtime=SYSTEM, timeout_s=1)) as store:
        await asyncio.to_thread(store.release, "access:k", "a" * 32)


async def open_lock_store_with_sentinels(url: str) -> None:
    await open_lock_store(url.replace("://", "+sentinel://").replace("/0", "/payments"))


@pytest.mark.parametrize("use", [open_plane_store, open_lock_store, ask_in_a_thread, open_lock_store_with_sentinels])
async def test_tls_that_only_one_side_speaks_is_told_with_the_next_step(
    server: servers.Server, door: int, use: Use
) -> None:
    """A server hangs up on who does not speak it, or waits for the rest of what it takes for a command."""
    for scheme, port, step in [
        ("redis", door, r"write rediss\S*://"),
        ("rediss", server.port, r"write redis(\+\S*)?://"),
    ]:
        with pytest.raises((StoreUnavailable, Unavailable), match=step) as failed:
            await use(f"{scheme}://:{SECRET}@127.0.0.1:{port}/0?username=app")

        assert SECRET not in str(failed.value)


async def test_nobody_at_the_port_has_nothing_to_do_with_tls() -> None:
    with pytest.raises(Unavailable, match="cannot connect") as failed:
        await use_locks(f"redis://127.0.0.1:{servers.free_port()}/0")
    assert "TLS" not in str(failed.value)


@pytest.fixture
def admin(server: servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, password=SECRET) as admin:
        yield admin
        admin.acl_deluser("app")


def allow(admin: redis.Redis, *rights: str) -> None:
    admin.execute_command("ACL", "SETUSER", "app", *rights)  # type: ignore[no-untyped-call]


def url_of_app(admin: redis.Redis, server: servers.Server, *rights: str) -> str:
    """Of a user who has these and no others."""
    allow(admin, "reset", "on", f">{SECRET}", *rights)
    return f"redis://app:{SECRET}@127.0.0.1:{server.port}/0?namespace=rights"


async def test_rights_that_the_documentation_names_are_enough(server: servers.Server, admin: redis.Redis) -> None:
    url = url_of_app(admin, server, "~{rights}:*", "~rights:*", "~{rights:*", "&{rights}:*", "&rights:*", *COMMANDS)
    async with opened(url) as one, opened(url) as two:
        job = await submitted(one, session="s")
        assert await two.apply([sending(two, job)]) == [True]
    async with Locks(url, prefix="rights:") as one, Locks(url, prefix="rights:") as two:
        lease = await one.acquire(LOCK, "k")
        waiting = asyncio.create_task(two.acquire(LOCK, "k"))
        await one.release(lease)
        assert (await waiting).fence > lease.fence


@pytest.mark.parametrize("lacking", ["resetchannels", "-sadd", "-publish", "resetkeys"])
async def test_user_who_may_not_write_all_of_a_batch_is_refused_before_any_of_it_is(
    server: servers.Server, admin: redis.Redis, lacking: str
) -> None:
    """A server refuses a command in the middle of a script when what comes before it is done. Redis 7 gives a new user
    no channels, whatever commands it may use."""
    url = url_of_app(admin, server, "~*", "&*", "+@all", lacking)

    with pytest.raises(StoreUnavailable, match=r"NOPERM.*Allow this user") as refused:
        async with opened(url):
            pass

    assert refused.value.applied is False
    assert SECRET not in str(refused.value)


async def test_write_of_a_user_who_lost_a_right_is_refused_as_a_whole(
    server: servers.Server, admin: redis.Redis
) -> None:
    """Half of one would be in the way of all that come later."""
    async with opened(url_of_app(admin, server, "~*", "&*", "+@all")) as store:
        job = await submitted(store)
        allow(admin, "-hset")
        with pytest.raises(StoreUnavailable, match=r"NOPERM.*HSET.*Allow this user") as refused:
            await submitted(store)
        assert refused.value.applied is False
        assert SECRET not in str(refused.value)

        allow(admin, "+@all")
        assert await store.apply([sending(store, job)]) == [True]
        kinds = [event.kind for event in await store.list_events(after=0, limit=9, job_id=job.id)]
        assert kinds == ["job.submitted", "job.dispatched"]


async def test_wake_up_that_is_not_allowed_any_more_does_not_make_a_write_look_refused(
    server: servers.Server, admin: redis.Redis
) -> None:
    async with opened(url_of_app(admin, server, "~*", "&*", "+@all")) as store:
        allow(admin, "resetchannels")
        job = await submitted(store)

        allow(admin, "&*")
        assert await store.get_job(job.tenant, job.id) == job
