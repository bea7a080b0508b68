"""What the tests of guards share: a lease as a guard sees it, and every SQL driver that is served."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import isawaitable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import servers
import sqlalchemy
from sqlalchemy.orm import Session


async def settled(outcome: Any) -> Any:
    return await outcome if isawaitable(outcome) else outcome


@dataclass
class Driver:
    """A driver under test, on a database of its own."""

    connect: Callable[[], AbstractAsyncContextManager[Any]]
    begin: Callable[[Any], AbstractAsyncContextManager[Any]]
    """The caller's own transaction."""
    statement: Callable[[str], Any] = str

    async def run(self, db: Any, statement: str) -> Any:
        return await settled(db.execute(self.statement(statement)))

    async def add(self, db: Any, amount: int) -> None:
        await self.run(db, f"UPDATE accounts SET balance = balance + {amount} WHERE id = 42")

    async def read(self, db: Any) -> int:
        if hasattr(db, "fetchval"):
            return int(await db.fetchval("SELECT balance FROM accounts WHERE id = 42"))
        row = await settled((await self.run(db, "SELECT balance FROM accounts WHERE id = 42")).fetchone())
        return int(row[0])

    async def balance(self) -> int:
        """As another connection sees it: committed."""
        async with self.connect() as db:
            return await self.read(db)

    async def prepare(self) -> None:
        async with self.connect() as db, self.begin(db):
            await self.run(db, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)")
            await self.run(db, "INSERT INTO accounts VALUES (42, 0)")


def sqlite3_driver(path: Path, options: dict[str, Any]) -> Driver:
    @asynccontextmanager
    async def connect() -> AsyncIterator[sqlite3.Connection]:
        conn = sqlite3.connect(path / "db", timeout=20, **options)
        conn.row_factory = sqlite3.Row
        yield conn
        conn.close()

    return Driver(connect, begin_by_statement)


def apsw_driver(path: Path) -> Driver:
    @asynccontextmanager
    async def connect() -> AsyncIterator[apsw.Connection]:
        conn = apsw.Connection(str(path / "db"))
        conn.set_busy_timeout(20_000)
        yield conn
        conn.close()

    return Driver(connect, begin_by_statement)


@asynccontextmanager
async def begin_by_statement(conn: Any) -> AsyncIterator[None]:
    conn.execute("BEGIN")
    try:
        yield
    except BaseException:
        conn.execute("ROLLBACK")
        raise
    conn.execute("COMMIT")


def asyncpg_driver(url: str, schema: str, *, pooled: bool) -> Driver:
    settings = {"search_path": schema}

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        if pooled:
            async with asyncpg.create_pool(url, server_settings=settings, min_size=1) as pool, pool.acquire() as conn:
                yield conn
        else:
            conn = await asyncpg.connect(url, server_settings=settings)
            yield conn
            await conn.close()

    return Driver(connect, lambda conn: conn.transaction())


def psycopg_driver(url: str, schema: str, *, autocommit: bool) -> Driver:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        with psycopg.connect(url, options=f"-csearch_path={schema}", autocommit=autocommit) as conn:
            yield conn
            assert conn.autocommit is autocommit

    @asynccontextmanager
    async def begin(conn: psycopg.Connection) -> AsyncIterator[None]:
        with conn.transaction():
            yield

    return Driver(connect, begin)


def psycopg_async_driver(url: str, schema: str) -> Driver:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(url, options=f"-csearch_path={schema}") as conn:
            yield conn

    return Driver(connect, lambda conn: conn.transaction())


def sqlalchemy_driver(url: str, connect_args: dict[str, Any], *, session: bool) -> Driver:
    engine = sqlalchemy.create_engine(url, connect_args=connect_args, poolclass=sqlalchemy.NullPool)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        with Session(engine) if session else engine.connect() as conn:
            yield conn
        engine.dispose()

    @asynccontextmanager
    async def begin(conn: Any) -> AsyncIterator[None]:
        with conn.begin():
            yield

    return Driver(connect, begin, sqlalchemy.text)


def sqlalchemy_async_driver(url: str, connect_args: dict[str, Any], *, session: bool) -> Driver:
    for module in ["greenlet", "aiosqlite"] if "aiosqlite" in url else ["greenlet"]:
        if find_spec(module) is None:
            servers.unavailable("SQLAlchemy's asyncio", f"{module} is not installed")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        engine = create_async_engine(url, connect_args=connect_args, poolclass=sqlalchemy.NullPool)
        async with AsyncSession(engine) if session else engine.connect() as conn:
            yield conn
        await engine.dispose()

    return Driver(connect, lambda conn: conn.begin(), sqlalchemy.text)


Postgres = Callable[[], tuple[str, str]]
"""Makes an empty schema: the URL of the server, and the schema's name."""

DRIVERS: dict[str, Callable[[Path, Postgres], Driver]] = {
    "sqlite3": lambda path, pg: sqlite3_driver(path, {}),
    "sqlite3-autocommit": lambda path, pg: sqlite3_driver(path, {"isolation_level": None}),
    "apsw": lambda path, pg: apsw_driver(path),
    "asyncpg": lambda path, pg: asyncpg_driver(*pg(), pooled=False),
    "asyncpg-pool": lambda path, pg: asyncpg_driver(*pg(), pooled=True),
    "psycopg": lambda path, pg: psycopg_driver(*pg(), autocommit=False),
    "psycopg-autocommit": lambda path, pg: psycopg_driver(*pg(), autocommit=True),
    "psycopg-async": lambda path, pg: psycopg_async_driver(*pg()),
    "sqlalchemy-sqlite": lambda path, pg: sqlalchemy_driver(f"sqlite:///{path}/db", {"timeout": 20}, session=False),
    "sqlalchemy-sqlite-session": lambda path, pg: sqlalchemy_driver(
        f"sqlite:///{path}/db", {"timeout": 20}, session=True
    ),
    "sqlalchemy-psycopg": lambda path, pg: sqlalchemy_driver(*through("psycopg", *pg()), session=False),
    "sqlalchemy-psycopg-session": lambda path, pg: sqlalchemy_driver(*through("psycopg", *pg()), session=True),
    "sqlalchemy-asyncpg": lambda path, pg: sqlalchemy_async_driver(*through("asyncpg", *pg()), session=False),
    "sqlalchemy-asyncpg-session": lambda path, pg: sqlalchemy_async_driver(*through("asyncpg", *pg()), session=True),
    "sqlalchemy-aiosqlite": lambda path, pg: sqlalchemy_async_driver(
        f"sqlite+aiosqlite:///{path}/db", {"timeout": 20}, session=False
    ),
}


def through(driver: str, url: str, schema: str) -> tuple[str, dict[str, Any]]:
    by_driver: dict[str, dict[str, Any]] = {
        "asyncpg": {"server_settings": {"search_path": schema}},
        "psycopg": {"options": f"-csearch_path={schema}"},
    }
    return url.replace("postgresql://", f"postgresql+{driver}://"), by_driver[driver]
