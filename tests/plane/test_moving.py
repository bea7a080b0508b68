"""Moving a store: whatever one keeps the other keeps, and goes on as the first one would have."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import servers
from click.testing import CliRunner, Result

from holdfast.app import running as running_plane
from holdfast.cli import cli
from holdfast.config import Settings
from holdfast.core.job import JobId
from holdfast.core.retention import Limits
from holdfast.errors import Conflict, Invalid, StoreUnavailable
from holdfast.locks.errors import Unavailable
from holdfast.locks.runtime import SYSTEM
from holdfast.moving import export_store, import_store, migrate_store
from holdfast.ports import Note, Snapshot
from holdfast.stores import StoreWithBus, open_portable, open_store
from holdfast.stores.portable import Page
from holdfast.stores.redis import arrival as redis_arrival
from holdfast.stores.redis import dump as redis_dump
from holdfast.stores.redis import portable as redis_portable
from holdfast.stores.redis.commands import Word
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.line import Script
from holdfast.stores.redis.link import ARRIVE, PlaneLink
from plane.agreeing import EPOCH, answers
from plane.jobs import ACME, ManualRuntime, dispatched, prune, recoverable, submitted
from plane.over_http import plane, say, submit, wait_ended, working
from plane.redis_namespaces import client, named
from plane.store_fixtures import FRESH, TIMEOUT_S, TOPICS
from plane.store_walk import Chance, everything

GROUPS = 30
SERVED = [kind for kind in FRESH if find_spec(f"holdfast.stores.{kind}.portable")]


@pytest.fixture
def clock() -> ManualRuntime:
    clock = ManualRuntime()
    clock.wall_s = EPOCH  # something happens in 2030, and no server's clock is behind that
    return clock


@pytest.fixture(params=SERVED)
def server(request: pytest.FixtureRequest, running: dict[str, servers.Server | None]) -> Iterator[str]:
    with FRESH[request.param](running) as url:
        yield url


@pytest.fixture(params=["sqlite", *SERVED])
def target(request: pytest.FixtureRequest, running: dict[str, servers.Server | None], tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        served = request.param in FRESH
        yield stack.enter_context(FRESH[request.param](running)) if served else f"sqlite:///{tmp_path}/target.db"


@asynccontextmanager
async def opened(url: str, runtime: Any = SYSTEM) -> AsyncIterator[StoreWithBus]:
    store = open_store(url, topics=TOPICS, runtime=runtime, timeout_s=TIMEOUT_S)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def all_of(store: StoreWithBus) -> dict[str, Any]:
    return {**await everything(store), "snapshot": await store.read_snapshot()}


async def filled(url: str, clock: ManualRuntime, seed: int) -> tuple[Chance, dict[str, Any]]:
    """A store with a bit of everything, and all that can be read of it."""
    chance = Chance(seed)
    async with opened(url, clock) as store:
        for _ in range(GROUPS):
            chance.now = store.now()
            await answers(store, [chance.command() for _ in range(5)])
            kept = await everything(store)
            chance.past += [job for job in chance.jobs.values() if job not in kept["jobs"]]
            chance.jobs = {job.id: job for job in kept["jobs"]}
            chance.records = {(r.kind, r.tenant, r.id): r for records in kept["records"] for r in records}
            clock.advance(1.0)
        await prune(store, Limits(store.now() - GROUPS / 2, store.now() - GROUPS / 2))
        await store.write_snapshot(Snapshot(7, 3, store.now(), b"[]"))
        await store.add_notes(
            [Note(ACME, JobId(""), "policy.published", {})]
        )  # now: whoever opens it goes on from here
        return chance, await all_of(store)


@pytest.mark.parametrize("seed", range(3))
async def test_moved_store_has_everything_and_goes_on_as_the_first_one_would_have(
    server: str, clock: ManualRuntime, tmp_path: Path, seed: int
) -> None:
    """From a file to a server and back into a file, once directly and once by way of an export."""
    first, last = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/last.db"
    chance, kept = await filled(first, clock, seed)
    moved = await migrate_store(first, server, runtime=clock)
    exported = await export_store(server, tmp_path / "plane.jsonl.gz", alone=True, runtime=clock)
    imported = await import_store(tmp_path / "plane.jsonl.gz", last, runtime=clock)

    assert moved == exported == imported, "counts and digests of every kind of row"
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(url, clock)) for url in (first, server, last)]
        for store in stores:
            found = await all_of(store)
            for what, one in kept.items():
                assert (what, found[what]) == (what, one)
        for _ in range(6):
            chance.now = stores[0].now()
            commands = [chance.command() for _ in range(5)]
            answered = [await answers(store, commands) for store in stores]
            assert answered[0] == answered[1] == answered[2]
            clock.advance(1.0)
        limits = Limits(stores[0].now() - 3, stores[0].now() - 3)
        pruned = [(await prune(store, limits), await all_of(store)) for store in stores]
        assert pruned[0] == pruned[1] == pruned[2]


async def test_only_an_empty_store_is_filled(target: str, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    for url in (source, target):
        async with opened(url) as store:
            await submitted(store)
            kept = await everything(store)

    with pytest.raises(Conflict, match="not empty"):
        await migrate_store(source, target, runtime=SYSTEM)

    async with opened(target) as store:
        assert await everything(store) == kept


async def test_refused_import_changes_nothing_of_a_store_at_work(
    target: str, clock: ManualRuntime, tmp_path: Path
) -> None:
    """Least of all when its jobs are looked at: that goes by the limits of its own topics."""
    async with opened(target, clock) as store:
        job = await dispatched(store, topic="quick")
        with pytest.raises(Conflict):
            await migrate_store(f"sqlite:///{tmp_path}/source.db", target, runtime=clock)
        assert await recoverable(store) == []
        clock.advance(3)
        assert await recoverable(store) == [job]


async def test_store_that_a_plane_works_on_is_not_moved_but_can_be_copied(target: str, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    async with running_plane(Settings(store=target)) as at_work:
        await submitted(at_work.store)
        with pytest.raises(Conflict, match="stop all of its processes"):
            await migrate_store(target, elsewhere, runtime=SYSTEM)
        with pytest.raises(Conflict, match=r"stop all of its processes|not empty"):
            await migrate_store(elsewhere, target, runtime=SYSTEM)
        copied = await export_store(target, tmp_path / "copy.jsonl", alone=False, runtime=SYSTEM)
        await submitted(at_work.store)

    assert {moved.kind: moved.rows for moved in copied}["job"] == 1
    moved = await migrate_store(target, f"sqlite:///{tmp_path}/next.db", runtime=SYSTEM)
    assert {one.kind: one.rows for one in moved}["job"] == 2, "and once it has stopped, it is free at once"


@pytest.mark.parametrize("name", ["plane.jsonl", "plane.jsonl.gz"])
async def test_export_may_come_through_a_pipe(tmp_path: Path, name: str) -> None:
    source, file, pipe = f"sqlite:///{tmp_path}/source.db", tmp_path / name, tmp_path / "pipe"
    async with opened(source) as store:
        await submitted(store)
    exported = await export_store(source, file, alone=True, runtime=SYSTEM)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(pipe.write_bytes, file.read_bytes())
        assert await import_store(pipe, f"sqlite:///{tmp_path}/next.db", runtime=SYSTEM) == exported
        writing.result(timeout=20)


@pytest.mark.parametrize("damage", ["cut", "changed", "last line missing", "not an export", "of tomorrow"])
async def test_file_that_is_not_whole_leaves_the_store_empty(target: str, tmp_path: Path, damage: str) -> None:
    source, file = f"sqlite:///{tmp_path}/source.db", tmp_path / "plane.jsonl"
    async with opened(source) as store:
        for _ in range(20):
            await submitted(store)
    await export_store(source, file, alone=True, runtime=SYSTEM)
    text = file.read_text()
    spoilt = {
        "cut": text[: len(text) // 2],
        "changed": text.replace('"mail.send"', '"mail.sent"', 1),
        "last line missing": "".join(text.splitlines(keepends=True)[:-1]),
        "not an export": '{"a": 1}\n' + text,
        "of tomorrow": text.replace('"format":1', '"format":2'),
    }
    file.write_text(spoilt[damage])

    with pytest.raises(Invalid, match=r"plane\.jsonl"):
        await import_store(file, target, runtime=SYSTEM)

    async with opened(target) as store:
        assert await store.list_events(after=0, limit=10) == []
        assert await store.count_jobs() == {}
    file.write_text(text)
    assert await import_store(file, target, runtime=SYSTEM), "and it can be filled after all"


async def test_store_that_was_not_written_as_it_was_read_is_left_empty(target: str, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    async with opened(source) as store:
        await submitted(store)

    async def refuse(pages: AsyncIterator[Page]) -> None:
        assert [len(page) async for page in pages] == [1, 1]
        raise Invalid("no")

    with pytest.raises(Invalid, match="no"):
        await open_portable(target, runtime=SYSTEM).load(
            open_portable(source, runtime=SYSTEM).dump(alone=True), check=refuse
        )
    async with opened(target) as store:
        assert await store.count_jobs() == {}


async def test_copy_of_a_plane_in_redis_is_of_one_moment_or_not_given_out(
    running: dict[str, servers.Server | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has lost the turn may have read what others wrote; and the turn of another is left to it."""

    async def overtaken(link: PlaneLink, keys: Keys) -> AsyncIterator[Page]:
        await link.ask(("SET", keys.turn, "another"))
        async for page in redis_dump.pages(link, keys):
            yield page

    monkeypatch.setattr(redis_portable, "pages", overtaken)
    monkeypatch.setattr(redis_portable, "RENEW_S", 0.0)
    with FRESH["redis"](running) as url, client(url) as raw:
        async with opened(url) as store:
            await submitted(store)

        with pytest.raises(StoreUnavailable, match="in one go"):
            async for _ in open_portable(url, runtime=SYSTEM).dump(alone=False):
                pytest.fail("not a page of it is given out")

        assert (raw.get(named(url, "turn")), raw.ttl(named(url, "turn"))) == (b"another", -1)


