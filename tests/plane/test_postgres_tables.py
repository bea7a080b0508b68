"""The tables of the control plane in Postgres: how they come about, what reading them costs; and its clock."""

# ruff: noqa: F811  (a fixture is found by the name of a parameter)

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
from harness import eventually

from holdfast.core.job import JobId
from holdfast.core.record import Kind
from holdfast.core.states import Event, State
from holdfast.core.topic import Topic, Topics
from holdfast.errors import StoreUnavailable
from holdfast.locks.errors import StoreRefused
from holdfast.locks.runtime import SYSTEM
from holdfast.locks.stores import open_store as open_lock_store
from holdfast.ports import JobFilter, Note, RecordChange, Submission, Transaction
from holdfast.stores import inspect_store
from holdfast.stores.ledger import REVIEW_MAX
from holdfast.stores.postgres.rows import arrays_of, rows_of
from holdfast.stores.server_clock import ServerClock
from plane.jobs import ACME, a_job, a_record, bare, new, recoverable, running, sending, stepped, submitted
from plane.postgres_schemas import PLANES, admin, opened, several, url, value  # noqa: F401

# -- tables ----------------------------------------------------------------------------------------


async def test_database_that_cannot_keep_every_name_is_refused_by_plane_doctor_and_locks(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    await admin.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        latin = urlunsplit(urlsplit(url)._replace(path="/latin", query=""))
        locks = open_lock_store(latin, holder="h", prefix="p:", runtime=SYSTEM)
        for use in (opened(latin).__aenter__, lambda: inspect_store(latin, runtime=SYSTEM), locks.open):
            with pytest.raises((StoreUnavailable, StoreRefused), match=r"LATIN1.*ENCODING 'UTF8'"):
                await use()
    finally:
        await admin.execute("DROP DATABASE latin WITH (FORCE)")


async def test_schema_that_the_role_may_not_use_is_not_said_to_be_missing_alone(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    await admin.execute("CREATE ROLE stranger LOGIN")
    try:
        as_stranger = urlsplit(url)._replace(netloc=f"stranger@127.0.0.1:{urlsplit(url).port}")
        with pytest.raises(StoreUnavailable, match="GRANT USAGE"):
            await opened(urlunsplit(as_stranger)).__aenter__()
    finally:
        await admin.execute("DROP ROLE stranger")


async def test_tables_of_a_newer_kind_are_refused_unless_they_only_add(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as store:
        await submitted(store)
    await admin.execute("INSERT INTO holdfast_migrations (version, oldest) VALUES (98, 1)")
    await admin.execute("ALTER TABLE holdfast_jobs ADD COLUMN later text NOT NULL DEFAULT 'x'")
    async with opened(url) as store:
        assert await submitted(store)

    await admin.execute("INSERT INTO holdfast_migrations (version, oldest) VALUES (99, 99)")

    with pytest.raises(StoreUnavailable, match="upgrade this process first"):
        async with opened(url):
            pass


async def test_migrations_are_applied_once(url: str, admin: psycopg.AsyncConnection[Any]) -> None:
    for _ in range(2):
        async with opened(url):
            pass

    rows = await (await admin.execute("SELECT version, oldest FROM holdfast_migrations")).fetchall()
    assert rows == [(1, 1), (2, 1)]


async def test_rows_of_a_statement_are_those_that_were_given(url: str) -> None:
    """Arrays travel as text, in which braces, quotes, backslashes and NULL mean something."""
    names = ("id", "payload", "priority", "fence", "created_at", "deadline", "due", "cancel_requested", "error")
    deadlines = (None, 1731845000.123456, 1e300, -1e-300)
    dues = (math.inf, -math.inf, None)
    texts = [
        "",
        "NULL",
        "null",
        'a "quoted" {thing}',
        "back\\slash\\",
        ",",
        " ",
        "\n\t",
        "日本 🦑",
        "\\x00",
        '\\"',
        "{}",
    ]
    rows = [
        (
            *(text, text.encode() + b"\0\xff", -n, 2**62 + n, 1e-9 * n + n),
            *(deadlines[n % 4], dues[n % 3], n % 2 == 0, None if n % 3 else text),
        )
        for n, text in enumerate(texts)
    ]
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetch(f"SELECT * FROM {rows_of(names)}", *arrays_of(names, rows))
        none = await connection.fetch(f"SELECT * FROM {rows_of(names)}", *arrays_of(names, []))
    finally:
        await connection.close()

    assert [tuple(row) for row in found] == rows
    assert none == []


async def test_topics_that_have_changed_are_taken_over_for_jobs_that_are_there(url: str) -> None:
    async with opened(url) as store:
        await store.submit([Submission(job=a_job(since=store.now()), key=None, digest="") for _ in range(REVIEW_MAX)])
        waiting = await submitted(store)
        change = sending(store, waiting)
        await store.apply([change])
    eager = Topics((Topic(name="*", dispatch_timeout_s=0.001),))
    async with opened(url, topics=eager) as store:
        await asyncio.sleep(0.01)

        assert await recoverable(store) == [change.after]


async def test_finished_jobs_cost_the_living_nothing(url: str, admin: psycopg.AsyncConnection[Any]) -> None:
    """No statement of the plane's work reads the table of jobs as a whole, or an index in which finished jobs are."""
    async with opened(url) as store:
        job = await submitted(store)
        await admin.execute(
            "INSERT INTO holdfast_jobs OVERRIDING SYSTEM VALUE SELECT (x.job).* FROM ("
            "SELECT jsonb_populate_record(j, jsonb_build_object('id', 'f' || n, 'state', 'SUCCEEDED', 'look_at', null)) "
            "AS job FROM holdfast_jobs j, generate_series(1, 3000) n) x"
        )
        await admin.execute("SELECT pg_stat_force_next_flush()")
        before = await value(admin, _ROWS_READ)
        for _ in range(10):
            assert await store.list_dispatchable(limit=100) == [job]
            assert await recoverable(store) == []
            assert await store.list_in_hand("w1") == []
            assert await store.count_active() == {}
            assert await store.count_topics() == {(ACME, job.topic): 1}
            assert await store.list_jobs(ACME, JobFilter(state=State.SCHEDULED), before=None, limit=10) == [job]
            for session in ("", "s"):
                working = await running(store, fence=7, session=session)
                assert await store.list_session(ACME, "s") == ([bare(working)] if session else [])
                await store.prepare_effect(working.id, 7, "charge", idempotent=True)
                await store.commit_effect(working.id, 7, "charge", None)
                await store.renew_leases([(working.id, 7)])
                working = await store.get_job(ACME, working.id)
                await stepped(store, working, Event.FAIL, dead_letter="x")
    await admin.execute("SELECT pg_stat_force_next_flush()")

    async def flushed() -> bool:
        return bool(await value(admin, _ROWS_READ) != before)

    with suppress(AssertionError):
        await eventually(flushed, within_s=3)
    assert await value(admin, _ROWS_READ) - before < 2000


async def test_those_who_wait_in_a_session_cost_its_next_write_nothing(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    """However many they are: what is written is written under the lock that all planes wait for."""
    async with opened(url) as store:
        await store.submit([Submission(job=a_job(session="s"), key=None, digest="") for _ in range(2000)])
    await admin.execute("VACUUM ANALYZE holdfast_jobs")
    await admin.execute("SELECT pg_stat_force_next_flush()")
    before = await value(admin, _ROWS_READ)
    async with opened(url) as store:
        last = [await submitted(store, session="s") for _ in range(10)]
        [first] = await store.list_dispatchable(limit=10)
        working = await stepped(store, first, Event.DISPATCH, worker="w1", fence=7)
        assert await store.list_dispatchable(limit=10) == []
        await stepped(store, working, Event.CANCEL)
        [second] = await store.list_dispatchable(limit=10)
        assert second not in (first, *last)

    async def flushed() -> bool:
        return bool(await value(admin, _ROWS_READ) != before)

    with suppress(AssertionError):
        await eventually(flushed, within_s=3)
    assert await value(admin, _ROWS_READ) - before < 500


_ROWS_READ = (
    "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables "
    "WHERE relname = 'holdfast_jobs' AND schemaname = current_schema()"
)


# -- its clock -------------------------------------------------------------------------------------


async def test_planes_agree_on_the_time_which_is_the_servers(url: str, admin: psycopg.AsyncConnection[Any]) -> None:
    async with several(url) as stores:
        server_s = float(await value(admin, "SELECT extract(epoch FROM clock_timestamp())"))

        for store in stores:
            assert store.now() == pytest.approx(server_s, abs=1.0)


async def test_clock_that_came_up_behind_does_not_go_back_before_what_has_happened(
    url: str, admin: psycopg.AsyncConnection[Any]
) -> None:
    async with opened(url) as store:
        await store.add_notes([Note(ACME, JobId(""), "policy.published", {})])
    await admin.execute("UPDATE holdfast_events SET at = at + 3600")
    later = await value(admin, "SELECT max(at) FROM holdfast_events")

    async with opened(url) as store:
        assert store.now() >= later


async def test_clock_is_set_by_the_answer_that_was_quickest() -> None:
    steady = [100.0]
    clock = ServerClock(lambda: steady[0])
    slow = iter([(0.1, 1.8), (1.0, 0.0), (0.05, 0.05), (0.0, 0.0)])

    async def look() -> float:
        there_s, back_s = next(slow)
        steady[0] += there_s
        shown = 900.0 + steady[0]
        steady[0] += back_s
        return shown

    await clock.start(look)

    assert clock.now() == pytest.approx(900.0 + steady[0])
    assert len(list(slow)) == 1, "it was asked again although an answer was quick"


async def test_clock_follows_the_server_slowly_and_never_goes_back() -> None:
    steady = [100.0]
    clock = ServerClock(lambda: steady[0])

    async def look() -> float:
        return 1000.0

    await clock.start(look)

    steady[0] += 10
    clock.learn(1005.0, asked_at=110.0)  # the server has been set back by five seconds
    shown = [clock.now()]
    for _ in range(3):
        steady[0] += 1
        shown.append(clock.now())

    assert shown == sorted(shown)
    assert clock.now() == pytest.approx(1013.0 - 0.01)

    steady[0] += 10
    clock.learn(2000.0, asked_at=steady[0])
    assert clock.now() == pytest.approx(1023.0 - 0.01 + 0.013)


async def test_records_of_a_batch_are_written_together(url: str) -> None:
    """Many callers, few transactions: as many commits as there were turns, not as there were callers."""
    async with opened(url) as store:
        transactions = [new(a_record(id=f"r{n}")) for n in range(100)]
        await asyncio.gather(*(store.transact([each]) for each in transactions))

        assert len(await store.list_records(Kind.RUN, ACME, limit=200)) == 100
        repeated: RecordChange = transactions[0].records[0]
        assert await store.transact([Transaction(records=[repeated])]) == [False]
