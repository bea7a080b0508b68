-- What the control plane keeps in its SQLite file, beside the locks (locks/stores/sqlite/locks.sql).
-- Times are seconds of the store's clock (`Store.now`). Every index that is read at work is partial:
-- a job that has ended is in none of them, so that a million finished jobs cost the living nothing.

CREATE TABLE IF NOT EXISTS holdfast_jobs (
    seq           INTEGER PRIMARY KEY,
    id            TEXT NOT NULL UNIQUE,
    tenant        TEXT NOT NULL,
    topic         TEXT NOT NULL,
    labels        TEXT NOT NULL,      -- JSON
    priority      INTEGER NOT NULL,
    risk          TEXT NOT NULL,
    max_attempts  INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    deadline      REAL,
    replay_of     TEXT,
    trace         TEXT NOT NULL,
    actor         TEXT NOT NULL DEFAULT '',
    session       TEXT NOT NULL DEFAULT '',
    run           TEXT NOT NULL DEFAULT '',
    step          TEXT NOT NULL DEFAULT '',
    payload       BLOB,               -- NULL: in holdfast_payloads
    -- above: as submitted (of a payload there may be another before the job runs); below: replaced with each version
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL,
    since         REAL NOT NULL,
    not_before    REAL NOT NULL,
    attempts      INTEGER NOT NULL,
    schedulings   INTEGER NOT NULL,
    retries       TEXT NOT NULL,      -- JSON
    pool          TEXT NOT NULL,
    worker        TEXT NOT NULL,
    fence         INTEGER NOT NULL,
    lease_until   REAL NOT NULL,
    cancel_requested INTEGER NOT NULL,
    progress      TEXT,               -- JSON
    error         TEXT,               -- JSON
    decision      TEXT,               -- JSON
    approval      TEXT NOT NULL DEFAULT '',
    result        BLOB,
    look_at       REAL,               -- recovery.next_look; NULL once it has ended
    behind        INTEGER NOT NULL DEFAULT 0  -- 1: SCHEDULED, and another one of its session goes before it
);
CREATE INDEX IF NOT EXISTS holdfast_jobs_by_tenant ON holdfast_jobs (tenant, id);
CREATE INDEX IF NOT EXISTS holdfast_jobs_scheduled ON holdfast_jobs (priority, tenant, not_before, id)
    WHERE state = 'SCHEDULED' AND behind = 0;
CREATE INDEX IF NOT EXISTS holdfast_jobs_in_hand ON holdfast_jobs (worker, id)
    WHERE state IN ('DISPATCHED', 'RUNNING');
CREATE INDEX IF NOT EXISTS holdfast_jobs_live ON holdfast_jobs (id, look_at)
    WHERE look_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS holdfast_jobs_undecided ON holdfast_jobs (id, look_at)
    WHERE state IN ('PENDING', 'APPROVAL_REQUIRED');
CREATE INDEX IF NOT EXISTS holdfast_jobs_unlucky ON holdfast_jobs (tenant, state, id)
    WHERE state IN ('FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED');
CREATE INDEX IF NOT EXISTS holdfast_jobs_replays ON holdfast_jobs (replay_of)
    WHERE replay_of IS NOT NULL;
CREATE INDEX IF NOT EXISTS holdfast_jobs_by_run ON holdfast_jobs (run, id)
    WHERE run != '';
-- Who is next in a session: one that has been tried and is not parked, then the oldest (sessions.py).
CREATE INDEX IF NOT EXISTS holdfast_jobs_in_session
    ON holdfast_jobs (tenant, session, state, (attempts = 0 OR not_before >= 253402300799.0), not_before, id)
    WHERE session != '' AND look_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS holdfast_jobs_first_of_session ON holdfast_jobs (tenant, session)
    WHERE session != '' AND state = 'SCHEDULED' AND behind = 0;

-- Payloads too large to be written again with each version of their job.
CREATE TABLE IF NOT EXISTS holdfast_payloads (
    job_id  TEXT PRIMARY KEY,
    payload BLOB NOT NULL
);

