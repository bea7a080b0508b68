"""A schema of its own for each test, in the one Postgres server of the test run; and stores on it."""

from __future__ import annotations

import asyncio
import os
import select
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import servers

from holdfast.core.topic import Topics
from holdfast.locks.runtime import SYSTEM
from holdfast.stores import StoreWithBus, open_store

PLANES = 3

_idle: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
"""By server and by what was done first, the schemas that wait for the next test with their tables made and empty."""
_tidiers: dict[str, psycopg.Connection[Any]] = {}
"""By server, the connection on which tables are emptied."""
_EMPTY = """
    DO $$
    DECLARE it record;
    BEGIN
        FOR it IN SELECT relkind AS kind, oid::regclass AS name FROM pg_class
                  WHERE relnamespace = '{schema}'::regnamespace AND relname NOT IN ('holdfast_migrations', 'holdfast_store')
        LOOP
            CASE it.kind
                WHEN 'r' THEN EXECUTE format('DELETE FROM %s', it.name);
                WHEN 'S' THEN EXECUTE format('ALTER SEQUENCE %s RESTART', it.name);
                ELSE NULL;
            END CASE;
        END LOOP;
    END $$
"""


@contextmanager
def fresh_schema(running: dict[str, servers.Server | None]) -> Iterator[str]:
    """The URL of a schema in which there is nothing yet."""
    server = server_url(running)
    with psycopg.connect(server, autocommit=True) as connection:
        name = _create(connection)
        try:
            yield _within(server, name)
        finally:
            connection.execute("SET client_min_messages = error")  # it would tell of each table
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


@contextmanager
def empty_schema(running: dict[str, servers.Server | None], *, first: str = "") -> Iterator[str]:
    """The URL of a schema in which there is nothing but perhaps empty tables: making and dropping them takes three
    times as long as a test, so they are handed on. `first` is done in a new one before anything else."""
    if "HOLDFAST_TEST_POSTGRES_URL" in os.environ:  # nobody would drop them there
        with fresh_schema(running) as url:
            yield url
        return
    server = server_url(running)
    idle = _idle[server, first]
    name = idle.pop() if idle else _create(_tidying(server), first)
    yield _within(server, name)
    _tidying(server).execute(_EMPTY.format(schema=name).encode())
    idle.append(name)


def _tidying(server: str) -> psycopg.Connection[Any]:
    """A connection that knows the tables: to learn them takes longer than to empty them."""
    connection = _tidiers.get(server)
    if connection is not None:
        if not select.select([connection], [], [], 0)[0]:
            return connection
        connection.close()  # the server has said something unasked: that it has ended
    connection = _tidiers[server] = psycopg.connect(server, autocommit=True)
    return connection


def _create(connection: psycopg.Connection[Any], first: str = "") -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    connection.execute(f"CREATE SCHEMA {name}; SET search_path = {name}; {first}".encode())
    return name


def _within(server: str, schema: str) -> str:
    return f"{server}{'&' if '?' in server else '?'}search_path={schema}"


def server_url(running: dict[str, servers.Server | None]) -> str:
    elsewhere = os.environ.get("HOLDFAST_TEST_POSTGRES_URL")
    if elsewhere:
        return elsewhere
    if "postgres" not in running:
        try:
            running["postgres"] = servers.postgres_server().start()
        except (FileNotFoundError, RuntimeError) as why:
            servers.unavailable("postgres", str(why))
    server = running["postgres"]
    assert server is not None
    return server.url


@pytest.fixture
def url(running: dict[str, servers.Server | None]) -> Iterator[str]:
    with fresh_schema(running) as url:
        yield url


@asynccontextmanager
async def opened(url: str, *, topics: Topics | None = None, timeout_s: float = 10.0) -> AsyncIterator[StoreWithBus]:
    store = open_store(url, topics=topics or Topics(), runtime=SYSTEM, timeout_s=timeout_s)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def several(url: str) -> AsyncIterator[list[StoreWithBus]]:
    """As many planes, opened at once on a database in which there is nothing yet."""
    async with AsyncExitStack() as stack:
        yield await asyncio.gather(*(stack.enter_async_context(opened(url)) for _ in range(PLANES)))


@pytest.fixture
async def admin(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    server, _, schema = url.partition("?search_path=")
    connection = await psycopg.AsyncConnection.connect(server, autocommit=True)
    async with connection:
        await connection.execute(f"SET search_path = {schema}".encode())
        yield connection


async def value(admin: psycopg.AsyncConnection[Any], sql: str) -> Any:
    row = await (await admin.execute(sql.encode())).fetchone()
    return None if row is None else row[0]
