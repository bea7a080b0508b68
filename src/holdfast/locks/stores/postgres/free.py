"""Locks of Postgres that meet nobody else: a batch of acquires, or of releases, in one plain statement.

`holdfast_batch` does whatever it is given, under row locks that it takes first. Most batches need less: every lock is
there and free, or is its releaser's with nobody queued. Then one walk along the index changes the rows as it comes by
them, in key order like everybody else, which takes a quarter less of the server. Whatever is not that simple (a key that
is new, held, expired or queued for) the statement leaves alone, and `holdfast_batch` gets it next, in a transaction of
its own: so what was left never waits for a row with others locked behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.locks.stores.postgres.history import TOGETHER_MIN

#: For the connection that sends these: the order of the index is the order of locking, and a plan made while the tables
#: were small would later read them whole.
PLAN = """
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan; SET jit = off
"""

# Both answer with how many were done and, for the rare case that those do not all have one answer, with their keys and
# fences, as texts like all arrays. Their time is when the server got the statement: before any wait for a row, as in `postgres.sql`.
_ACQUIRE = """
    WITH mint AS MATERIALIZED (
        SELECT holdfast_mint(statement_timestamp()) AS least
    ), granted AS (
        UPDATE holdfast_locks SET
            token = $3::jsonb ->> key, holder = $4, granted_at = statement_timestamp(),
            expires_at = statement_timestamp() + $5::int * interval '1 millisecond',
            fence = greatest(last_fence + 1, (SELECT least FROM mint)),
            last_fence = greatest(last_fence + 1, (SELECT least FROM mint)) + $6::int - 1
        WHERE key = ANY ($2::text::text[]) AND token IS NULL AND NOT queued
        RETURNING key, fence
    )
    SELECT count(*), min(fence),
           CASE WHEN count(*) < $1::int OR min(fence) < max(fence) THEN array_agg(key) END,
           CASE WHEN count(*) < $1::int OR min(fence) < max(fence) THEN array_agg(fence::text) END
    FROM granted
"""
# A release need not survive a crash of the server, as in `holdfast_batch`.
_RELEASE = """
    WITH ended AS (
        UPDATE holdfast_locks SET token = NULL, expires_at = statement_timestamp()
        WHERE key = ANY ($2::text::text[]) AND token = $3::jsonb ->> key
          AND expires_at > statement_timestamp() AND NOT queued
        RETURNING key, fence, holder, granted_at, expires_at
    ), recorded AS (
        INSERT INTO holdfast_history (key, fence, holder, granted_at, ended_at, event)
        SELECT key, fence, holder, granted_at, expires_at, 'released' FROM ended
    )
    SELECT count(*), 1::bigint,
           CASE WHEN count(*) < $1::int THEN array_agg(key) END,
           CASE WHEN count(*) < $1::int THEN array_agg(fence::text) END,
           set_config('synchronous_commit', 'off', true)
    FROM ended
"""
_RELEASE_TOGETHER = """
    WITH ended AS (
        UPDATE holdfast_locks SET token = NULL, expires_at = statement_timestamp()
        WHERE key = ANY ($2::text::text[]) AND token = $3::jsonb ->> key
          AND expires_at > statement_timestamp() AND NOT queued
        RETURNING key, fence, holder, granted_at
    ), together AS MATERIALIZED (
        SELECT count(*) AS leases, array_agg(key) AS keys, array_agg(fence) AS fences,
               array_agg(holder) AS holders, array_agg(granted_at) AS granted_at
        FROM ended
    ), recorded AS (
        INSERT INTO holdfast_releases (ended_at, keys, fences, holders, granted_at)
        SELECT statement_timestamp(), keys, fences, holders, granted_at FROM together WHERE leases > 0
    )
    SELECT leases, 1::bigint,
           CASE WHEN leases < $1::int THEN keys END,
           CASE WHEN leases < $1::int THEN fences::text[] END,
           set_config('synchronous_commit', 'off', true)
    FROM together
"""


def acquire_statement(
    keys: Sequence[str], digests: Sequence[str], holder: str, ttl_ms: int, fences: int
) -> tuple[str, tuple[object, ...]]:
    """For sorted keys, no two the same."""
    return _ACQUIRE, (len(keys), quoted_array(keys), _by_key(keys, digests), holder, ttl_ms, fences)


def release_statement(keys: Sequence[str], digests: Sequence[str]) -> tuple[str, tuple[object, ...]]:
    """For sorted keys, no two the same."""
    sql = _RELEASE if len(keys) < TOGETHER_MIN else _RELEASE_TOGETHER
    return sql, (len(keys), quoted_array(keys), _by_key(keys, digests))


def common_fence(row: Sequence[Any], asked: int) -> int | None:
    """The one fence of all keys, if they were all done and have but one: as it mostly is."""
    count, fence, some_keys, *_ = row
    return fence if count == asked and some_keys is None else None


def fences_done(row: Sequence[Any], keys: Sequence[str]) -> Mapping[str, int]:
    """The fence of every key that was done."""
    fence = common_fence(row, len(keys))
    if fence is not None:
        return dict.fromkeys(keys, fence)
    _, _, some_keys, some_fences, *_ = row
    return dict(zip(some_keys or (), map(int, some_fences or ()), strict=True))


def array(values: Sequence[object]) -> str:
    """A Postgres array literal, of what needs no quotes: digests and numbers."""
    return "{" + ",".join(map(str, values)) + "}"


def quoted_array(values: Sequence[str]) -> str:
    together = "".join(values)
    if '"' in together or "\\" in together:
        values = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(values) + '"}'


def _by_key(keys: Sequence[str], digests: Sequence[str]) -> str:
    together = "".join(keys)
    if not together.isprintable() or '"' in together or "\\" in together:
        return json.dumps(dict(zip(keys, digests, strict=True)))
    # Nothing to escape, so it need not go through the encoder, which takes three times as long.
    return '{"' + '","'.join(map('":"'.join, zip(keys, digests, strict=True))) + '"}'
