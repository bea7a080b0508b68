"""What is special to records and sessions in SQLite: older files, crashes, and what a write may cost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw

from holdfast.core.job import JobId
from holdfast.core.record import Kind
from holdfast.core.retention import Limits
from holdfast.core.states import Event
from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.ports import Note, Submission, Transaction
from holdfast.stores import open_store
from holdfast.stores.sqlite.file import PLANE_VERSION
from holdfast.stores.sqlite.store import SqliteStore
from plane.jobs import ACME, a_job, bare, dispatched, removing, replacing, running, sending, stepped, stored, submitted

TO_VERSION_1 = """
    DROP TABLE holdfast_records;
    DROP INDEX holdfast_jobs_scheduled;
    DROP INDEX holdfast_jobs_by_run;
    DROP INDEX holdfast_jobs_in_session;
    DROP INDEX holdfast_jobs_first_of_session;
    DROP INDEX holdfast_events_by_run;
    ALTER TABLE holdfast_jobs DROP COLUMN actor;
    ALTER TABLE holdfast_jobs DROP COLUMN session;
    ALTER TABLE holdfast_jobs DROP COLUMN run;
    ALTER TABLE holdfast_jobs DROP COLUMN step;
    ALTER TABLE holdfast_jobs DROP COLUMN decision;
    ALTER TABLE holdfast_jobs DROP COLUMN approval;
    ALTER TABLE holdfast_jobs DROP COLUMN behind;
    ALTER TABLE holdfast_events DROP COLUMN run;
    CREATE INDEX holdfast_jobs_scheduled ON holdfast_jobs (priority, tenant, not_before, id) WHERE state = 'SCHEDULED';
    UPDATE holdfast_meta SET value = 1 WHERE name = 'plane_version';
