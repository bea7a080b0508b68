"""The plane on Postgres where a name comes to mean another server: a standby, a promoted one, one that may not be written."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import servers
from harness import eventually

from holdfast.config import Settings
from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.ops.doctor import examine
from holdfast.ops.proxy import Proxy
from holdfast.ports import JobEvent, Submission
from holdfast.stores import inspect_store, open_store
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.timeline import FORGOTTEN_MAX
from holdfast.stores.postgres.writer import LOCK
from plane.jobs import ACME, a_job, submitted
from plane.postgres_schemas import admin, opened, url, value  # noqa: F401


class Name(Proxy):
    """A name that may come to mean another server, with the connections of before cut."""

    def means(self, server: servers.Server) -> None:
        self._target = ("127.0.0.1", server.port)
        self.cut()


@pytest.fixture
def primary() -> Iterator[servers.Server]:
    server = servers.postgres_server().start()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: servers.Server) -> Iterator[servers.Server]:
    server = servers.postgres_standby(primary).start()
    yield server
    server.remove()


async def test_standby_is_neither_read_nor_written_until_it_is_promoted(
    primary: servers.Server, standby: servers.Server
) -> None:
    async with Name(primary.port) as name, opened(name.url(primary.url), timeout_s=2.0) as store:
        job = await submitted(store)
        with psycopg.connect(standby.url, autocommit=True) as other:

            async def has_followed() -> bool:
                [there] = other.execute("SELECT to_regclass('holdfast_jobs') IS NOT NULL").fetchone() or [False]
                return bool(there) and other.execute("SELECT FROM holdfast_jobs").fetchone() is not None

            await eventually(has_followed)
            name.means(standby)

            work: list[Coroutine[Any, Any, Any]] = [
                store.get_job(ACME, job.id),
                store.submit([Submission(job=a_job(), key=None, digest="")]),
                open_store(name.url(primary.url), topics=Topics(), runtime=SYSTEM).open(),
                inspect_store(name.url(primary.url), runtime=SYSTEM),
            ]
            for each in work:
                with pytest.raises(StoreUnavailable, match=r"standby.*all hosts") as caught:
                    await each
                assert caught.value.applied is False

            primary.kill()
            other.execute("SELECT pg_promote()")
        name.cut()
        assert await store.get_job(ACME, job.id) == job
        assert await submitted(store)


@pytest.fixture
async def role(url: str, admin: psycopg.AsyncConnection[Any]) -> Any:
    """A user of its own, who can be taken rights away from."""
    name = f"r{url.rpartition('=')[2]}"
    await admin.execute(f"CREATE ROLE {name} SUPERUSER LOGIN".encode())
    yield name
    await admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


async def end_connections(admin: psycopg.AsyncConnection[Any], role: str) -> None:
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))


async def test_what_happens_is_still_told_when_a_promoted_standby_lacks_the_last_of_it(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    """If numbers were given out twice, whoever waits would hear of none but by polling, until they are as high as before."""
    async with opened(url) as one, opened(url) as two:
        told: list[int] = []
        two.subscribe(lambda events: told.extend(event.number for event in events))
        for _ in range(3):
            await submitted(one)
        await eventually(lambda: asyncio.sleep(0, told == [1, 2, 3]))
        await admin.execute("DELETE FROM holdfast_events WHERE number > 1; DELETE FROM holdfast_jobs WHERE seq > 1")

        job = await submitted(one)

        await eventually(lambda: asyncio.sleep(0, told == [1, 2, 3, 4]))
        assert [event.job_id for event in await two.list_events(after=3, limit=9)] == [job.id]


async def test_what_a_plane_writes_that_came_after_the_failover_is_told_to_those_that_lived_through_it(
    primary: servers.Server, standby: servers.Server
) -> None:
    """It knows nothing of the events that were lost, whose numbers the others have told their listeners."""
    async with (
        Name(primary.port) as name,
        opened(name.url(primary.url)) as lived,
        opened(name.url(primary.url)) as past,
    ):
        told: list[JobEvent] = []
        lived.subscribe(told.extend)
        await submitted(past)
        with psycopg.connect(standby.url, autocommit=True) as other:

            async def has(sql: str) -> bool:
                return other.execute(sql.encode()).fetchone() is not None

            await eventually(lambda: has("SELECT 1 WHERE to_regclass('holdfast_events') IS NOT NULL"))
            await eventually(lambda: has("SELECT FROM holdfast_events"))
            other.execute("ALTER SYSTEM SET primary_conninfo = ''")
            other.execute("SELECT pg_reload_conf()")
            await eventually(lambda: has("SELECT WHERE NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"))
            for _ in range(2):
                await submitted(past)
            await eventually(lambda: asyncio.sleep(0, len(told) == 3))

            name.means(standby)
            primary.kill()
            other.execute("SELECT pg_promote()")
        name.cut()
        for _ in range(2):  # the first is far above what was lost, and the second comes right after it
            async with opened(name.url(primary.url)) as fresh:
                job = await submitted(fresh)
                await eventually(lambda: asyncio.sleep(0, told[-1].job_id == job.id))  # noqa: B023  (at once)

        numbers = [event.number for event in told]
        assert numbers[:3] == [1, 2, 3]
        assert 3 < numbers[3] == numbers[4] - 1


async def test_second_failover_goes_on_above_the_first_where_all_that_came_between_was_lost(
    primary: servers.Server,
) -> None:
    numbers = []
    for _ in range(3):
        async with opened(primary.url) as store:
            await submitted(store)
            numbers.append((await store.list_events(after=0, limit=9))[-1].number)
        primary.stop()
        (primary.directory / "data/standby.signal").touch()
        primary.start()
        with psycopg.connect(primary.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
            admin.execute("DELETE FROM holdfast_events WHERE number > 1")
            admin.execute("UPDATE holdfast_settings SET value = '00000001' WHERE name = 'timeline'")

    first, second, third = numbers
    assert first == 1
    assert first < second < third


async def test_planes_that_come_after_a_failover_together_go_on_far_above_what_was_lost_but_once(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async def both_wait() -> bool:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return bool(await value(admin, waiting) == 2)

    async with opened(url) as past:
        await submitted(past)
    await admin.execute("UPDATE holdfast_settings SET value = '00000000' WHERE name = 'timeline'")
    async with opened(url) as one, opened(url) as two:
        async with admin.transaction():
            await admin.execute(f"SELECT pg_advisory_xact_lock({LOCK})".encode())
            both = asyncio.gather(submitted(one), submitted(two))
            await eventually(both_wait)
        await both

        numbers = [event.number for event in await one.list_events(after=0, limit=9)]
    assert numbers[0] == 1
    assert 1 < numbers[1] == numbers[2] - 1


async def test_what_happened_just_before_a_failover_is_told_before_what_comes_so_far_above_it(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    """Its word got lost with the server that gave it."""
    async with opened(url) as one, opened(url) as two:
        told: list[int] = []
        two.subscribe(lambda events: told.extend(event.number for event in events))
        await submitted(one)
        await eventually(lambda: asyncio.sleep(0, told == [1]))
        await admin.execute("CREATE TEMPORARY TABLE late AS SELECT * FROM holdfast_events")
        await admin.execute("UPDATE late SET number = 2")
        await admin.execute("INSERT INTO holdfast_events SELECT * FROM late")
        await admin.execute("UPDATE holdfast_settings SET value = '00000000' WHERE name = 'timeline'")

        await submitted(two)

        await eventually(lambda: asyncio.sleep(0, told[-1] > FORGOTTEN_MAX))
        assert told == [1, 2, FORGOTTEN_MAX + 3]


@pytest.mark.parametrize(
    "change",
    ["REVOKE EXECUTE ON FUNCTION pg_walfile_name FROM PUBLIC", "ALTER FUNCTION pg_walfile_name RENAME TO gone"],
)
async def test_server_that_tells_nothing_of_its_timeline_is_written_all_the_same(
    primary: servers.Server, change: str
) -> None:
    with psycopg.connect(primary.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE ann LOGIN; CREATE SCHEMA ann AUTHORIZATION ann")
        admin.execute(change.encode())

    async with opened(primary.url.replace("test@", "ann@")) as store:
        assert await submitted(store)


async def test_server_that_may_be_written_again_is_written_again(
    url: str, admin: psycopg.AsyncConnection[Any], role: str
) -> None:
    """A connection has from its beginning that it may only read, and would keep that for ever."""
    async with opened(url.replace("test@", f"{role}@")) as store:
        await admin.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on".encode())
        await end_connections(admin, role)
        with pytest.raises(StoreUnavailable, match="read-only") as caught:
            await submitted(store)
        assert caught.value.applied is False

        await admin.execute(f"ALTER ROLE {role} RESET default_transaction_read_only".encode())

        assert await submitted(store)


async def test_server_that_lets_nobody_in_is_asked_no_more_often_because_many_wait(
    url: str, admin: psycopg.AsyncConnection[Any], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    connect = asyncpg.connect

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += "plan_cache_mode" in options.get("server_settings", {})  # of the writer
        return await connect(*arguments, **options)

    async with opened(url.replace("test@", f"{role}@")) as store:
        await admin.execute(f"ALTER ROLE {role} NOLOGIN".encode())
        await end_connections(admin, role)
        monkeypatch.setattr(asyncpg, "connect", counted)
        answers = await asyncio.gather(*(submitted(store) for _ in range(50)), return_exceptions=True)

        assert asked <= 3
        assert {getattr(answer, "applied", "stored") for answer in answers} == {False}
        await admin.execute(f"ALTER ROLE {role} LOGIN".encode())
        assert await submitted(store)


async def test_plane_whose_first_commit_waits_for_a_standby_that_is_away_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No timeout of Postgres ends a commit that waits: the plane would never have been heard of again."""
    monkeypatch.setattr(schema, "CREATE_S", 0.5)
    server = servers.postgres_server("synchronous_standby_names=nobody", fsync=True).start()
    try:
        store = open_store(server.url, topics=Topics(), runtime=SYSTEM, timeout_s=2.0)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable, match="standby"):
                await store.open()

        found = await examine(Settings(store=server.url), runtime=SYSTEM)
        assert [one.code for one in found.ailments] == ["no-writes"]
    finally:
        server.remove()


@pytest.mark.parametrize("ask", ["open", "inspect"])
async def test_server_that_does_not_answer_when_it_is_opened_is_given_up(url: str, ask: str) -> None:
    """It lets everybody in, and then nothing comes of it."""
    port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
    async with Proxy(port) as proxy:
        connect = asyncpg.connect

        async def connected_and_deaf(*arguments: Any, **options: Any) -> Any:
            connection = await connect(*arguments, **options)
            proxy.deaf = True
            return connection

        store = open_store(proxy.url(url), topics=Topics(), runtime=SYSTEM, timeout_s=0.3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncpg, "connect", connected_and_deaf)
            async with asyncio.timeout(10):
                with pytest.raises(StoreUnavailable):
                    await (
                        store.open() if ask == "open" else inspect_store(proxy.url(url), runtime=SYSTEM, timeout_s=0.3)
                    )