@pytest.mark.parametrize("next_one", ["a plane", "an import", "an export"])
async def test_import_into_redis_that_broke_off_when_it_was_decided_is_brought_to_its_end_by_whoever_comes_next(
    running: dict[str, servers.Server | None],
    clock: ManualRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    next_one: str,
) -> None:
    """Keys take their place some at a time, for nobody else is served meanwhile; and nobody writes in between."""
    source, file = f"sqlite:///{tmp_path}/source.db", tmp_path / "plane.jsonl"
    _, kept = await filled(source, clock, seed=1)
    exported = await export_store(source, file, alone=True, runtime=clock)
    monkeypatch.setattr(redis_arrival, "NAMES_MAX", 3)
    run, pages = PlaneLink.run, itertools.count()

    async def cut_off(link: PlaneLink, what: Script, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Any:
        if what is ARRIVE and next(pages) == 2:
            raise Unavailable(link.subject, "connection lost", applied=None)
        return await run(link, what, keys, arguments)

    with FRESH["redis"](running) as url, client(url) as raw:
        with monkeypatch.context() as patch:
            patch.setattr(PlaneLink, "run", cut_off)
            with pytest.raises(StoreUnavailable, match="connection lost"):
                await import_store(file, url, runtime=clock)
        assert (raw.get(named(url, "turn")), raw.ttl(named(url, "turn"))) == (b"arriving", -1)

        if next_one == "an import":
            with pytest.raises(Conflict, match="not empty"):
                await import_store(file, url, runtime=clock)
        elif next_one == "an export":
            assert await export_store(url, tmp_path / "again.jsonl", alone=True, runtime=clock) == exported
        async with opened(url, clock) as store:
            assert await all_of(store) == kept
            await submitted(store)
        assert raw.keys(named(url, "moving:*")) == []


async def test_export_is_its_owner_s_and_replaces_nothing(tmp_path: Path) -> None:
    source, file = f"sqlite:///{tmp_path}/source.db", tmp_path / "plane.jsonl"
    async with opened(source) as store:
        await submitted(store)
    await export_store(source, file, alone=True, runtime=SYSTEM)
    before = file.read_bytes()

    with pytest.raises(Invalid, match="there already"):
        await export_store(source, file, alone=True, runtime=SYSTEM)
    with pytest.raises(StoreUnavailable, match="no such file"):
        await export_store(f"sqlite:///{tmp_path}/none.db", tmp_path / "none.jsonl", alone=True, runtime=SYSTEM)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"plane.jsonl", "source.db", "source.db-writers"}


