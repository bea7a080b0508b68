"""What the tests of the Postgres store share: a schema of a test's own, and statements beside the store."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import asyncpg
import psycopg
import servers
from harness import Backend, make_backend

OURS = "application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
"""Which connections of `pg_stat_activity` are those of this test."""
A, B, C = "a" * 32, "b" * 32, "c" * 32
LONG = 60_000


@asynccontextmanager
async def own_schema(running: dict[str, servers.Server | None], tmp_path: Path) -> AsyncIterator[Backend]:
    """The shared server, with a schema of this test's own, whose name its connections bear as well: those of the last
    test may still be there."""
    shared = make_backend("postgres", running, tmp_path)
    schema = f"t{uuid.uuid4().hex[:12]}"
    await run(shared.url, f"CREATE SCHEMA {schema}")
    url = f"{shared.url}?application_name={schema}&search_path={schema}"
    yield Backend("postgres", url, shared.ttl_ms, shared.server, shared.prefix)
    await run(shared.url, f"DROP SCHEMA {schema} CASCADE")


async def run(url: str, sql: str, *arguments: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql, *arguments))
    finally:
        await connection.close()


@contextmanager
def full_of_notifications() -> Iterator[str]:
    """The URL of a server whose queue of notifications is full: somebody listens, and keeps a transaction open."""
    server = servers.postgres_server("max_notify_queue_pages=64").start()
    try:
        with (
            psycopg.connect(server.url, autocommit=True) as listens,
            psycopg.connect(server.url, autocommit=True) as talks,
        ):
            listens.execute("LISTEN elsewhere")
            listens.execute("BEGIN; SELECT 1")
            with suppress(psycopg.errors.ProgramLimitExceeded):
                while True:
                    talks.execute("SELECT pg_notify('elsewhere', n || repeat('x', 7000)) FROM generate_series(1, 20) n")
            yield server.url
    finally:
        server.remove()
