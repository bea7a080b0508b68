-- What Holdfast keeps in Postgres (12 or newer), and the functions that change it. Schema version 1.
--
--   holdfast_store    one row: the schema's version, the floor of all fences, where the sweep stands
--   holdfast_locks    one row per key; it stays after a release, because it remembers the last fence
--   holdfast_queue    waiters, in order of entry
--   holdfast_history  one row per ended lease (the current one is still in holdfast_locks), or see `releases.sql`
--
-- A key's lease, queue and history change only under the row lock of its holdfast_locks row (but for the
-- sweep of what is a day old), and whoever locks several rows locks them in key order: batches wait for
-- each other, never in a circle.
-- `token` is a digest everywhere: the token itself never reaches the database.
-- `_now` is read once per call, before any wait for a row, so a wait can only make a lease end
-- earlier than asked. Parameters and variables start with an underscore, columns do not.
-- Functions are replaced: most of them outlive the tables, should somebody drop those.

CREATE TABLE holdfast_store (
    version int NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    swept text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO holdfast_store (version) VALUES (1);

-- Half-filled pages and no second index: every update then stays in its page (HOT).
CREATE TABLE holdfast_locks (
    key text COLLATE "C" PRIMARY KEY,
    token text,                                -- NULL: free, and its end is in the history
    holder text,
    fence bigint NOT NULL DEFAULT 0,           -- the first of the block the last grant reserved
    last_fence bigint NOT NULL DEFAULT 0,      -- the last of it
    granted_at timestamptz,
    expires_at timestamptz NOT NULL DEFAULT clock_timestamp(),   -- once free: when it ended
    queued boolean NOT NULL DEFAULT false      -- false: certainly no waiters
) WITH (fillfactor = 50);

CREATE TABLE holdfast_queue (
    key text COLLATE "C" NOT NULL,
    token text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    holder text NOT NULL,
    ttl_ms int NOT NULL,
    queue_ms int NOT NULL,
    fences int NOT NULL,
    alive_until timestamptz NOT NULL,
    channel text NOT NULL,                     -- where the waiter's process listens
    PRIMARY KEY (key, token)
);
CREATE INDEX holdfast_queue_order ON holdfast_queue (key, place);

CREATE TABLE holdfast_history (
    key text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    holder text NOT NULL,
    granted_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    event text,                                -- 'released', 'evicted'; NULL: it expired
    note text NOT NULL DEFAULT '',
    PRIMARY KEY (key, fence)
);
CREATE INDEX holdfast_history_age ON holdfast_history (ended_at);


-- Two views for people and for the library: who holds what now, and what happened to a key.
CREATE VIEW holdfast_holders AS
    SELECT key, fence, holder, left(token, 16) AS token_digest,
           ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint AS remaining_ms,
           (SELECT count(*) FROM holdfast_queue q WHERE q.key = l.key AND q.alive_until > clock_timestamp()) AS waiters
    FROM holdfast_locks l WHERE token IS NOT NULL AND expires_at > clock_timestamp();

CREATE VIEW holdfast_timeline AS
    SELECT key, fence, 1 AS step, holder, 'granted' AS event, granted_at AS at, '' AS note FROM holdfast_history
    UNION ALL
    SELECT key, fence, 2, holder, event, ended_at, note FROM holdfast_history WHERE event IS NOT NULL
    UNION ALL
    SELECT key, fence, 1, holder, 'granted', granted_at, '' FROM holdfast_locks WHERE token IS NOT NULL;


-- The least fence a grant at `_now` may carry, before the key's own last fence is considered.
CREATE OR REPLACE FUNCTION holdfast_mint(_now timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest(floor + 1, (extract(epoch FROM _now) * 1000000)::bigint) FROM holdfast_store
$$;


CREATE OR REPLACE FUNCTION holdfast_grant(_key text, _token text, _holder text, _ttl_ms int, _fences int, _now timestamptz)
RETURNS holdfast_locks LANGUAGE plpgsql AS $$
DECLARE
    _mint bigint := holdfast_mint(_now);
    _lock holdfast_locks;
BEGIN
    UPDATE holdfast_locks SET
        token = _token, holder = _holder, granted_at = _now,
        expires_at = _now + _ttl_ms * interval '1 millisecond',
        fence = greatest(last_fence + 1, _mint), last_fence = greatest(last_fence + 1, _mint) + _fences - 1
    WHERE key = _key
    RETURNING * INTO STRICT _lock;
    RETURN _lock;
END $$;


-- The lock is free, or its holder's time is over: record how the last lease ended (`_event` NULL:
-- it expired), then grant the first live waiter and wake its process.
CREATE OR REPLACE FUNCTION holdfast_hand_on(_lock holdfast_locks, _event text, _note text, _now timestamptz)
RETURNS holdfast_locks LANGUAGE plpgsql AS $$
DECLARE
    _waiter holdfast_queue;
BEGIN
    IF _lock.token IS NOT NULL THEN
        INSERT INTO holdfast_history (key, fence, holder, granted_at, ended_at, event, note)
        VALUES (_lock.key, _lock.fence, _lock.holder, _lock.granted_at, least(_now, _lock.expires_at), _event, _note);
    END IF;
    DELETE FROM holdfast_queue WHERE key = _lock.key AND alive_until <= _now;
    DELETE FROM holdfast_queue WHERE key = _lock.key
        AND place = (SELECT place FROM holdfast_queue WHERE key = _lock.key ORDER BY place LIMIT 1)
    RETURNING * INTO _waiter;
    IF NOT FOUND THEN
        UPDATE holdfast_locks SET token = NULL, expires_at = least(_now, expires_at), queued = false
        WHERE key = _lock.key RETURNING * INTO _lock;
        RETURN _lock;
    END IF;
    -- Of a server's queue of notifications that is full the commit would fail; who is not woken looks by itself.
    IF pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify(_waiter.channel, _waiter.token || _waiter.key);
    END IF;
    RETURN holdfast_grant(
        _waiter.key, _waiter.token, _waiter.holder, least(_waiter.ttl_ms, _waiter.queue_ms), _waiter.fences, _now);
END $$;


-- One acquire, whatever the state of the lock. `fence` is 0 if it is busy.
CREATE OR REPLACE FUNCTION holdfast_acquire(
    _key text, _token text, _holder text, _ttl_ms int, _queue_ms int, _fences int, _channel text, _now timestamptz,
    OUT fence bigint, OUT held_by text, OUT remaining_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    _lock holdfast_locks;
BEGIN
    SELECT * INTO _lock FROM holdfast_locks WHERE key = _key FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO holdfast_locks (key) VALUES (_key) ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT _lock FROM holdfast_locks WHERE key = _key FOR NO KEY UPDATE;
    END IF;
    IF _lock.token IS NULL OR _lock.expires_at <= _now THEN
        _lock := holdfast_hand_on(_lock, NULL, '', _now);
    END IF;
    IF _lock.token IS NULL THEN
        _lock := holdfast_grant(_key, _token, _holder, _ttl_ms, _fences, _now);
    ELSIF _lock.token = _token THEN
        UPDATE holdfast_locks SET expires_at = _now + _ttl_ms * interval '1 millisecond' WHERE key = _key;
    ELSE
        IF _queue_ms > 0 THEN
            INSERT INTO holdfast_queue AS q (key, token, holder, ttl_ms, queue_ms, fences, alive_until, channel)
            VALUES (_key, _token, _holder, _ttl_ms, _queue_ms, _fences,
                    _now + _queue_ms * interval '1 millisecond', _channel)
            ON CONFLICT (key, token) DO UPDATE SET
                ttl_ms = excluded.ttl_ms, queue_ms = excluded.queue_ms, fences = excluded.fences,
                alive_until = excluded.alive_until, channel = excluded.channel;
            UPDATE holdfast_locks SET queued = true WHERE key = _key AND NOT queued;
        END IF;
        fence := 0;
        held_by := _lock.holder;
        remaining_ms := ceil(extract(epoch FROM _lock.expires_at - _now) * 1000);
        RETURN;
    END IF;
    fence := _lock.fence;
END $$;


-- One release, whatever the state of the lock.
CREATE OR REPLACE FUNCTION holdfast_release(_key text, _token text, _now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _lock holdfast_locks;
BEGIN
    SELECT * INTO _lock FROM holdfast_locks WHERE key = _key FOR NO KEY UPDATE;
    IF _lock.token = _token AND _lock.expires_at > _now THEN
        PERFORM holdfast_hand_on(_lock, 'released', '', _now);
        RETURN true;
    END IF;
    DELETE FROM holdfast_queue WHERE key = _key AND token = _token;
    RETURN false;
END $$;


CREATE OR REPLACE FUNCTION holdfast_evict(_key text, _fence bigint, _reason text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _now timestamptz := clock_timestamp();
    _lock holdfast_locks;
BEGIN
    SELECT * INTO _lock FROM holdfast_locks WHERE key = _key FOR NO KEY UPDATE;
    IF _lock.token IS NULL OR _lock.fence <> _fence OR _lock.expires_at <= _now THEN
        RETURN false;
    END IF;
    PERFORM holdfast_hand_on(_lock, 'evicted', _reason, _now);
    RETURN true;
END $$;


-- Releases (ttl 0) and acquires (ttl > 0) of one process: the first `_firsts` for different keys, in key
-- order, then further ones for the same keys, in their order. What is simple (a free lock without
-- waiters, a holder's release without waiters) is done for all keys at once and answered by key;
-- whatever is left is done one by one and answered by position.
-- The planner must not be clever here: the arrays' order is the order of locking, and a plan made
-- while the tables were small would later read them whole.
CREATE OR REPLACE FUNCTION holdfast_batch(
    _holder text, _channel text, _firsts int,
    _keys text[], _tokens text[], _ttls int[], _queues int[], _fences int[],
    OUT done_keys text[], OUT done_fences bigint[],
    OUT late_at int[], OUT late_fences bigint[], OUT late_holders text[], OUT late_remaining_ms bigint[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    _now timestamptz := clock_timestamp();
    _mint bigint := holdfast_mint(_now);
    _fence bigint;
    _held_by text;
    _remaining_ms bigint;
    _granted_keys text[];
    _granted_fences bigint[];
    _grants boolean := false;
BEGIN
    IF 0 = ANY (_ttls) THEN
        -- An UPDATE locks only what it changes; the rest would be locked later, out of order.
        PERFORM FROM holdfast_locks WHERE key = ANY (_keys) ORDER BY key FOR NO KEY UPDATE;
        WITH ended AS (
            UPDATE holdfast_locks l SET token = NULL, expires_at = _now
            FROM unnest(_keys, _tokens, _ttls) WITH ORDINALITY AS r (key, token, ttl, place)
            WHERE r.ttl = 0 AND r.place <= _firsts
              AND l.key = r.key AND l.token = r.token AND l.expires_at > _now AND NOT l.queued
            RETURNING l.key, l.fence, l.holder, l.granted_at
        ), recorded AS (
            INSERT INTO holdfast_history (key, fence, holder, granted_at, ended_at, event)
            SELECT key, fence, holder, granted_at, _now, 'released' FROM ended
        )
        SELECT array_agg(key), array_agg(fence) INTO done_keys, done_fences FROM ended;
    END IF;
    IF 0 < ANY (_ttls) THEN
        WITH granted AS (
            INSERT INTO holdfast_locks AS l (key, token, holder, fence, last_fence, granted_at, expires_at)
            SELECT r.key, r.token, _holder, _mint, _mint + r.fences - 1, _now, _now + r.ttl * interval '1 millisecond'
            FROM unnest(_keys, _tokens, _ttls, _fences) WITH ORDINALITY AS r (key, token, ttl, fences, place)
            WHERE r.ttl > 0 AND r.place <= _firsts
            ON CONFLICT (key) DO UPDATE SET
                token = excluded.token, holder = excluded.holder,
                granted_at = excluded.granted_at, expires_at = excluded.expires_at,
                fence = greatest(l.last_fence + 1, excluded.fence),
                last_fence = greatest(l.last_fence + 1, excluded.fence) + excluded.last_fence - excluded.fence
            WHERE l.token IS NULL AND NOT l.queued
            RETURNING l.key, l.fence
        )
        SELECT array_agg(key), array_agg(fence) INTO _granted_keys, _granted_fences FROM granted;
        done_keys := done_keys || _granted_keys;
        done_fences := done_fences || _granted_fences;
        _grants := _granted_keys IS NOT NULL;
    END IF;
    IF cardinality(_keys) > coalesce(cardinality(done_keys), 0) THEN
        FOR _i IN 1 .. cardinality(_keys) LOOP
            CONTINUE WHEN _i <= _firsts AND _keys[_i] = ANY (done_keys);
            IF _ttls[_i] > 0 THEN
                SELECT fence, held_by, remaining_ms INTO _fence, _held_by, _remaining_ms FROM holdfast_acquire(
                    _keys[_i], _tokens[_i], _holder, _ttls[_i], _queues[_i], _fences[_i], _channel, _now);
                _grants := _grants OR _fence > 0;
            ELSE
                _fence := holdfast_release(_keys[_i], _tokens[_i], _now)::int;
            END IF;
            late_at := late_at || _i;
            late_fences := late_fences || _fence;
            late_holders := late_holders || _held_by;
            late_remaining_ms := late_remaining_ms || _remaining_ms;
        END LOOP;
    END IF;
    IF NOT _grants THEN
        -- Only a grant that somebody is told of must survive a crash. A forgotten release leaves the lock
        -- held until it expires, and the next grant's commit makes everything before it durable too.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END $$;


-- Renewals of one process, sorted by key. Answers in the same order: 1 owned, 2 taken, 0 gone.
CREATE OR REPLACE FUNCTION holdfast_renew(_keys text[], _tokens text[], _ttls int[]) RETURNS int[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    _now timestamptz := clock_timestamp();
BEGIN
    UPDATE holdfast_locks l SET expires_at = _now + r.ttl * interval '1 millisecond'
    FROM unnest(_keys, _tokens, _ttls) AS r (key, token, ttl)
    WHERE l.key = r.key AND l.token = r.token AND l.expires_at > _now;
    RETURN array(
        SELECT CASE WHEN l.token = r.token THEN 1 WHEN l.token IS NOT NULL THEN 2 ELSE 0 END
        FROM unnest(_keys, _tokens) WITH ORDINALITY AS r (key, token, place)
        LEFT JOIN holdfast_locks l ON l.key = r.key AND l.expires_at > _now
        ORDER BY r.place);
END $$;


-- Remove what is older than a day, at most `_limit` rows of each kind; lock rows are looked at in key
-- order, from where the last sweep ended. One is removed only if the floor covered its fences before
-- this call: an acquire that runs meanwhile and finds the row gone has then read that floor.
CREATE OR REPLACE FUNCTION holdfast_collect(_limit int) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _day_ago timestamptz := clock_timestamp() - interval '1 day';
    _store holdfast_store;
    _upto text;
BEGIN
    SELECT * INTO _store FROM holdfast_store FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;  -- somebody else is at it
    END IF;
    DELETE FROM holdfast_history WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM holdfast_history WHERE ended_at < _day_ago ORDER BY ended_at LIMIT _limit));
    DELETE FROM holdfast_queue WHERE alive_until < _day_ago;
    SELECT key INTO _upto FROM holdfast_locks WHERE key > _store.swept ORDER BY key OFFSET _limit - 1 LIMIT 1;
    DELETE FROM holdfast_locks WHERE key IN (
        SELECT l.key FROM holdfast_locks l
        WHERE l.key > _store.swept AND l.key <= coalesce(_upto, chr(1114111))
          AND l.expires_at < _day_ago AND l.last_fence <= _store.floor
          AND NOT EXISTS (SELECT FROM holdfast_queue q WHERE q.key = l.key)
        FOR UPDATE SKIP LOCKED);
    UPDATE holdfast_store SET
        swept = coalesce(_upto, ''),
        floor = greatest(floor, (
            SELECT max(last_fence) FROM holdfast_locks
            WHERE key > _store.swept AND key <= coalesce(_upto, chr(1114111)) AND expires_at < _day_ago));
END $$;
