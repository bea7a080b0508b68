-- What the control plane keeps in Postgres (14 or newer), beside the locks (locks/stores/postgres/locks.sql). Version 1.
--
-- Times are seconds of the store's clock (`Store.now`). Text is compared byte by byte. Every index that is
-- read at work is partial: a job that has ended is in none of them, so that a million finished jobs cost the
-- living nothing.
--
-- Whatever tells of an event, which is almost every write, does so under one advisory lock that ends with its
-- transaction (writer.py). So numbers of events become visible in their order, two planes never wait
-- for each other in a circle, and what a transaction has looked at stays as it is until it has committed.
--
-- Later versions only add (tables, columns with a default, indexes): the release before goes on working on them.

CREATE TABLE holdfast_jobs (
    id            text COLLATE "C" PRIMARY KEY,
    tenant        text COLLATE "C" NOT NULL,
    topic         text COLLATE "C" NOT NULL,
    labels        text NOT NULL,                 -- JSON
    priority      int NOT NULL,
    risk          text NOT NULL,
    max_attempts  int NOT NULL,
    created_at    float8 NOT NULL,
    deadline      float8,
    replay_of     text COLLATE "C",
    trace         text NOT NULL,
    actor         text NOT NULL,
    session       text COLLATE "C" NOT NULL,
    run           text COLLATE "C" NOT NULL,
    step          text NOT NULL,
    payload       bytea NOT NULL,
    -- above: as submitted (of a payload there may be another before the job runs); below: replaced with each version
    state         text COLLATE "C" NOT NULL,
    version       bigint NOT NULL,
    since         float8 NOT NULL,
    not_before    float8 NOT NULL,
    attempts      int NOT NULL,
    schedulings   int NOT NULL,
    retries       text NOT NULL,                 -- JSON
    pool          text NOT NULL,
    worker        text COLLATE "C" NOT NULL,
    fence         bigint NOT NULL,
    lease_until   float8 NOT NULL,
    cancel_requested boolean NOT NULL,
    progress      text,                          -- JSON
    error         text,                          -- JSON
    decision      text,                          -- JSON
    approval      text NOT NULL,
    result        bytea,
    look_at       float8,                        -- recovery.next_look; NULL once it has ended
    behind        boolean NOT NULL DEFAULT false,  -- SCHEDULED, and another one of its session goes before it
    limit_key     text COLLATE "C" NOT NULL DEFAULT '',  -- of the limit that its decision names
    seq           bigint GENERATED ALWAYS AS IDENTITY    -- the order in which jobs came, for retention
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX holdfast_jobs_by_tenant ON holdfast_jobs (tenant, id);
CREATE INDEX holdfast_jobs_by_seq ON holdfast_jobs (seq);
-- Priorities are counted downwards: then the next of (urgency, tenant) is found by one jump through the index.
CREATE INDEX holdfast_jobs_scheduled ON holdfast_jobs ((-priority), tenant, not_before, id)
    WHERE state = 'SCHEDULED' AND NOT behind;
CREATE INDEX holdfast_jobs_in_hand ON holdfast_jobs (worker, id) WHERE state IN ('DISPATCHED', 'RUNNING');
CREATE INDEX holdfast_jobs_live ON holdfast_jobs (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX holdfast_jobs_undecided ON holdfast_jobs (look_at) WHERE state IN ('PENDING', 'APPROVAL_REQUIRED');
-- What people look for by its state; of those that succeeded there are too many to be worth it.
CREATE INDEX holdfast_jobs_by_state ON holdfast_jobs (tenant, state, id) WHERE state <> 'SUCCEEDED';
CREATE INDEX holdfast_jobs_replays ON holdfast_jobs (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX holdfast_jobs_by_run ON holdfast_jobs (run, id) WHERE run <> '';
-- Who is next in a session: one that has been tried and is not parked, then the oldest.
CREATE INDEX holdfast_jobs_in_session
    ON holdfast_jobs (tenant, session, state, (attempts = 0 OR not_before >= 253402300799.0), not_before, id)
    WHERE session <> '' AND look_at IS NOT NULL;

-- How many live jobs there are, kept by the transactions that change it.
CREATE TABLE holdfast_counts (
    tenant text COLLATE "C" NOT NULL,
    state  text COLLATE "C" NOT NULL,
    jobs   bigint NOT NULL,
    PRIMARY KEY (tenant, state)
) WITH (fillfactor = 50);

CREATE TABLE holdfast_keys (
    tenant text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    digest text NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX holdfast_keys_by_job ON holdfast_keys (job_id);

CREATE TABLE holdfast_events (
    number  bigint PRIMARY KEY,                  -- given out under the lock: only retention leaves gaps, or a failover
    tenant  text COLLATE "C" NOT NULL,
    job_id  text COLLATE "C" NOT NULL,
    kind    text NOT NULL,
    state   text NOT NULL,                       -- empty: not about one job
    attempt int NOT NULL,
    fence   bigint NOT NULL,
    at      float8 NOT NULL,
    detail  text NOT NULL,                       -- JSON
    run     text COLLATE "C" NOT NULL
);
CREATE INDEX holdfast_events_by_job ON holdfast_events (job_id, number);
CREATE INDEX holdfast_events_by_run ON holdfast_events (run, number) WHERE run <> '';

-- How far retention has come: the highest number of a tenant's events that it has removed.
CREATE TABLE holdfast_pruned (
    tenant text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
);

-- The embedded bus. A row goes when its job leaves DISPATCHED, or when it is settled.
CREATE TABLE holdfast_deliveries (
    worker text COLLATE "C" NOT NULL,
    fence  bigint NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (worker, fence, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE holdfast_effects (
    tenant          text COLLATE "C" NOT NULL,
    job_id          text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    state           text NOT NULL,
    fence           bigint NOT NULL,
    attempt         int NOT NULL,
    idempotency_key text NOT NULL,
    result          bytea,
    prepared_at     float8 NOT NULL,
    settled_at      float8,
    note            text NOT NULL,
    PRIMARY KEY (job_id, key)
);
CREATE INDEX holdfast_effects_by_tenant ON holdfast_effects (tenant, prepared_at, job_id, key);
CREATE INDEX holdfast_effects_unsettled ON holdfast_effects (tenant, state, prepared_at)
    WHERE state IN ('prepared', 'unknown');
CREATE INDEX holdfast_effects_open ON holdfast_effects (job_id) WHERE state IN ('prepared', 'unknown');

-- The job itself is in holdfast_jobs, where it does not change any more.
CREATE TABLE holdfast_dead_letters (
    number      bigint PRIMARY KEY,              -- as those of events
    tenant      text COLLATE "C" NOT NULL,
    job_id      text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    at          float8 NOT NULL,
    replayed_as text COLLATE "C"
);
CREATE INDEX holdfast_dead_letters_by_tenant ON holdfast_dead_letters (tenant, number);
CREATE INDEX holdfast_dead_letters_by_job ON holdfast_dead_letters (job_id);

-- The worker registry as its writer last saw it: one row.
CREATE TABLE holdfast_snapshot (
    one     int PRIMARY KEY CHECK (one = 1),
    fence   bigint NOT NULL,
    seq     bigint NOT NULL,
    at      float8 NOT NULL,
    workers bytea NOT NULL
);

-- Everything that is kept and is not a job (core/record.py).
CREATE TABLE holdfast_records (
    kind       text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    state      text COLLATE "C" NOT NULL,
    parent     text COLLATE "C" NOT NULL,
    due        float8,
    created_at float8 NOT NULL,
    body       bytea NOT NULL,                   -- JSON
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (kind, tenant, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX holdfast_records_by_parent ON holdfast_records (kind, tenant, parent, id) WHERE parent <> '';
-- Steps and results are many, and are asked for by their run.
CREATE INDEX holdfast_records_by_state ON holdfast_records (kind, tenant, state, id)
    WHERE kind NOT IN ('step', 'result');
CREATE INDEX holdfast_records_due ON holdfast_records (kind, due, tenant, id) WHERE due IS NOT NULL;
-- The order in which they came, for retention.
CREATE INDEX holdfast_records_by_seq ON holdfast_records (seq) WHERE kind IN ('run', 'post');

-- What this database was last told about how the plane is run.
CREATE TABLE holdfast_settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);
