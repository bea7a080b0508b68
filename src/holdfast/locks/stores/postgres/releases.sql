-- Added to the tables of `locks.sql`, still version 1: a Holdfast from before it works on beside it, and finds in the
-- view what others recorded here.
--
--   holdfast_releases  one row for all leases that were released together, where those are many (see `history.py`)
--
-- A row and two index entries for each of them were half of what a release costs the server. Found by reading the whole
-- table, so it is kept short.

CREATE TABLE holdfast_releases (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,   -- in about the order of time
    ended_at timestamptz NOT NULL,
    keys text[] COLLATE "C" NOT NULL,          -- and of each, in the same order:
    fences bigint[] NOT NULL,
    holders text[] NOT NULL,
    granted_at timestamptz[] NOT NULL
) WITH (toast_tuple_target = 8160);            -- to compress them would cost more than the release

CREATE OR REPLACE VIEW holdfast_timeline AS
    SELECT key, fence, 1 AS step, holder, 'granted' AS event, granted_at AS at, '' AS note FROM holdfast_history
    UNION ALL
    SELECT key, fence, 2, holder, event, ended_at, note FROM holdfast_history WHERE event IS NOT NULL
    UNION ALL
    SELECT key, fence, 1, holder, 'granted', granted_at, '' FROM holdfast_locks WHERE token IS NOT NULL
    UNION ALL
    SELECT lease.key, lease.fence, line.step, lease.holder, line.event, line.at, ''
    FROM holdfast_releases r
    CROSS JOIN LATERAL unnest(r.keys, r.fences, r.holders, r.granted_at) AS lease (key, fence, holder, granted_at)
    CROSS JOIN LATERAL (VALUES (1, 'granted', lease.granted_at), (2, 'released', r.ended_at)) AS line (step, event, at);
