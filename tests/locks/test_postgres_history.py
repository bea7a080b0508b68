"""What Postgres remembers of ended leases: many that were released together share a line, others have their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import asyncpg
import pytest
import servers
from harness import Backend

from holdfast.locks.errors import StoreRefused
from holdfast.locks.port import Grant, LockStore
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store
from holdfast.locks.stores.postgres import lane
from holdfast.locks.stores.postgres.history import COLLECT, COLLECT_EVERY, COLLECT_LIMITS, TOGETHER_KEPT, TOGETHER_MIN
from locks.postgres_setup import LONG, A, own_schema, run


@pytest.fixture
async def backend(running: dict[str, servers.Server | None], tmp_path: Path) -> AsyncIterator[Backend]:
    async with own_schema(running, tmp_path) as own:
        yield own


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter way, which records leases together, is tried for every batch."""
    monkeypatch.setattr(lane, "FREE_PAUSE", 0)


async def hold_and_release(store: LockStore, *keys: str) -> None:
    for grant in await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in keys)):
        assert isinstance(grant, Grant)
    assert all(await asyncio.gather(*(store.release(key, A) for key in keys)))


async def lines(backend: Backend) -> tuple[int, int]:
    """How many leases have a line of their own, and how many lines are shared."""
    [(own, shared)] = await run(
        backend.url, "SELECT (SELECT count(*) FROM holdfast_history), (SELECT count(*) FROM holdfast_releases)"
    )
    return own, shared


async def first_version(backend: Backend) -> None:
    """The tables as the first version made them."""
    made = files("holdfast.locks.stores.postgres").joinpath("locks.sql").read_text(encoding="utf-8")
    for statement in ("DROP SCHEMA {0} CASCADE", "CREATE SCHEMA {0}"):
        await run(backend.url, statement.format(backend.url.partition("search_path=")[2]))
    connection = await asyncpg.connect(backend.url)
    await connection.execute(made)
    await connection.close()


async def test_many_share_a_line_and_few_do_not(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]

    await hold_and_release(store, *keys)
    assert await lines(backend) == (0, 1)

    await hold_and_release(store, *keys[1:])
    assert await lines(backend) == (TOGETHER_MIN - 1, 1)
    assert [line.event for line in await store.list_history(keys[1])] == ["granted", "released"] * 2


async def test_only_those_that_were_released_are_in_the_shared_line(
    backend: Backend, store: LockStore, other: LockStore
) -> None:
    mine, theirs = [[backend.key(f"{whose}{n}") for n in range(TOGETHER_MIN)] for whose in "mt"]
    await hold_and_release(store, *mine, *theirs)
    await asyncio.gather(*(store.acquire(key, A, ttl_ms=LONG) for key in mine))
    await asyncio.gather(*(other.acquire(key, "b" * 32, ttl_ms=LONG) for key in theirs))

    answers = await asyncio.gather(*(store.release(key, A) for key in (*mine, *theirs)))

    assert answers == [True] * TOGETHER_MIN + [False] * TOGETHER_MIN
    [newest] = await run(backend.url, "SELECT keys FROM holdfast_releases ORDER BY number DESC LIMIT 1")
    assert newest["keys"] == mine
    assert [line.event for line in await store.list_history(theirs[0])] == ["granted", "released", "granted"]


async def test_view_for_people_tells_what_the_library_tells(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]
    await hold_and_release(store, *keys)
    await hold_and_release(store, keys[0])
    await store.acquire(keys[0], A, ttl_ms=LONG)

    seen = await run(
        backend.url,
        "SELECT key, fence, holder, event, note FROM holdfast_timeline WHERE key = $1 ORDER BY fence, step",
        keys[0],
    )

    told = [(line.key, line.fence, line.holder, line.event, line.note) for line in await store.list_history(keys[0])]
    assert [tuple(row) for row in seen] == told
    assert [event for *_, event, _ in told] == ["granted", "released"] * 2 + ["granted"]


async def test_long_keys_are_recorded_too(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"{n:03d}" + "ü" * 400) for n in range(150)]  # far more than a page

    await hold_and_release(store, *keys)

    assert await lines(backend) == (0, 1)
    assert [line.event for line in await store.list_history(keys[77])] == ["granted", "released"]


async def test_sweep_forgets_shared_lines_of_yesterday_and_leaves_the_young(backend: Backend, store: LockStore) -> None:
    keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]
    for _ in range(5):
        await hold_and_release(store, *keys)
    await run(backend.url, "UPDATE holdfast_releases SET ended_at = now() - interval '25 hours' WHERE number <= 3")

    await run(backend.url, COLLECT, *COLLECT_LIMITS)

    left = await run(backend.url, "SELECT number FROM holdfast_releases ORDER BY number")
    assert [row["number"] for row in left] == [4, 5]


