"""What Postgres remembers of ended leases: recorded with the release, read for people, swept when old.

A lease has a line of its own in `holdfast_history`, kept for a day. Those of one process that are released in the same
statement, if they are TOGETHER_MIN or more, share a line in `holdfast_releases`: so many come only under heavy traffic,
of which the newest TOGETHER_KEPT lines are kept.
"""

from __future__ import annotations

TOGETHER_MIN, TOGETHER_KEPT = 8, 20_000
#: Requests between two sweeps of what is older than a day, and how many rows a sweep may remove:
#: more than were written meanwhile, so what is left behind stays bounded.
COLLECT_EVERY, COLLECT_MAX = 2000, 2000

# Not waited for on the disk: a sweep that a crash undoes is done again, and its floor is in the log before all that is built on it.
# Of the shared lines only the oldest are looked at: their numbers are nearly in the order of time. While the very oldest
# is to stay, no other is read: each fills most of a page, and they were half of what a sweep costs.
COLLECT = """
    WITH outdated AS MATERIALIZED (
        SELECT max(number) - $3::bigint AS number, clock_timestamp() - interval '1 day' AS ended_at FROM holdfast_releases
    ), oldest AS MATERIALIZED (
        SELECT number, ended_at FROM holdfast_releases ORDER BY number LIMIT (
            SELECT CASE WHEN first.number <= outdated.number OR first.ended_at < outdated.ended_at THEN $2::int ELSE 0 END
            FROM outdated, (SELECT number, ended_at FROM holdfast_releases ORDER BY number LIMIT 1) AS first)
    ), swept AS (
        DELETE FROM holdfast_releases WHERE number = ANY (ARRAY (
            SELECT number FROM holdfast_releases WHERE number = ANY (ARRAY (
                SELECT oldest.number FROM oldest, outdated
                WHERE oldest.number <= outdated.number OR oldest.ended_at < outdated.ended_at))
            FOR UPDATE SKIP LOCKED))
    )
    SELECT holdfast_collect($1), set_config('synchronous_commit', 'off', true)
"""
#: A tenth is for numbers that nothing was written under.
COLLECT_LIMITS = (COLLECT_MAX, 2 * COLLECT_EVERY // TOGETHER_MIN, TOGETHER_KEPT * 11 // 10)

# Not by the view `holdfast_timeline`, which takes every shared line apart before it looks for the key.
HISTORY = """
    SELECT $1::text AS key, fence, holder, line.event, extract(epoch FROM line.at)::float8 AS at, line.note
    FROM (
        SELECT fence, holder, granted_at, ended_at, event, note FROM holdfast_history WHERE key = $1
        UNION ALL
        SELECT fence, holder, granted_at, NULL, NULL, '' FROM holdfast_locks WHERE key = $1 AND token IS NOT NULL
        UNION ALL
        SELECT fences[array_position(keys, $1)], holders[array_position(keys, $1)], granted_at[array_position(keys, $1)],
               ended_at, 'released', ''
        FROM holdfast_releases WHERE $1 = ANY (keys)
    ) AS lease
    CROSS JOIN LATERAL (
        VALUES (1, 'granted', lease.granted_at, ''), (2, lease.event, lease.ended_at, lease.note)
    ) AS line (step, event, at, note)
    WHERE line.event IS NOT NULL
    ORDER BY fence DESC, line.step DESC LIMIT $2
"""
