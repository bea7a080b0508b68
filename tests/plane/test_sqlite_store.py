"""What is special to jobs in SQLite: the file, the host's clock, and sharing both with locks and processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.job import Tenant
from holdfast.core.states import EffectState, Event, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks import LockClass, Locks
from holdfast.locks.runtime import SYSTEM, Runtime
from holdfast.ports import Accepted, Note, Submission
from holdfast.stores import StoreWithBus, open_store
from holdfast.stores.ledger import REVIEW_MAX
from holdfast.stores.sqlite import reads
from holdfast.stores.sqlite.file import PLANE_VERSION
from holdfast.stores.sqlite.reads import Reads
from holdfast.stores.sqlite.store import SqliteStore
from plane.jobs import ACME, ManualRuntime, a_job, bare, dispatched, recoverable, running, stepped, submitted


def made(path: Path, runtime: Runtime = SYSTEM, topics: Topics | None = None) -> StoreWithBus:
    return open_store(f"sqlite:///{path}", topics=topics or Topics(), runtime=runtime)


async def refusal(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as caught:
        await made(path).open()
    assert path.read_bytes() == before
    assert caught.value.applied is False
    return str(caught.value)


async def test_url_that_nobody_serves_is_an_error() -> None:
    with pytest.raises(ValueError, match="sqlite://"):
        open_store("mysql://x", topics=Topics(), runtime=SYSTEM)


@pytest.mark.parametrize("url", ["", "plane.db", "./plane.db", "sqlite://plane.db", "sqlite://data/plane.db"])
async def test_path_without_its_three_slashes_is_told_how_to_write_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///[a-z]"):
        open_store(url, topics=Topics(), runtime=SYSTEM)


async def test_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"no folder.*four slashes") as caught:
        await made(tmp_path / "misspelt/plane.db").open()

    assert caught.value.applied is False
    assert not (tmp_path / "misspelt").exists()


async def test_damaged_file_is_refused_and_names_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)

    assert "backup" in await refusal(path)


async def test_file_damaged_in_the_middle_is_refused_and_names_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    store = made(path)
    await store.open()
    for _ in range(20):
        await store.submit([Submission(job=a_job(), key=None, digest="") for _ in range(50)])
    await store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\x5a" * 4096
    path.write_bytes(content)

    assert "backup" in await refusal(path)


async def test_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with apsw.Connection(str(path)) as theirs:
        theirs.execute("CREATE TABLE t (a)")

    assert "another program" in await refusal(path)


async def test_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    store = made(path)
    await store.open()
    await store.close()
    with apsw.Connection(str(path)) as newer:
        newer.execute("UPDATE holdfast_meta SET value = ? WHERE name = 'plane_version'", (PLANE_VERSION + 1,))
    newer.close()

    with pytest.raises(StoreUnavailable, match="Upgrade"):
        await made(path).open()


async def test_full_disk_refuses_what_it_cannot_keep_and_loses_nothing(tmp_path: Path) -> None:
    store = made(tmp_path / "plane.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    connection = store._file._part.writer._connection
    assert connection is not None
    limit = connection.pragma("max_page_count", connection.pragma("page_count") + 8)
    acknowledged = []
    with pytest.raises(StoreUnavailable, match="disk is full") as caught:
        for _ in range(2000):
            job = a_job(payload=b"x" * 3000)
            await store.submit([Submission(job=job, key=None, digest="")])
            acknowledged.append(job)

    assert caught.value.applied is False
    assert await store.find_jobs([job.id for job in acknowledged]) == acknowledged
    assert await store.find_jobs([job.id]) == [None]
    connection.pragma("max_page_count", limit + 100_000)
    assert await store.submit([Submission(job=job, key=None, digest="")]) == [Accepted(job, repeated=False)]
    numbers = [event.number for event in await store.list_events(after=0, limit=10_000)]
    assert numbers == list(range(1, len(acknowledged) + 2))
    await store.close()


async def test_clock_is_the_same_for_all_processes_of_a_boot_and_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    first, second = ManualRuntime(), ManualRuntime()
    store = made(path, first)
    await store.open()
    first.advance(50)
    await submitted(store)
    second.clock_s, second.wall_s = first.clock_s, first.wall_s - 9999  # the host's clock was set back meanwhile
    other = made(path, second)
    await other.open()
    assert other.now() == store.now()
    ended_at = store.now()
    await other.close()
    await store.close()

    rebooted = ManualRuntime()
    rebooted.boot, rebooted.clock_s, rebooted.wall_s = "boot-2", 3.0, 0.0
    after = made(path, rebooted)
    await after.open()
    assert after.now() >= ended_at
    await after.close()


async def test_new_limits_of_a_topic_hold_for_jobs_that_are_there(tmp_path: Path) -> None:
    path, clock = tmp_path / "plane.db", ManualRuntime()
    store = made(path, clock)
    await store.open()
    others = [a_job(since=store.now(), not_before=store.now() + 60) for _ in range(REVIEW_MAX)]
    await store.submit([Submission(job=later, key=None, digest="") for later in others])
    job = await dispatched(store, topic="slow")
    clock.advance(20)
    assert await recoverable(store) == []
    await store.close()

    stricter = made(path, clock, Topics((Topic(name="slow", dispatch_timeout_s=10.0),)))
    await stricter.open()
    assert await recoverable(stricter) == [job]
    await stricter.close()


async def test_no_write_walks_through_a_table(tmp_path: Path) -> None:
    """One that does would hold up every renewal of the file: 1.6 s with a million finished jobs."""
    store = made(tmp_path / "plane.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    connection = store._file._part.writer._connection
    assert connection is not None
    seen: dict[str, Any] = {}

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen[sql] = bindings
        return True

    connection.exec_trace = trace
    job = await running(store)
    await store.submit([Submission(job=a_job(payload=b"x" * 9000), key="k", digest="")])
    await store.prepare_effect(job.id, job.fence, "charge", idempotent=False)
    [job] = [kept for kept in await store.renew_leases([(job.id, job.fence)]) if kept is not None]
    await stepped(store, job, Event.FAIL, dead_letter="x")
    await store.add_notes([Note(ACME, job.id, "attempt.refused", {})])
    await store.resolve_effect(ACME, job.id, "charge", state=EffectState.ABSENT, result=None, note="")
    await store.replay_dead_letter(ACME, 1, Submission(job=a_job(), key=None, digest=""))
    connection.exec_trace = None
    plans = {
        sql: [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        for sql, bindings in seen.items()
        if sql.startswith(("SELECT", "UPDATE", "DELETE"))
    }
    await store.close()

    assert len(plans) >= 10
    assert [sql for sql, plan in plans.items() if any(step.startswith("SCAN holdfast_") for step in plan)] == []


async def test_session_of_any_length_is_read_beside_the_loop(tmp_path: Path) -> None:
    store = made(tmp_path / "plane.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    job = await submitted(store, session="s")
    assert store._file._scanner is not None
    asked_by: set[int] = set()

    def trace(*_: object) -> bool:
        asked_by.add(threading.get_ident())
        return True

    store._file._scanner.exec_trace = trace
    assert await store.list_session(ACME, "s") == [bare(job)]
    await store.close()

    assert asked_by
    assert threading.get_ident() not in asked_by


async def test_jobs_of_many_tenants_are_listed_without_a_statement_for_each(tmp_path: Path) -> None:
    """To prepare one takes longer than to ask it."""
    store = made(tmp_path / "plane.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    tenants = [Tenant(f"t{n:03}") for n in range(200)]
    await store.submit([Submission(job=a_job(tenant=one), key=None, digest="") for one in tenants for _ in range(3)])
    assert store._file._reader is not None
    assert len(await store.list_dispatchable(limit=500)) == 500
    before = store._file._reader.cache_stats()["misses"]
    found = await store.list_dispatchable(limit=500)
    assert [job.tenant for job in found[:400]] == [*tenants, *tenants]
    assert store._file._reader.cache_stats()["misses"] - before < 10
    await store.close()


@pytest.mark.parametrize("limit", ["STEPS_IN_SHORT", "STATEMENTS_IN_SHORT"])
async def test_jobs_behind_very_many_others_are_looked_for_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """However many there are: what the loop itself waits for is bounded, in rows and in statements."""
    store = made(tmp_path / "plane.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.submit(
        [Submission(job=a_job(topic="nobody", priority=n % 20), key=None, digest="") for n in range(500)]
    )
    last = await submitted(store, topic="served", priority=-1)
    asked_by: set[int] = set()

    def trace(*_: object) -> bool:
        asked_by.add(threading.get_ident())
        return True

    assert store._file._scanner is not None
    store._file._scanner.exec_trace = trace
    assert await store.list_dispatchable(limit=1, except_topics=["nobody"]) == [last]
    assert not asked_by, "what is found soon is found in place"
    monkeypatch.setattr(reads, limit, 20)
    assert await store.list_dispatchable(limit=1, except_topics=["nobody"]) == [last]
    assert asked_by
    assert threading.get_ident() not in asked_by
    monkeypatch.undo()
    assert await store.list_dispatchable(limit=1, except_topics=["nobody"]) == [last]
    await store.close()


async def test_locks_and_jobs_of_a_process_share_one_writer(tmp_path: Path) -> None:
    store = made(tmp_path / "plane.db")
    await store.open()
    async with Locks(f"sqlite:///{tmp_path / 'plane.db'}") as locks:
        async with locks.hold(LockClass("x", ttl=5), "k") as lease:
            job = await running(store, fence=lease.fence)
        assert isinstance(store, SqliteStore)
        assert set(store._file._part.writer._parts) == {"plane", "locks"}
    assert await store.get_job(ACME, job.id) == job  # the locks' leaving does not close the file
    await store.close()


async def test_processes_share_a_file(tmp_path: Path) -> None:
    """Two real processes submit at once: everything acknowledged is there, and events have no gap."""
    path = tmp_path / "plane.db"
    script = (
        "import asyncio, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from plane.jobs import a_job\n"
        "from holdfast.core.topic import Topics\n"
        "from holdfast.core.job import JobId\n"
        "from holdfast.locks.runtime import SYSTEM\n"
        "from holdfast.ports import Submission\n"
        "from holdfast.stores import open_store\n"
        "async def main():\n"
        "    store = open_store(f'sqlite:///{sys.argv[1]}', topics=Topics(), runtime=SYSTEM)\n"
        "    await store.open()\n"
        "    async def submit(n):\n"
        "        job = a_job(id=JobId(f'{n:05d}{SYSTEM.token()}'))\n"
        "        await store.submit([Submission(job=job, key=None, digest='')])\n"
        "        print(job.id, flush=True)\n"
        "    for n in range(50): await asyncio.gather(*(submit(n * 4 + k) for k in range(4)))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    tests = str(Path(__file__).parent.parent)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(path), tests, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    ids = [line for out, _ in outputs for line in out.decode().split()]

    store = made(path)
    await store.open()
    assert None not in await store.find_jobs(ids)  # type: ignore[arg-type]
    events = await store.list_events(after=0, limit=10_000)
    assert [event.number for event in events] == list(range(1, 401))
    assert await store.count_jobs() == {(ACME, State.SCHEDULED): 400}
    await store.close()


async def test_close_waits_for_a_scan_whose_caller_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path / "plane.db")
    await store.open()
    under_way, may_end = threading.Event(), threading.Event()

    def last(*_: Any) -> bool:
        under_way.set()
        return may_end.wait(30)

    def slow(reads: Reads, *_: Any) -> Any:
        connection: apsw.Connection = reads.execute.__self__  # type: ignore[attr-defined]
        connection.create_scalar_function("last", last)
        return reads.execute("SELECT last()").fetchall()

    monkeypatch.setattr(Reads, "list_effects", slow)
    asking = asyncio.create_task(store.list_effects(ACME))
    await asyncio.to_thread(under_way.wait, 30)
    asking.cancel()
    await asyncio.wait([asking])

    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing

    assert asking.cancelled()


async def test_opening_that_is_cancelled_leaves_no_writer_behind(tmp_path: Path) -> None:
    """Joining the file goes on in its thread. Nobody closes a store that was not opened."""
    path, before = tmp_path / "plane.db", {*threading.enumerate()}
    store = made(path)
    await store.open()
    await store.close()
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    blocker.execute("ROLLBACK")
    blocker.close()
    with pytest.raises(asyncio.CancelledError):
        await opening

    await asyncio.get_running_loop().shutdown_default_executor()  # whatever was begun has ended
    assert {*threading.enumerate()} <= before