"""


def made(path: Path) -> SqliteStore:
    store = open_store(f"sqlite:///{path}", topics=Topics(), runtime=SYSTEM)
    assert isinstance(store, SqliteStore)
    return store


async def test_file_of_the_first_version_is_upgraded_and_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "plane.db"
    store = made(path)
    await store.open()
    working, waiting = await dispatched(store), await submitted(store, payload=b"x" * 5000)
    events = await store.list_events(after=0, limit=10)
    await store.close()
    with apsw.Connection(str(path)) as older:
        older.execute(TO_VERSION_1)
    older.close()

    for _ in range(2):
        await store.open()
        assert await store.find_jobs([working.id, waiting.id]) == [working, waiting]
        assert await store.list_dispatchable(limit=10) == [waiting]
        assert await store.list_events(after=0, limit=10) == events
        await store.close()
    await store.open()
    first, behind = await submitted(store, session="s", run="r"), await submitted(store, session="s")
    assert await store.list_dispatchable(limit=10) == [waiting, first]
    assert bare(behind) in await store.list_session(ACME, "s")
    assert len(await store.list_events(after=0, limit=10, run="r")) == 1
    await stored(store)
    await store.close()
    with apsw.Connection(str(path)) as upgraded:
        [(version,)] = upgraded.execute("SELECT value FROM holdfast_meta WHERE name = 'plane_version'")
        [(damage,)] = upgraded.execute("PRAGMA integrity_check")
    upgraded.close()
    assert (version, damage) == (PLANE_VERSION, "ok")


async def test_process_that_dies_leaves_no_half_of_a_transaction(tmp_path: Path) -> None:
    """Each version of the run comes with one job and one event: killed at any moment, the three agree."""
    path = tmp_path / "plane.db"
    script = (
        "import asyncio, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from plane.jobs import a_job, a_record, new, replacing\n"
        "from holdfast.core.job import JobId\n"
        "from holdfast.core.topic import Topics\n"
        "from holdfast.locks.runtime import SYSTEM\n"
        "from holdfast.ports import Note, Submission, Transaction\n"
        "from holdfast.stores import open_store\n"
        "async def main():\n"
        "    store = open_store(f'sqlite:///{sys.argv[1]}', topics=Topics(), runtime=SYSTEM)\n"
        "    await store.open()\n"
        "    run = a_record(id='r')\n"
        "    await store.transact([new(run)])\n"
        "    while True:\n"
        "        change = replacing(run)\n"
        "        await store.transact([Transaction(\n"
        "            submissions=[Submission(job=a_job(run='r'), key=None, digest='')], records=[change],\n"
        "            notes=[Note(run.tenant, JobId(''), 'step.started', {}, run='r')])])\n"
        "        run = change.after\n"
        "        print(run.version, flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), str(Path(__file__).parent.parent), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(40):
        acknowledged = int(await process.stdout.readline())
    process.kill()
    await process.wait()

    store = made(path)
    await store.open()
    version = (await store.get_record(Kind.RUN, ACME, "r")).version
    kinds = [event.kind for event in await store.list_events(after=0, limit=100_000, run="r")]
    await store.close()
    assert version >= acknowledged
    assert (kinds.count("job.submitted"), kinds.count("step.started")) == (version - 1, version - 1)


async def test_no_write_of_records_or_sessions_walks_through_a_table(tmp_path: Path) -> None:
    """One that does would hold up every renewal of the file."""
    store = made(tmp_path / "plane.db")
    await store.open()
    connection = store._file._part.writer._connection
    assert connection is not None
    seen: dict[str, Any] = {}

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen[sql] = bindings
        return True

    connection.exec_trace = trace
    run = await stored(store, state="succeeded")
    await stored(store, kind=Kind.STEP, parent=run.id)
    await stored(store, kind=Kind.POST, state="delivered")
    ended = await stepped(store, await running(store, session="s", run=run.id), Event.SUCCEED)
    waiting = await submitted(store, session="s", run=run.id)
    [result] = await store.list_due(Kind.RESULT, limit=1)
    alone = Submission(job=a_job(session="t"), key="k", digest="", alone=True)
    change = sending(store, waiting)
    notes = [Note(ACME, JobId(""), "run.paused", {}, run=run.id), Note(ACME, ended.id, "attempt.refused", {})]
    records = [replacing(run), removing(result)]
    whole = Transaction(submissions=[alone], changes=[change], records=records, notes=notes)
    assert await store.transact([whole]) == [True]
    await stepped(store, change.after, Event.CANCEL)
    await submitted(store)
    place: int | None = 0
    while place is not None:
        _, place = await store.prune(Limits(store.now() + 1, store.now() + 1), after=place)
    connection.exec_trace = None
    plans = {
        sql: [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        for sql, bindings in seen.items()
        if sql.startswith(("SELECT", "UPDATE", "DELETE"))
    }
    left = await store.find_records(Kind.RUN, ACME, [run.id])
    await store.close()

    assert left == [None]
    assert len(plans) >= 20
    walks = {
        sql: plan
        for sql, plan in plans.items()
        if any(step.startswith("SCAN holdfast_") for step in plan) and "ORDER BY number DESC LIMIT 1" not in sql
    }
    assert walks == {}


async def test_lists_of_records_go_by_an_index(tmp_path: Path) -> None:
    store = made(tmp_path / "plane.db")
    await store.open()
    reader, scanner = store._file._reader, store._file._scanner
    assert reader is not None
    assert scanner is not None
    seen: dict[str, Any] = {}

    def trace(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen[sql] = bindings
        return True

    reader.exec_trace = scanner.exec_trace = trace
    for kind in Kind:
        await store.list_records(kind, ACME, limit=5)
        await store.list_records(kind, ACME, parent="p", limit=5)
        await store.list_records(kind, ACME, parent="p", before="x", limit=5)
        await store.list_due(kind, limit=5)
        if kind not in (Kind.STEP, Kind.RESULT):
            await store.list_records(kind, ACME, state="s", before="", limit=5)
            await store.count_records(kind, ACME, states=("s",))
    await store.list_session(ACME, "s")
    reader.exec_trace = None
    plans = {
        sql: " ".join(step[3] for step in reader.execute(f"EXPLAIN QUERY PLAN {sql}", bindings))
        for sql, bindings in seen.items()
        if sql.startswith("SELECT")
    }
    await store.close()

    assert len(plans) >= 7
    assert [sql for sql, plan in plans.items() if "SCAN" in plan] == []
    sorted_in_memory = [sql for sql, plan in plans.items() if "TEMP B-TREE" in plan]
    assert all("holdfast_jobs" in sql for sql in sorted_in_memory), sorted_in_memory
