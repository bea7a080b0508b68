"""Guarded transactions: the caller's own, the drivers' own, and competing ones."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from fenced_lease import Lease
from guarding import Driver, settled
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, mapped_column

from holdfast.locks.errors import StaleFence
from holdfast.locks.guards import guard

R = "accounts/42"
SYNCHRONOUS = ["sqlite3", "apsw", "psycopg", "sqlalchemy-sqlite", "sqlalchemy-psycopg-session"]
SESSIONS = ["sqlalchemy-sqlite-session", "sqlalchemy-psycopg-session", "sqlalchemy-asyncpg-session"]
ASYNCHRONOUS = ["asyncpg", "psycopg-async", "sqlalchemy-asyncpg"]


async def in_threads(*work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Really at once, also for drivers that block."""
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, each()) for each in work))


# -- the caller's own transaction ------------------------------------------------------------------


async def test_callers_transaction_commits_what_the_guard_admitted(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with driver.begin(conn):
            await driver.add(conn, 1)
            async with guard(Lease(10), conn, R) as db:
                await driver.add(db, 10)
            await driver.add(conn, 100)

        with pytest.raises(StaleFence):
            async with guard(Lease(9), conn, R):
                pass

    assert await driver.balance() == 111


async def test_callers_rollback_takes_mark_and_writes_along(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with guard(Lease(1), conn, R):
            pass
        with pytest.raises(ZeroDivisionError):
            async with driver.begin(conn):
                async with guard(Lease(10), conn, R) as db:
                    await driver.add(db, 1)
                raise ZeroDivisionError

        async with guard(Lease(9), conn, R) as db:
            await driver.add(db, 10)

    assert await driver.balance() == 10


async def test_refused_guard_leaves_the_callers_transaction_alone(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with guard(Lease(10), conn, R):
            pass
        async with driver.begin(conn):
            await driver.add(conn, 1)
            with pytest.raises(StaleFence):
                async with guard(Lease(9), conn, R):
                    pass
            with pytest.raises(ZeroDivisionError):
                async with guard(Lease(11), conn, R) as db:
                    await driver.add(db, 10)
                    raise ZeroDivisionError
            await driver.add(conn, 100)

    assert await driver.balance() == 101


async def test_guards_nest(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with guard(Lease(10), conn, R) as db:
            await driver.add(db, 1)
            with pytest.raises(ZeroDivisionError):
                async with guard(Lease(10), conn, "accounts/43") as inner:
                    await driver.add(inner, 10)
                    raise ZeroDivisionError
            async with guard(Lease(5), conn, "accounts/43") as inner:
                await driver.add(inner, 100)

    assert await driver.balance() == 101


@pytest.mark.parametrize("name", ["asyncpg", "asyncpg-pool", "psycopg-async"])
async def test_drivers_own_transaction_blocks_nest_in_the_body(name: str, make_driver: Callable[[str], Driver]) -> None:
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        for _ in range(2):  # the first time prepares the claim
            async with guard(lease := Lease(10), conn, f"{R}/{_}") as db:
                with pytest.raises(ZeroDivisionError):
                    async with db.transaction():
                        await driver.add(db, 10)
                        raise ZeroDivisionError
                async with db.transaction():
                    await driver.add(db, 1)
        assert lease.next_seq() == 2

    assert await driver.balance() == 2


@pytest.mark.parametrize("name", ["psycopg", "psycopg-autocommit", "sqlite3", "sqlalchemy-sqlite"])
async def test_body_that_commits_by_itself_is_told(name: str, make_driver: Callable[[str], Driver]) -> None:
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        async with guard(Lease(10), conn, R):
            pass
        with pytest.raises(Exception, match="transaction"):
            async with guard(Lease(11), conn, R) as db:
                db.commit()

        async with guard(Lease(12), conn, R) as db:
            await driver.add(db, 1)

    assert await driver.balance() == 1


@pytest.mark.parametrize("name", ["asyncpg", "asyncpg-pool"])
@pytest.mark.parametrize("statement", ["COMMIT", "SELECT * FROM nonsense"])
async def test_body_that_ends_or_breaks_the_transaction_unnoticed_is_told(
    statement: str, name: str, make_driver: Callable[[str], Driver]
) -> None:
    """Postgres answers a COMMIT without a transaction, or of a failed one, as if nothing was wrong."""
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        with pytest.raises(RuntimeError, match="transaction"):
            async with guard(Lease(11), conn, R) as db:
                with suppress(asyncpg.PostgresError):
                    await db.execute(statement)

        async with guard(Lease(12), conn, R) as db, db.transaction():
            await driver.add(db, 1)

    assert await driver.balance() == 1


# -- sessions, which a failed flush leaves waiting for a rollback ----------------------------------


class Mapped(DeclarativeBase):
    pass


class Account(Mapped):
    __tablename__ = "accounts"
    id = mapped_column(sqlalchemy.Integer, primary_key=True)
    balance = mapped_column(sqlalchemy.Integer)


async def add_account_twice(session: Any) -> None:
    session.add(Account(id=42, balance=0))
    await settled(session.flush())


@pytest.fixture(params=SESSIONS)
async def sessions(request: pytest.FixtureRequest, make_driver: Callable[[str], Driver]) -> Driver:
    driver = make_driver(request.param)
    await driver.prepare()
    return driver


async def test_failed_flush_is_undone_with_the_guards_own_transaction(sessions: Driver) -> None:
    async with sessions.connect() as session:
        with pytest.raises(IntegrityError):
            async with guard(Lease(10), session, R) as db:
                await sessions.add(db, 1)
                await add_account_twice(db)

        assert not session.in_transaction()
        async with guard(Lease(9), session, R) as db:
            await sessions.add(db, 10)

    assert await sessions.balance() == 10


async def test_failed_flush_leaves_the_callers_transaction_as_it_was(sessions: Driver) -> None:
    async with sessions.connect() as session:
        async with sessions.begin(session):
            await sessions.add(session, 1)
            with pytest.raises(IntegrityError):
                async with guard(Lease(10), session, R) as db:
                    await sessions.add(db, 10)
                    await add_account_twice(db)
            async with guard(Lease(9), session, R) as db:
                await sessions.add(db, 100)

    assert await sessions.balance() == 101


@pytest.mark.parametrize("nested", [False, True])
async def test_body_that_overlooks_a_failed_flush_is_told(sessions: Driver, *, nested: bool) -> None:
    async with sessions.connect() as session:
        async with sessions.begin(session) if nested else nullcontext():
            with pytest.raises(PendingRollbackError):
                async with guard(Lease(10), session, R) as db:
                    await sessions.add(db, 1)
                    with suppress(IntegrityError):
                        await add_account_twice(db)
            async with guard(Lease(9), session, R) as db:
                await sessions.add(db, 10)

    assert await sessions.balance() == 10


async def test_failed_flush_of_the_callers_own_objects_is_the_callers_to_undo(sessions: Driver) -> None:
    """Setting the savepoint flushes what was added before."""
    async with sessions.connect() as session:
        await sessions.add(session, 1)
        session.add(Account(id=42, balance=0))
        with pytest.raises(IntegrityError):
            async with guard(Lease(10), session, R):
                pytest.fail("the body ran")
        with pytest.raises(PendingRollbackError):
            async with guard(Lease(10), session, R):
                pytest.fail("the body ran")

        await settled(session.rollback())
        async with guard(Lease(9), session, R) as db:
            await sessions.add(db, 10)

    assert await sessions.balance() == 10


# -- with and async with ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_synchronous_connection_is_guarded_by_with(name: str, make_driver: Callable[[str], Driver]) -> None:
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        held = guard(Lease(10), conn, R)
        with held as db:
            db.execute(driver.statement("UPDATE accounts SET balance = 5 WHERE id = 42"))
            held.set_answer("five")
        with pytest.raises(StaleFence), guard(Lease(9), conn, R):
            pass

    assert db is conn
    assert await driver.balance() == 5


@pytest.mark.parametrize("name", ASYNCHRONOUS)
async def test_asynchronous_connection_is_not_guarded_by_with(name: str, make_driver: Callable[[str], Driver]) -> None:
    driver = make_driver(name)
    async with driver.connect() as conn:
        with pytest.raises(TypeError, match="async with"), guard(Lease(10), conn, R):
            pass


def test_unknown_connection_is_refused_with_what_is_served() -> None:
    with pytest.raises(TypeError, match=r"builtins\.object.*asyncpg\.Connection.*sqlite3\.Connection"):
        guard(Lease(10), object(), R)


def test_subclass_of_a_connection_is_served() -> None:
    class Mine(sqlite3.Connection):
        pass

    conn = sqlite3.connect(":memory:", factory=Mine)
    with guard(Lease(10), conn, R) as db:
        assert db is conn
    conn.close()


async def test_autocommit_of_sqlalchemy_is_refused(make_driver: Callable[[str], Driver]) -> None:
    async with make_driver("sqlalchemy-psycopg").connect() as conn:
        with pytest.raises(ValueError, match="AUTOCOMMIT"):
            async with guard(Lease(10), conn.execution_options(isolation_level="AUTOCOMMIT"), R):
                pass


# -- at once ---------------------------------------------------------------------------------------


async def test_missing_table_is_created_by_two_at_once(driver: Driver) -> None:
    async def write(name: str) -> None:
        async with driver.connect() as conn, guard(Lease(10), conn, name) as db:
            await driver.add(db, 1)

    await in_threads(lambda: write("a"), lambda: write("b"), lambda: write("c"))

    assert await driver.balance() == 3


async def test_competing_holders_lose_no_update(driver: Driver) -> None:
    """Read, then write what was read plus one, by two who take the resource from each other."""
    fences = itertools.count(1)
    accepted: list[int] = []

    async def compete() -> None:
        async with driver.connect() as conn:
            for _ in range(20):
                try:
                    async with guard(Lease(next(fences)), conn, R) as db:
                        balance = await driver.read(db)
                        await driver.run(db, f"UPDATE accounts SET balance = {balance + 1} WHERE id = 42")
                except StaleFence:
                    continue
                accepted.append(balance)

    await in_threads(compete, compete)

    assert sorted(accepted) == list(range(len(accepted)))
    assert await driver.balance() == len(accepted) >= 20


async def test_competitor_waits_until_the_holder_commits(driver: Driver) -> None:
    async with driver.connect() as conn:
        async with guard(Lease(1), conn, R):
            pass
    order: list[str] = []
    loop = asyncio.get_running_loop()
    claimed = asyncio.Event()

    async def hold() -> None:
        async with driver.connect() as conn, guard(Lease(2), conn, R) as db:
            loop.call_soon_threadsafe(claimed.set)
            await asyncio.sleep(0.1)
            await driver.add(db, 1)
            order.append("older is done")

    async def take_over() -> None:
        async with driver.connect() as conn, guard(Lease(3), conn, R) as db:
            order.append("newer has begun")
            assert await driver.read(db) == 1

    async def second() -> None:
        await claimed.wait()
        await asyncio.to_thread(asyncio.run, take_over())

    await asyncio.gather(asyncio.to_thread(asyncio.run, hold()), second())

    assert order == ["older is done", "newer has begun"]


# -- Postgres' prepared claim ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "psycopg-async"])
async def test_claim_survives_loss_of_prepared_statements_and_of_the_table(
    name: str, make_driver: Callable[[str], Driver]
) -> None:
    """Poolers change the server's session under a client; operators drop tables."""
    driver = make_driver(name)
    await driver.prepare()
    async with driver.connect() as conn:
        for statement in ["SELECT 1", "DEALLOCATE ALL", "DROP TABLE holdfast_fences", "SELECT 1"]:
            lease = Lease(10)
            async with guard(lease, conn, f"{R}/{statement}") as db:
                await driver.add(db, 1)
            if statement == "DEALLOCATE ALL" and name == "asyncpg":
                await conn.reload_schema_state()
            async with driver.begin(conn):
                await driver.run(conn, statement)

    assert await driver.balance() == 4
