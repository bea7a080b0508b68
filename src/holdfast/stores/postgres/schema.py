"""The plane's tables in Postgres: made, brought up to date, and refused where they are of a newer kind.

Each version is a migration, applied once, in order, and noted in `holdfast_migrations`. A migration only adds, so
that the release before goes on working on what it finds; `oldest` is the oldest version of a program that does.
"""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import asyncpg

from holdfast.core.topic import Topics
from holdfast.errors import StoreUnavailable
from holdfast.stores.ledger import REVIEW_MAX, look_at
from holdfast.stores.postgres.link import STANDBY, answered, refuse_encoding
from holdfast.stores.postgres.rows import SELECT_JOB, arrays_of, rows_of
from holdfast.stores.postgres.writer import LOCK
from holdfast.stores.rows import job_of


class Migration(NamedTuple):
    version: int
    file: str
    oldest: int
    """Programs that know at least this version can work with the tables after it."""


MIGRATIONS = (Migration(1, "tables.sql", oldest=1), Migration(2, "first_of_session.sql", oldest=1))
KNOWN = MIGRATIONS[-1].version

CREATE_S = 60.0
"""Making tables may take longer than a call, and is not broken off for that."""

_FACTS = """
    SELECT pg_is_in_recovery() AS standby, current_schema() AS schema, getdatabaseencoding() AS encoding,
           EXISTS (SELECT FROM pg_class WHERE relname = 'holdfast_migrations' AND pg_table_is_visible(oid)) AS prepared
"""
_MIGRATIONS = """
    CREATE TABLE IF NOT EXISTS holdfast_migrations (
        version int PRIMARY KEY,
        oldest  int NOT NULL,
        at      timestamptz NOT NULL DEFAULT now()
    )
"""
_REVIEW = f"UPDATE holdfast_jobs j SET look_at = x.look_at FROM {rows_of(('id', 'look_at'))} WHERE j.id = x.id"  # noqa: S608
_TOPICS = """
    INSERT INTO holdfast_settings (name, value) VALUES ('topics', $1)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


async def prepare(connection: asyncpg.Connection, subject: str, topics: Topics | None, *, timeout_s: float) -> None:
    """Raises `StoreUnavailable`, or what the driver raises. Without `topics` nothing changes of what is kept there."""
    facts = await answered(connection, connection.fetchrow(_FACTS), timeout_s=timeout_s)
    if facts["standby"]:
        raise _refused(subject, STANDBY)
    refuse_encoding(facts["encoding"], subject)
    if facts["schema"] is None:
        raise _refused(
            subject,
            "no schema of the search_path exists, or this role may not use it: create it, or GRANT USAGE ON SCHEMA … TO this role",
        )
    limit = round(CREATE_S * 1000)
    patience_s = CREATE_S + timeout_s  # the server is to give up first, and say so
    # Whoever fails leaves the transaction as it is: their connection is hung up.
    transaction = connection.transaction(isolation="read_committed")
    await answered(connection, transaction.start(), timeout_s=timeout_s)
    limits = f"SET LOCAL statement_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit}"
    await answered(connection, connection.execute(limits), timeout_s=timeout_s)
    # Several processes may find the tables missing: the first creates them, the others look again.
    turn = connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
    await answered(connection, turn, timeout_s=patience_s)
    await answered(connection, _migrate(connection, subject), timeout_s=patience_s)
    if topics is not None:
        await _adopt_topics(connection, topics, patience_s)
    try:
        # No limit of the server's ends this one.
        await answered(connection, transaction.commit(), timeout_s=patience_s)
    except TimeoutError:
        raise _refused(
            subject, "a commit is not acknowledged; is a standby away that it waits for? See holdfast doctor"
        ) from None


async def _migrate(connection: asyncpg.Connection, subject: str) -> None:
    if not (await connection.fetchrow(_FACTS))["prepared"]:
        await connection.execute(_MIGRATIONS)
    found = await connection.fetchrow(
        "SELECT coalesce(max(version), 0) AS version, coalesce(max(oldest), 0) AS oldest FROM holdfast_migrations"
    )
    if found["oldest"] > KNOWN:
        raise _refused(
            subject,
            f"its tables have version {found['version']}, this Holdfast knows {KNOWN}; upgrade this process first",
        )
    for migration in MIGRATIONS:
        if migration.version > found["version"]:
            await connection.execute(_text(migration))
            await connection.execute(
                "INSERT INTO holdfast_migrations (version, oldest) VALUES ($1, $2)", migration.version, migration.oldest
            )


async def _adopt_topics(connection: asyncpg.Connection, topics: Topics, patience_s: float) -> None:
    """Work out anew when each live job is to be looked at, if the topics' limits are not those of before."""
    digest = hashlib.sha256(repr(topics).encode()).hexdigest()
    ask = partial(answered, connection, timeout_s=patience_s)
    if await ask(connection.fetchval("SELECT value FROM holdfast_settings WHERE name = 'topics'")) == digest:
        return
    await ask(connection.execute(_TOPICS, digest))
    live = await ask(connection.cursor(f"{SELECT_JOB} WHERE look_at IS NOT NULL"))
    while rows := await ask(live.fetch(REVIEW_MAX)):
        reviewed: list[tuple[Any, ...]] = [(job.id, look_at(job, topics.get)) for job in map(job_of, rows)]
        await ask(connection.execute(_REVIEW, *arrays_of(("id", "look_at"), reviewed)))


def _text(migration: Migration) -> str:
    return files("holdfast.stores.postgres").joinpath(migration.file).read_text(encoding="utf-8")


def _refused(subject: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(subject, why, applied=False)