async def test_file_that_was_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    source, file, other = f"sqlite:///{tmp_path}/source.db", tmp_path / "plane.jsonl", tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / "plane.jsonl.part").symlink_to(other)
    async with opened(source) as store:
        await submitted(store)
    before = {path.name for path in tmp_path.iterdir()}

    def meanwhile(*_: object) -> None:
        file.write_text("theirs")

    with pytest.raises(Invalid, match="there already"):
        await export_store(source, file, alone=True, runtime=SYSTEM, progress=meanwhile)

    assert (file.read_text(), other.read_text()) == ("theirs", "theirs")
    assert {path.name for path in tmp_path.iterdir()} == before | {"plane.jsonl"}


async def test_plane_goes_on_where_it_was_stopped(server: str, tmp_path: Path) -> None:
    """With a job that runs: its worker, which knows nothing of all this, reports to the new plane."""
    first = f"sqlite:///{tmp_path}/first.db"
    async with plane(Settings(store=first, port=0)) as http:
        await say(http, "/v1/work/hello", worker="w1", name="w1", topics=["*"], slots=1)
        ids = [await submit(http, number) for number in range(5)]
        [taken] = (await say(http, "/v1/work/claim", worker="w1", wait_s=20, start=True))["deliveries"]
    migrated = await asyncio.to_thread(shell, "migrate", "--from", first, "--to", server)
    assert migrated.exit_code == 0, migrated.output

    async with plane(Settings(store=server, port=0)) as http:
        outcome = {"job_id": taken["job_id"], "fence": taken["fence"], "outcome": "succeeded", "result": 1}
        await say(http, "/v1/work/complete", worker="w1", outcomes=[outcome])
        again = [await submit(http, number) for number in range(5)]
        async with working(http, "w2"):
            await wait_ended(http, ids)
        attempts = [(await http.get(f"/v1/jobs/{job_id}")).json()["attempts"] for job_id in ids]

    assert again == ids, "their keys were moved, too"
    assert attempts == [1] * 5


def shell(*arguments: str) -> Result:
    return CliRunner(env={"HOLDFAST_STORE": ""}).invoke(cli, ["store", *arguments])


def test_command_says_what_was_moved_and_why_not(tmp_path: Path) -> None:
    source, file = f"sqlite:///{tmp_path}/source.db", str(tmp_path / "plane.jsonl.gz")
    made = CliRunner(env={"HOLDFAST_URL": "http://127.0.0.1:1"}).invoke(
        cli, ["store", "import", file, "--store", source]
    )
    assert (made.exit_code, made.stdout) == (2, ""), "there is no such file"

    missing = shell("export", file, "--store", source)
    unknown = shell("migrate", "--from", source, "--to", "mongodb://user:hunter2@db/x")
    unreachable = shell("migrate", "--from", f"{source}x", "--to", "postgresql://user:hunter2@127.0.0.1:1/x")

    assert (missing.exit_code, unknown.exit_code, unreachable.exit_code) == (5, 2, 5)
    assert not any("hunter2" in one.output for one in (missing, unknown, unreachable))
