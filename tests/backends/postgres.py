"""Postgres: a private server for the whole test run, a schema per test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import servers
from flow.kept_sessions import KeptSessions
from plane.postgres_schemas import empty_schema, fresh_schema, server_url

from backends import NEVER_S, Compared, Opened, PlaneStore, Running, Telling

TTL_MS_MIN = 60

_READY = b"Z\0\0\0\5"
_NEWS = (b"A", b"N", b"S")
_KEPT = {"holdfast_migrations", "holdfast_settings"}


def start() -> servers.Server:
    return servers.postgres_server().start()


def url(server: servers.Server, directory: Path) -> str:
    return server.url


class PostgresTurns:
    """A server has answered when it says that it is ready for the next question; to the last word, when it hangs up."""

    def __init__(self) -> None:
        self.is_owed = False
        self.is_in_transaction = False
        self._end = b""

    def sent(self, request: bytes) -> None:
        self.is_owed = True
        self._end = b""

    def received(self, reply: bytes) -> None:
        said = self._end + reply
        self._end = said[-len(_READY) :]
        if (state := ready(said)) is not None:
            self.is_owed = False
            self.is_in_transaction = state != b"I"


def ready(said: bytes) -> bytes | None:
    """The state of the transaction, if the server is ready for the next question. News that came right behind it, for one that listens
    or of a setting, do not change that."""
    at = said.rfind(_READY)
    after = at + len(_READY) + 1
    if at < 0 or after > len(said):
        return None
    while after < len(said):
        if said[after : after + 1] not in _NEWS:
            return None
        begun = said[after + 1 : after + 5]
        after += 1 + (int.from_bytes(begun, "big") if len(begun) == 4 else 4)
    return said[at + len(_READY) : at + len(_READY) + 1]


@contextmanager
def _told_the_time(running: Running, directory: Path) -> Iterator[Opened]:
    """A real server that tells the story's time."""
    if "HOLDFAST_TEST_POSTGRES_URL" in os.environ:
        pytest.skip("the clock of a server that is not ours cannot be set")
    server_url(running)
    server = running["postgres"]
    assert server is not None
    clock = server.directory / "clock"
    # Found before the server's own, because the search path names that one last.
    first = "".join(
        f"""
        CREATE FUNCTION {name}() RETURNS timestamptz LANGUAGE plpgsql {kind} AS
        $$ BEGIN RETURN to_timestamp(pg_read_file('{clock}')::float8); END $$;
        """
        for name, kind in (("clock_timestamp", "VOLATILE"), ("statement_timestamp", "STABLE"))
    )
    with empty_schema(running, first=first) as url:
        # Planned once, not at each of the first five questions: most sessions of a story do not come any further.
        yield Opened(f"{url},pg_catalog&sslmode=disable&plan_cache_mode=force_generic_plan", clock)


@contextmanager
def _compared(running: Running, directory: Path) -> Iterator[Compared]:
    with fresh_schema(running) as url, psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())

        @contextmanager
        def fresh() -> Iterator[str]:
            yield url
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            emptied = [f"DELETE FROM {name}" for (name,) in tables if name not in _KEPT]
            connection.execute("; ".join(emptied).encode())

        yield Compared(fresh, stays_open=True)


PLANE = PlaneStore(
    stories={
        "postgres": Telling(
            opened=_told_the_time,
            turns=PostgresTurns,
            lent=KeptSessions().dial,
            stand_ins={
                "holdfast.stores.postgres.database.CLOCK_S": NEVER_S,
                "holdfast.locks.stores.postgres.link.LISTEN_PROBE_S": NEVER_S,
            },
        )
    },
    compared=_compared,
    fresh=fresh_schema,
    empty=empty_schema,
)