-- How many live jobs there are, kept by the transactions that change it.
CREATE TABLE IF NOT EXISTS holdfast_counts (
    tenant TEXT NOT NULL,
    state  TEXT NOT NULL,
    jobs   INTEGER NOT NULL,
    PRIMARY KEY (tenant, state)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS holdfast_keys (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    digest TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holdfast_keys_by_job ON holdfast_keys (job_id);

CREATE TABLE IF NOT EXISTS holdfast_events (
    number  INTEGER PRIMARY KEY,      -- given out inside the transaction: only retention leaves gaps
    tenant  TEXT NOT NULL,
    job_id  TEXT NOT NULL,
    kind    TEXT NOT NULL,
    state   TEXT NOT NULL,            -- empty: not about one job
    attempt INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    at      REAL NOT NULL,
    detail  TEXT NOT NULL,            -- JSON
    run     TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS holdfast_events_by_job ON holdfast_events (job_id, number);
CREATE INDEX IF NOT EXISTS holdfast_events_by_run ON holdfast_events (run, number)
    WHERE run != '';

-- How far retention has come: the highest number of a tenant's events that it has removed.
CREATE TABLE IF NOT EXISTS holdfast_pruned (
    tenant TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) WITHOUT ROWID;

-- The embedded bus. A row goes when its job leaves DISPATCHED, or when it is settled.
CREATE TABLE IF NOT EXISTS holdfast_deliveries (
    worker TEXT NOT NULL,
    fence  INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (worker, fence, job_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS holdfast_effects (
    tenant          TEXT NOT NULL,
    job_id          TEXT NOT NULL,
    key             TEXT NOT NULL,
    state           TEXT NOT NULL,
    fence           INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    result          BLOB,
    prepared_at     REAL NOT NULL,
    settled_at      REAL,
    note            TEXT NOT NULL,
    PRIMARY KEY (job_id, key)
);
CREATE INDEX IF NOT EXISTS holdfast_effects_by_tenant ON holdfast_effects (tenant, prepared_at);
CREATE INDEX IF NOT EXISTS holdfast_effects_unsettled ON holdfast_effects (tenant, state, prepared_at)
    WHERE state IN ('prepared', 'unknown');

-- The job itself is in holdfast_jobs, where it does not change any more.
CREATE TABLE IF NOT EXISTS holdfast_dead_letters (
    number      INTEGER PRIMARY KEY,
    tenant      TEXT NOT NULL,
    job_id      TEXT NOT NULL,
    reason      TEXT NOT NULL,
    at          REAL NOT NULL,
    replayed_as TEXT
);
CREATE INDEX IF NOT EXISTS holdfast_dead_letters_by_tenant ON holdfast_dead_letters (tenant, number);
CREATE INDEX IF NOT EXISTS holdfast_dead_letters_by_job ON holdfast_dead_letters (job_id);

-- The worker registry as its writer last saw it: one row.
CREATE TABLE IF NOT EXISTS holdfast_snapshot (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    fence   INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      REAL NOT NULL,
    workers BLOB NOT NULL
);

-- Everything that is kept and is not a job (core/record.py).
CREATE TABLE IF NOT EXISTS holdfast_records (
    kind       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    parent     TEXT NOT NULL,
    due        REAL,
    created_at REAL NOT NULL,
    body       BLOB NOT NULL,         -- JSON
    PRIMARY KEY (kind, tenant, id)
);
CREATE INDEX IF NOT EXISTS holdfast_records_by_parent ON holdfast_records (kind, tenant, parent, id)
    WHERE parent != '';
-- Steps and results are many, and are asked for by their run.
CREATE INDEX IF NOT EXISTS holdfast_records_by_state ON holdfast_records (kind, tenant, state, id)
    WHERE kind NOT IN ('step', 'result');
CREATE INDEX IF NOT EXISTS holdfast_records_due ON holdfast_records (kind, due, tenant, id)
    WHERE due IS NOT NULL;
