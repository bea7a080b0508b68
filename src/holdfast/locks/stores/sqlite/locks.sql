-- What Holdfast keeps in its SQLite file. Times are milliseconds on the host's suspend-aware
-- clock (it starts again at each boot, see `boot_id`), except `…_at`, which are epoch seconds.

CREATE TABLE IF NOT EXISTS holdfast_meta (
    name  TEXT PRIMARY KEY,   -- schema_version, last_fence, boot_id
    value NOT NULL
) WITHOUT ROWID;

-- One row per held or expired key; a release deletes it. Fences do not depend on the rows:
-- `last_fence` in holdfast_meta is one counter for the whole file.
CREATE TABLE IF NOT EXISTS holdfast_locks (
    key        TEXT PRIMARY KEY,
    token      TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    holder     TEXT NOT NULL,
    expires    INTEGER NOT NULL,
    granted_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS holdfast_waiters (
    place       INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of entry
    key         TEXT NOT NULL,
    token       TEXT NOT NULL,
    ttl_ms      INTEGER NOT NULL,
    queue_ms    INTEGER NOT NULL,
    fences      INTEGER NOT NULL,
    alive_until INTEGER NOT NULL,
    holder      TEXT NOT NULL,
    mailbox     TEXT NOT NULL                       -- who to wake
);
CREATE UNIQUE INDEX IF NOT EXISTS holdfast_waiters_by_key ON holdfast_waiters (key, token);

-- One row per ended lease; the current one is still in holdfast_locks. Written all the time and read by
-- people, now and then: so it is found without an index, which would touch a page for each key in
-- every commit.
CREATE TABLE IF NOT EXISTS holdfast_history (
    id         INTEGER PRIMARY KEY,
    key        TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    holder     TEXT NOT NULL,
    granted_at REAL NOT NULL,
    ended_at   REAL NOT NULL,           -- of an expired one: when that was noticed
    event      TEXT,                    -- 'released', 'evicted'; NULL: it expired
    note       TEXT NOT NULL DEFAULT ''
);