async def test_sweep_looks_no_further_while_the_oldest_shared_line_is_to_stay(
    backend: Backend, store: LockStore
) -> None:
    keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]
    for _ in range(3):
        await hold_and_release(store, *keys)
    outdate = "UPDATE holdfast_releases SET ended_at = now() - interval '25 hours' WHERE number = $1"

    left = []
    for number in (2, 1):
        await run(backend.url, outdate, number)
        await run(backend.url, COLLECT, *COLLECT_LIMITS)
        left.append(
            [row["number"] for row in await run(backend.url, "SELECT number FROM holdfast_releases ORDER BY 1")]
        )

    assert left == [[1, 2, 3], [3]]


async def test_sweep_keeps_the_newest_shared_lines_and_removes_more_than_are_written(
    backend: Backend, store: LockStore
) -> None:
    at_once, kept = COLLECT_LIMITS[1:]
    assert kept > TOGETHER_KEPT
    assert at_once > COLLECT_EVERY // TOGETHER_MIN
    await run(
        backend.url,
        "INSERT INTO holdfast_releases (ended_at, keys, fences, holders, granted_at)"
        " SELECT now(), '{k}', '{1}', '{h}', ARRAY[now()] FROM generate_series(1, $1)",
        kept + at_once + 7,
    )

    oldest = []
    for _ in range(3):
        await run(backend.url, COLLECT, *COLLECT_LIMITS)
        [row] = await run(backend.url, "SELECT min(number) FROM holdfast_releases")
        oldest.append(row["min"])

    assert oldest == [at_once + 1, at_once + 8, at_once + 8]


# -- tables of the first version ---------------------------------------------------------------------


async def test_tables_of_the_first_version_are_completed_by_whoever_comes_first(backend: Backend) -> None:
    await first_version(backend)
    stores = [backend.open() for _ in range(4)]

    await asyncio.gather(*(late.open() for late in stores))

    keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]
    await hold_and_release(stores[0], *keys)
    assert await lines(backend) == (0, 1)
    for late in stores:
        await late.close()


async def test_holdfast_of_before_works_on_beside_it(backend: Backend) -> None:
    await first_version(backend)
    before = await asyncpg.connect(backend.url)
    key, *_ = keys = [backend.key(f"k{n}") for n in range(TOGETHER_MIN)]
    asked = "SELECT done_fences FROM holdfast_batch('old', 'c', 1, ARRAY[$1], ARRAY['t'], ARRAY[$2::int], '{0}', '{1}')"
    read = "SELECT holder, event FROM holdfast_timeline WHERE key = $1 ORDER BY fence, step"
    assert await before.fetchval(asked, key, LONG)  # and its plans are made
    assert await before.fetch(read, key)

    late = backend.open()
    await late.open()
    assert await before.fetchval(asked, key, 0)
    await hold_and_release(late, *keys)
    await hold_and_release(late, *keys)
    assert await before.fetchval(asked, key, LONG)
    await before.execute("SELECT holdfast_collect(100)")

    expected = [("old", "granted"), ("old", "released"), *[("test-holder", "granted"), ("test-holder", "released")] * 2]
    assert [tuple(row) for row in await before.fetch(read, key)] == [*expected, ("old", "granted")]
    assert [(line.holder, line.event) for line in await late.list_history(key)] == [*expected, ("old", "granted")]
    await late.close()
    await before.close()


async def test_role_that_may_not_complete_the_tables_is_told(backend: Backend) -> None:
    await first_version(backend)
    schema = backend.url.partition("search_path=")[2]
    role = f"guest_{schema}"
    for statement in (
        "CREATE ROLE {0} LOGIN",
        "GRANT USAGE ON SCHEMA {1} TO {0}",
        "GRANT ALL ON ALL TABLES IN SCHEMA {1} TO {0}",
    ):
        await run(backend.url, statement.format(role, schema))
    guest = open_store(backend.url.replace("test@", f"{role}@"), holder="guest", prefix="p:", runtime=SYSTEM)

    with pytest.raises(StoreRefused, match="Grant this role"):
        await guest.open()

    await guest.close()
    for statement in ("DROP OWNED BY {0}", "DROP ROLE {0}"):
        await run(backend.url, statement.format(role))


async def test_tables_of_a_newer_version_are_left_as_they_are(backend: Backend) -> None:
    await first_version(backend)
    await run(backend.url, "UPDATE holdfast_store SET version = 99")
    late = backend.open()

    with pytest.raises(StoreRefused, match="version 99"):
        await late.open()

    assert [tuple(row) for row in await run(backend.url, "SELECT to_regclass('holdfast_releases')")] == [(None,)]
    await late.close()
