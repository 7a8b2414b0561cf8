-- +goose Up

-- The version of the tables.
CREATE TABLE onceward_schema (
	version    integer PRIMARY KEY,
	applied_at timestamptz NOT NULL DEFAULT now()
);

-- Attempt tokens: one sequence for all records, so that none is ever used twice (S7).
CREATE SEQUENCE onceward_attempt;

-- The records. Times are in microseconds since 1970. Texts that come from outside are bytea: they may hold any byte. The columns
-- of fixed size come first, so that there are no gaps between them; what only some records have is NULL in the others.
CREATE TABLE onceward_record (
	id                uuid PRIMARY KEY,
	attempt           bigint NOT NULL,
	due               bigint NOT NULL,
	retention         bigint NOT NULL,
	created_at        bigint,
	settled_at        bigint,
	downstream_secret bigint,
	reconcile_count   bigint,
	step              bigint,
	state             smallint NOT NULL,
	version           smallint NOT NULL,
	status            smallint NOT NULL DEFAULT 0,
	resumable         boolean,
	not_replayable    boolean,
	not_stored        boolean,
	key_uuid          uuid,
	nonce             bytea,
	fingerprint       bytea NOT NULL,
	operation         bytea NOT NULL,
	scope             bytea NOT NULL,
	key               bytea,
	point             bytea,
	last_error        bytea,
	first_error       bytea,
	reconcile_error   bytea,
	provider_id       bytea,
	trace_id          bytea,
	content_type      bytea,
	header            bytea,
	data              bytea,
	body              bytea
) WITH (autovacuum_vacuum_scale_factor = 0.1); -- all records go after a while, and until vacuum comes they take room

-- For the sweeper, the reconciler, the resumer and those who count: most records have an answer, and are looked for by their id
-- alone, so they are not in it.
CREATE INDEX onceward_record_open ON onceward_record (state, due) WHERE state <> 20;

-- For the reaper, which removes what has an answer when it has expired. It is in seconds, so that records of one second share an
-- entry.
CREATE INDEX onceward_record_expiry ON onceward_record ((due / 1000000)) WHERE state = 20;

-- For finding a record by what the provider calls its effect. The hash is there because an index does not take values of every
-- length.
CREATE INDEX onceward_record_provider ON onceward_record (sha256(provider_id)) WHERE provider_id IS NOT NULL;

-- Ballast: a dozen pages of rows that are no records. In a table of few pages the planner prefers to scan, and a plan
-- that was cached then would go on scanning when the table has grown.
INSERT INTO onceward_record (id, attempt, due, retention, state, version, fingerprint, operation, scope)
SELECT md5('ballast ' || i)::uuid, 0, 0, 0, 0, 0, decode(repeat('00', 250), 'hex'), '', ''
FROM generate_series(1, 300) AS i;

-- Completions that came too late, kept for reconciliation.
CREATE TABLE onceward_late_completion (
	id           uuid NOT NULL,
	attempt      bigint NOT NULL,
	at           bigint NOT NULL,
	status       smallint NOT NULL,
	not_stored   boolean,
	content_type bytea,
	header       bytea,
	body         bytea
);

CREATE INDEX onceward_late_completion_id ON onceward_late_completion (id, at);
CREATE INDEX onceward_late_completion_at ON onceward_late_completion (at);

-- What other systems told by themselves, such as webhooks. Texts that come from outside are bytea: they may hold any
-- byte. The indexes hold their hashes, because an index does not take values of every length.
CREATE TABLE onceward_external_event (
	at          bigint NOT NULL, -- by the sender's clock
	received_at bigint NOT NULL, -- by the store's
	any_scope   boolean NOT NULL, -- whether the sender may settle records of every scope
	scope       bytea NOT NULL,   -- else those of this one alone
	source      bytea NOT NULL,
	event_id    bytea NOT NULL,
	subject     bytea NOT NULL,
	body        bytea NOT NULL
);

CREATE UNIQUE INDEX onceward_external_event_id ON onceward_external_event
	(sha256(source), any_scope, sha256(scope), sha256(event_id));
CREATE INDEX onceward_external_event_subject ON onceward_external_event
	(sha256(source), sha256(subject), any_scope, sha256(scope));
CREATE INDEX onceward_external_event_received ON onceward_external_event (received_at);

-- Who did what to which record, and why. Entries are only added, and stay when their record is gone. Their order is
-- that of their numbers: a clock may step back.
CREATE TABLE onceward_audit (
	number  bigint GENERATED ALWAYS AS IDENTITY,
	id      uuid NOT NULL,  -- that of the record
	attempt bigint NOT NULL,
	at      bigint NOT NULL,
	scope   bytea NOT NULL, -- the record may be gone
	key     bytea NOT NULL,
	actor   bytea NOT NULL,
	action  bytea NOT NULL,
	reason  bytea NOT NULL,
	outcome bytea NOT NULL
);

CREATE INDEX onceward_audit_id ON onceward_audit (id, number);
CREATE INDEX onceward_audit_at ON onceward_audit (at);

-- Requests of routes whose executions are audited: who called, and what was decided. Entries are only added, and stay when
-- their record is gone. The decisions: 1 execute, 2 replay, 3 in progress, 4 mismatch, 5 unknown, 6 refused; the origins of
-- an execution: 1 created, 2 retried, 3 resumed, 4 recreated, 5 repeated; 0 for none.
CREATE TABLE onceward_execution (
	number    bigint GENERATED ALWAYS AS IDENTITY,
	id        uuid NOT NULL,     -- that of the record
	attempt   bigint NOT NULL,   -- that of the record, zero if nothing of it was visible
	at        bigint NOT NULL,   -- in microseconds since 1970
	decision  smallint NOT NULL, -- see above
	origin    smallint NOT NULL, -- see above
	scope     bytea NOT NULL,    -- the record may be gone
	key       bytea NOT NULL,
	operation bytea NOT NULL,
	actor     bytea NOT NULL     -- who called, as the service knows them
);

CREATE INDEX onceward_execution_id ON onceward_execution (id, at);
CREATE INDEX onceward_execution_at ON onceward_execution (at);

-- The order of messages: drawn behind the lock of their aggregate, so that it is the order of commits there.
CREATE SEQUENCE onceward_outbox_number;

-- Messages that were added and not yet promoted to deliveries. It has one index, and nothing that only workers need: a
-- transaction that adds a message pays for each. The columns id, aggregatetype, aggregateid, type and payload are those that
-- change-data-capture routers look for.
CREATE TABLE onceward_outbox (
	number         bigint PRIMARY KEY, -- below zero: for change-data-capture alone, never promoted
	id             uuid NOT NULL,      -- made by the program that adds it, larger ones later
	lane           bigint NOT NULL,    -- a hash of topic and aggregate, within which messages keep their order; 0: none
	due            bigint NOT NULL,    -- first delivery, in microseconds since 1970
	created_at     bigint NOT NULL,    -- likewise
	origin_attempt bigint NOT NULL,    -- that of the operation which added it
	topic          text NOT NULL,
	aggregatetype  text NOT NULL,
	aggregateid    text NOT NULL,
	type           text NOT NULL,
	downstream_key text NOT NULL,      -- the idempotency key to send along
	attributes     text NOT NULL,      -- content type, source, subject, step and headers, as JSON
	origin_scope   bytea,              -- of the operation that added it
	origin_key     bytea,
	payload        bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000); -- what was promoted is in the way of what was not

-- Messages that were promoted: workers deliver them, and they are kept until they are purged.
CREATE TABLE onceward_delivery (
	id             uuid PRIMARY KEY,
	number         bigint NOT NULL,
	lane           bigint NOT NULL,
	due            bigint NOT NULL,             -- next delivery, end of the lease or when it was done
	created_at     bigint NOT NULL,
	token          bigint NOT NULL DEFAULT 0,   -- of the lease
	origin_attempt bigint NOT NULL,
	attempts       integer NOT NULL DEFAULT 0,
	state          smallint NOT NULL DEFAULT 0, -- 0 ready, 1 leased, 2 behind, 3 holding, 4 done, 5 dead
	topic          text NOT NULL,
	aggregatetype  text NOT NULL,
	aggregateid    text NOT NULL,
	type           text NOT NULL,
	downstream_key text NOT NULL,
	attributes     text NOT NULL,
	origin_scope   bytea,
	origin_key     bytea,
	payload        bytea NOT NULL,
	provider_id    text,                        -- what the receiver calls the effect
	last_error     text,                        -- why the last delivery failed
	answer         bytea                        -- what the handler kept of the receiver's answer
);

-- For claims. Messages that are done are not in it, nor those that wait for another one.
CREATE INDEX onceward_delivery_due ON onceward_delivery (topic, due) WHERE state < 2;
-- For the order within an aggregate.
CREATE INDEX onceward_delivery_lane ON onceward_delivery (lane, number) WHERE state < 4 AND lane <> 0;
-- For the rest: behind, by lane; dead and done, by time. It is one index, because each that a table has costs time with each
-- row, also with those that it does not hold.
CREATE INDEX onceward_delivery_state ON onceward_delivery (state, (CASE WHEN state = 2 THEN lane ELSE due END)) WHERE state > 1;
-- For finding a message by what the receiver calls the effect, which may be longer than an index takes.
CREATE INDEX onceward_delivery_provider ON onceward_delivery (md5(provider_id)) WHERE provider_id IS NOT NULL;

-- All messages, wherever they are. The new ones are ready (0), or captured (6): for change-data-capture alone. Each state is a
-- constant, so that a query for another one does not look at them.
CREATE VIEW onceward_message AS
SELECT id, due, created_at, origin_attempt, attempts, state, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload,
	provider_id, last_error, answer
FROM onceward_delivery
UNION ALL
SELECT id, due, created_at, origin_attempt, 0, 0::smallint, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload,
	NULL::text, NULL::text, NULL::bytea
FROM onceward_outbox WHERE number > 0
UNION ALL
SELECT id, due, created_at, origin_attempt, 0, 6::smallint, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin_scope, origin_key, payload,
	NULL::text, NULL::text, NULL::bytea
FROM onceward_outbox WHERE number < 0;

-- Events that consumers have had. Texts that come from outside are bytea: they may hold any byte.
CREATE TABLE onceward_inbox (
	applied_at bigint NOT NULL, -- in microseconds since 1970
	event_id   bytea NOT NULL,
	consumer   bytea NOT NULL,
	PRIMARY KEY (event_id, consumer)
);

CREATE INDEX onceward_inbox_applied_at ON onceward_inbox (applied_at);

-- The store's clock: the moment itself, not the start of the transaction.
-- +goose StatementBegin
CREATE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;
-- +goose StatementEnd

-- Makes at most so many records unknown whose lease has ended, and returns which. Any scheduler may call it. Rows are locked where
-- they lie and changed at that place, without a second look-up; a row that has moved since is left to the next call.
-- +goose StatementBegin
CREATE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us bigint := onceward_now();
BEGIN
	RETURN QUERY
	WITH lost AS MATERIALIZED (
		SELECT t.ctid AS place FROM onceward_record t
		WHERE t.state = 10 AND t.due <= now_us AND t.version = 1
		ORDER BY t.state, t.due LIMIT batch
		FOR NO KEY UPDATE SKIP LOCKED
	)
	UPDATE onceward_record t
	SET state = 40, due = now_us, settled_at = now_us, nonce = NULL,
		first_error = coalesce(t.first_error, t.last_error), last_error = 'lease ran out'
	WHERE t.ctid = ANY (ARRAY(SELECT lost.place FROM lost))
	RETURNING t.id;
END
$$;
-- +goose StatementEnd

-- Removes at most so many settled records past their expiry, and returns how many; softly, it marks them expired first and removes
-- them a retention later. Any scheduler may call it, and several at once share the work: a row that is locked, or has changed since
-- the look, is left to the next call.
-- +goose StatementBegin
CREATE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us bigint := onceward_now();
	places tid[];
	reaped integer := 0;
	n      integer;
BEGIN
	-- Each branch is of one state, so that it goes by an index on what is due.
	places := ARRAY(
		SELECT d.place FROM (
			SELECT r.ctid AS place FROM onceward_record r
			WHERE r.state = 20 AND r.due / 1000000 <= now_us / 1000000 AND r.due <= now_us AND r.version = 1
			ORDER BY r.due / 1000000 LIMIT batch FOR UPDATE SKIP LOCKED) d
		UNION ALL
		SELECT d.place FROM (
			SELECT r.ctid AS place FROM onceward_record r WHERE r.state = 30 AND r.due <= now_us AND r.version = 1
			ORDER BY r.state, r.due LIMIT batch FOR UPDATE SKIP LOCKED) d
		LIMIT batch);
	IF soft THEN
		UPDATE onceward_record t
		SET state = 50, due = now_us + t.retention, created_at = coalesce(t.created_at, t.due - t.retention),
			settled_at = t.due - t.retention, downstream_secret = NULL, reconcile_count = NULL, step = NULL, status = 0,
			resumable = NULL, not_replayable = NULL, not_stored = NULL, nonce = NULL, point = NULL, last_error = NULL, first_error = NULL,
			reconcile_error = NULL, provider_id = NULL, trace_id = NULL, content_type = NULL, header = NULL,
			data = NULL, body = NULL
		WHERE t.ctid = ANY (places) AND t.state IN (20, 30) AND t.due <= now_us;
	ELSE
		DELETE FROM onceward_record t WHERE t.ctid = ANY (places) AND t.state IN (20, 30) AND t.due <= now_us;
	END IF;
	GET DIAGNOSTICS reaped = ROW_COUNT;
	DELETE FROM onceward_record t WHERE t.ctid = ANY (ARRAY(
		SELECT r.ctid FROM onceward_record r WHERE r.state = 50 AND r.due <= now_us AND r.version = 1
		ORDER BY r.state, r.due LIMIT batch - reaped FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS n = ROW_COUNT;
	DELETE FROM onceward_late_completion f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped + n;
END
$$;
-- +goose StatementEnd

-- Removes at most so many rows that are older than an age, the oldest first, and returns how many: of the table external_event,
-- audit, execution or inbox. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge(kind text, age interval, batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	since  name := CASE kind WHEN 'external_event' THEN 'received_at' WHEN 'audit' THEN 'at' WHEN 'execution' THEN 'at'
		WHEN 'inbox' THEN 'applied_at' END;
	purged integer;
BEGIN
	IF since IS NULL THEN
		RAISE EXCEPTION 'onceward_purge takes external_event, audit, execution or inbox, not %', kind;
	END IF;
	EXECUTE format('DELETE FROM %1$I t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM %1$I o WHERE o.%2$I < $1 ORDER BY o.%2$I LIMIT $2))', 'onceward_' || kind, since)
		USING onceward_now() - (extract(epoch FROM age) * 1000000)::bigint, batch;
	GET DIAGNOSTICS purged = ROW_COUNT;
	RETURN purged;
END
$$;
-- +goose StatementEnd

-- Takes at most so many messages of each topic that are due. Those that have an earlier open message of their aggregate in
-- front of them, which is not taken with them, become behind (2): their lanes are to be freed afterwards, because what they
-- wait for may be gone since this statement began. A row that was changed since is not taken, and those behind it have to wait
-- for it: it stays for the next time.
--
-- A last row of nulls says that there are new messages to be promoted.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_claim(topics text[], limits integer[], lease bigint, fence bigint)
RETURNS TABLE (id uuid, number bigint, lane bigint, due bigint, created_at bigint, origin_attempt bigint, attempts integer, state smallint,
	topic text, aggregatetype text, aggregateid text, type text, downstream_key text, attributes text, origin_scope bytea, origin_key bytea,
	payload bytea, provider_id text, last_error text, answer bytea)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
	now_us bigint := onceward_now();
	-- Asked first: what is not there any more when it is asked was promoted, and is seen by what follows.
	more boolean := EXISTS (SELECT FROM onceward_outbox o WHERE o.number > 0);
BEGIN
	RETURN QUERY
	WITH locked AS MATERIALIZED (
		SELECT c.place, c.number, c.lane
		FROM unnest(topics, limits) AS w (topic, most)
		CROSS JOIN LATERAL (
			SELECT o.ctid AS place, o.number, o.lane FROM onceward_delivery o
			WHERE o.topic = w.topic AND o.state < 2 AND o.due <= now_us
			ORDER BY o.topic, o.due LIMIT w.most
			FOR UPDATE SKIP LOCKED
		) c
	), candidate AS MATERIALIZED (
		-- Locking finds the newest version of a row; the update below sees only what this statement saw at its beginning.
		SELECT l.place, l.number, l.lane FROM locked l JOIN onceward_delivery o ON o.ctid = l.place
	), barrier AS MATERIALIZED (
		SELECT l.lane, (
			SELECT e.number FROM onceward_delivery e
			WHERE e.lane = l.lane AND e.state < 4 AND e.lane <> 0 AND e.number < l.newest
				AND e.number NOT IN (SELECT c.number FROM candidate c)
			ORDER BY e.lane, e.number LIMIT 1
		) AS number
		FROM (SELECT c.lane, max(c.number) AS newest FROM candidate c WHERE c.lane <> 0 GROUP BY c.lane) l
	), judged AS MATERIALIZED (
		SELECT c.place, coalesce(c.number > b.number, false) AS waits,
			c.lane = 0 OR c.number = min(c.number) OVER (PARTITION BY c.lane) AS heads
		FROM candidate c LEFT JOIN (SELECT * FROM barrier WHERE barrier.number IS NOT NULL) b ON b.lane = c.lane
	)
	UPDATE onceward_delivery o
	SET state = CASE WHEN j.waits THEN 2 ELSE 1 END,
		due = CASE WHEN j.waits THEN o.due ELSE now_us + lease END,
		token = CASE WHEN j.waits THEN 0 ELSE fence END,
		attempts = o.attempts + CASE WHEN j.heads AND NOT j.waits THEN 1 ELSE 0 END
	FROM judged j WHERE o.ctid = j.place
	RETURNING o.id, o.number, o.lane, o.due, o.created_at, o.origin_attempt, o.attempts, o.state, o.topic, o.aggregatetype, o.aggregateid,
		o.type, o.downstream_key, o.attributes, o.origin_scope, o.origin_key, CASE WHEN o.state = 1 THEN o.payload END, o.provider_id,
		o.last_error, o.answer;
	IF more THEN
		RETURN NEXT;
	END IF;
END
$$;
-- +goose StatementEnd

-- Ends leases that are still held, and returns which, with the lanes of their messages: these are to be freed afterwards. The ids
-- are to be in order, because that is how others lock messages too.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_finish(ids uuid[], tokens bigint[], states smallint[], waits bigint[], counts integer[],
	providers text[], errors text[])
RETURNS TABLE (id uuid, token bigint, lane bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
	now_us bigint := onceward_now();
BEGIN
	RETURN QUERY
	UPDATE onceward_delivery o
	SET state = CASE WHEN u.state = 2 AND o.lane = 0 THEN 0 ELSE u.state END, due = now_us + u.wait, attempts = u.count, token = 0,
		provider_id = coalesce(u.provider_id, o.provider_id), last_error = coalesce(u.last_error, o.last_error)
	FROM unnest(ids, tokens, states, waits, counts, providers, errors) AS u (id, token, state, wait, count, provider_id, last_error)
	-- The sum keeps the planner from the order of what is due: by the primary key, they are locked in the order of their ids.
	WHERE o.id = u.id AND o.token = u.token AND o.state + 0 = 1
	RETURNING o.id, u.token, o.lane;
END
$$;
-- +goose StatementEnd

-- Makes leases last longer, and returns those that are held. One that is being finished at this moment is left alone.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_extend(ids uuid[], tokens bigint[], lease bigint) RETURNS TABLE (id uuid, token bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
	now_us bigint := onceward_now();
BEGIN
	UPDATE onceward_delivery o SET due = now_us + lease
	WHERE o.ctid = ANY (ARRAY(
		SELECT e.ctid FROM unnest(ids, tokens) AS u (id, token)
		JOIN onceward_delivery e ON e.id = u.id AND e.token = u.token AND e.state = 1
		FOR UPDATE OF e SKIP LOCKED));
	RETURN QUERY
	SELECT e.id, e.token FROM unnest(ids, tokens) AS u (id, token)
	JOIN onceward_delivery e ON e.id = u.id AND e.token = u.token AND e.state = 1;
END
$$;
-- +goose StatementEnd

-- Makes messages ready that have nothing in front of them any more: of each lane at most a hundred, the earliest. They are
-- due as of old, so that they are taken before what came after them. They are locked in the order of their ids, as those are
-- that are finished: so neither waits for the other one while that waits for it.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_free(lanes bigint[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
DECLARE
	freed integer;
BEGIN
	-- The sums keep the planner from looking for all that is behind: it is to go by place alone.
	UPDATE onceward_delivery o SET state = 0, due = o.created_at
	WHERE o.state + 0 = 2 AND o.ctid = ANY (ARRAY(
		SELECT b.ctid FROM onceward_delivery b
		WHERE b.state + 0 = 2 AND b.ctid = ANY (ARRAY(
			SELECT f.place
			FROM (SELECT DISTINCT unnest(lanes) AS lane) l
			CROSS JOIN LATERAL (
				SELECT e.ctid AS place, e.state, first_value(e.state) OVER (ORDER BY e.number) AS first
				FROM (
					SELECT t.ctid, t.number, t.state FROM onceward_delivery t
					WHERE t.lane = l.lane AND t.state < 4 AND t.lane <> 0
					ORDER BY t.lane, t.number LIMIT 100
				) e
			) f
			WHERE f.state = 2 AND f.first = 2))
		ORDER BY b.id FOR UPDATE));
	GET DIAGNOSTICS freed = ROW_COUNT;
	RETURN freed;
END
$$;
-- +goose StatementEnd

-- Looks after messages that wait for nothing, because the worker that was to free them is gone, and makes them ready.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_free_stuck(batch integer DEFAULT 10000) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
	RETURN onceward_outbox_free(ARRAY(
		WITH RECURSIVE waiting AS (
			(SELECT t.lane FROM onceward_delivery t WHERE t.state = 2
				ORDER BY t.state, CASE WHEN t.state = 2 THEN t.lane ELSE t.due END LIMIT 1)
			UNION ALL
			SELECT (SELECT t.lane FROM onceward_delivery t
				WHERE t.state = 2 AND CASE WHEN t.state = 2 THEN t.lane ELSE t.due END > w.lane
				ORDER BY t.state, CASE WHEN t.state = 2 THEN t.lane ELSE t.due END LIMIT 1)
			FROM waiting w WHERE w.lane IS NOT NULL
		)
		SELECT w.lane FROM waiting w
		WHERE w.lane IS NOT NULL AND (
			SELECT t.state FROM onceward_delivery t WHERE t.lane = w.lane AND t.state < 4 AND t.lane <> 0 ORDER BY t.lane, t.number LIMIT 1
		) = 2
		LIMIT batch));
END
$$;
-- +goose StatementEnd

-- Removes at most so many messages that were done, or captured, longer ago than that. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge_outbox(age interval, batch integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	oldest bigint := onceward_now() - (extract(epoch FROM age) * 1000000)::bigint;
	done integer;
	captured integer;
BEGIN
	DELETE FROM onceward_delivery t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_delivery o
		WHERE o.state = 4 AND o.state > 1 AND CASE WHEN o.state = 2 THEN o.lane ELSE o.due END < oldest
		ORDER BY o.state, CASE WHEN o.state = 2 THEN o.lane ELSE o.due END LIMIT batch
		FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS done = ROW_COUNT;
	-- The numbers of captured messages fall: the first of them are the oldest.
	DELETE FROM onceward_outbox t WHERE t.created_at < oldest AND t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_outbox o WHERE o.number < 0 ORDER BY o.number DESC LIMIT batch - done));
	GET DIAGNOSTICS captured = ROW_COUNT;
	RETURN done + captured;
END
$$;
-- +goose StatementEnd

-- From here on: what is for people to read.

-- A moment, which the tables hold in microseconds since 1970; 0 for none. What is damaged may be one that there is not.
-- +goose StatementBegin
CREATE FUNCTION onceward_time(us bigint) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT timestamptz 'epoch' + CASE WHEN $1 <> 0 AND $1 BETWEEN -62135596800000000 AND 253402300799999999 THEN $1 END * interval '1 microsecond' $$;
-- +goose StatementEnd

-- A text that came from outside, and may hold any byte: where it is no text of this database, its bytes are escaped.
-- +goose StatementBegin
CREATE FUNCTION onceward_text(b bytea) RETURNS text LANGUAGE plpgsql STABLE
AS $$
BEGIN
	RETURN convert_from(b, 'UTF8');
EXCEPTION WHEN others THEN
	RETURN encode(b, 'escape');
END
$$;
-- +goose StatementEnd

-- The records, for people. Each state is a constant in a branch of its own, so that a query for one goes by the index on it, and
-- a query by id goes by the primary key. The hash is the id without its dashes. Rows that are no records are not in it.
CREATE VIEW onceward_records AS
SELECT
	r.id,
	encode(uuid_send(r.id), 'hex') AS hash,
	onceward_text(r.scope) AS scope,
	coalesce(r.key_uuid::text, onceward_text(r.key)) AS key,
	onceward_text(r.operation) AS operation,
	r.named AS state,
	r.state = 41 AS dead_letter,
	r.attempt,
	onceward_time(coalesce(r.created_at, r.settled)) AS created_at,
	CASE WHEN r.state IN (10, 11) THEN onceward_time(r.due) END AS lease_until,
	CASE WHEN r.state IN (40, 41) THEN onceward_time(r.due) END AS reconcile_at,
	onceward_time(coalesce(r.settled_at, r.settled)) AS settled_at,
	CASE WHEN r.state IN (20, 30, 50) THEN onceward_time(r.due) END AS expires_at,
	r.retention * interval '1 microsecond' AS retention,
	onceward_text(r.point) AS point,
	onceward_text(r.first_error) AS first_error,
	onceward_text(r.last_error) AS last_error,
	onceward_text(r.reconcile_error) AS reconcile_error,
	coalesce(r.reconcile_count, 0) AS reconcile_count,
	onceward_text(r.provider_id) AS provider_id,
	onceward_text(r.trace_id) AS trace_id,
	nullif(r.status, 0) AS answer_status,
	CASE WHEN r.state = 20 THEN coalesce(length(r.content_type), 0) + coalesce(length(r.header), 0) + coalesce(length(r.body), 0) END AS answer_bytes
FROM (
	SELECT 'in_progress'::text AS named, NULL::bigint AS settled, o.* FROM onceward_record o WHERE o.state IN (10, 11)
	UNION ALL
	SELECT 'completed', CASE WHEN o.due > 0 AND o.retention >= 0 THEN o.due - o.retention END, o.*
	FROM onceward_record o WHERE o.state = 20
	UNION ALL
	SELECT 'failed_retryable', CASE WHEN o.due > 0 AND o.retention >= 0 THEN o.due - o.retention END, o.*
	FROM onceward_record o WHERE o.state = 30
	UNION ALL
	SELECT 'unknown', NULL, o.* FROM onceward_record o WHERE o.state IN (40, 41)
	UNION ALL
	SELECT 'expired', NULL, o.* FROM onceward_record o WHERE o.state = 50
) r;

-- The messages of the outbox, for people, wherever they are.
CREATE VIEW onceward_messages AS
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	m.named AS state,
	m.attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(m.origin_scope) AS origin_scope,
	onceward_text(m.origin_key) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id,
	m.last_error,
	length(m.payload) AS payload_bytes
FROM (
	SELECT 'ready'::text AS named, o.* FROM onceward_message o WHERE o.state = 0
	UNION ALL
	SELECT 'leased', o.* FROM onceward_message o WHERE o.state = 1
	UNION ALL
	SELECT 'behind', o.* FROM onceward_message o WHERE o.state = 2
	UNION ALL
	SELECT 'holding', o.* FROM onceward_message o WHERE o.state = 3
	UNION ALL
	SELECT 'done', o.* FROM onceward_message o WHERE o.state = 4
	UNION ALL
	SELECT 'dead', o.* FROM onceward_message o WHERE o.state = 5
	UNION ALL
	SELECT 'captured', o.* FROM onceward_message o WHERE o.state = 6
) m;

-- Who did what to which record, for people.
CREATE VIEW onceward_audit_log AS
SELECT
	a.number,
	onceward_time(a.at) AS at,
	a.id,
	onceward_text(a.scope) AS scope,
	onceward_text(a.key) AS key,
	a.attempt,
	onceward_text(a.actor) AS actor,
	onceward_text(a.action) AS action,
	onceward_text(a.reason) AS reason,
	onceward_text(a.outcome) AS outcome
FROM onceward_audit a;

-- The requests of audited routes, for people.
CREATE VIEW onceward_execution_log AS
SELECT
	e.number,
	onceward_time(e.at) AS at,
	e.id,
	onceward_text(e.scope) AS scope,
	onceward_text(e.key) AS key,
	onceward_text(e.operation) AS operation,
	onceward_text(e.actor) AS actor,
	(ARRAY['execute', 'replay', 'in_progress', 'mismatch', 'unknown', 'refused'])[e.decision] AS decision,
	(ARRAY['created', 'retried', 'resumed', 'recreated', 'repeated'])[e.origin] AS origin,
	e.attempt
FROM onceward_execution e;

-- What each table and column holds, for those who look with a tool.
COMMENT ON TABLE onceward_schema IS 'The versions of the tables: one row for each migration.';
COMMENT ON COLUMN onceward_schema.version IS 'The version that the migration made.';
COMMENT ON COLUMN onceward_schema.applied_at IS 'When it was applied.';
COMMENT ON TABLE onceward_record IS 'The records, one for each idempotency key. Look at them by the view onceward_records. Rows with state 0 are no records: they keep the planner from scanning the table.';
COMMENT ON COLUMN onceward_record.id IS 'The hash of scope and key, as logs show it, in the form of a UUID.';
COMMENT ON COLUMN onceward_record.attempt IS 'The fencing token: it grows with each grant of the right to execute.';
COMMENT ON COLUMN onceward_record.due IS 'End of the lease, next reconciliation or expiry.';
COMMENT ON COLUMN onceward_record.retention IS 'How long the record is kept after it was settled, in microseconds.';
COMMENT ON COLUMN onceward_record.created_at IS 'When the record was made; NULL for when it was settled, as of one that a transaction has made.';
COMMENT ON COLUMN onceward_record.settled_at IS 'Unknown: when the attempt was lost; expired: when the record was settled; NULL in other states, where it is due less retention.';
COMMENT ON COLUMN onceward_record.downstream_secret IS 'The id of the secret that downstream keys are derived with.';
COMMENT ON COLUMN onceward_record.reconcile_count IS 'How often reconciliation was tried; NULL for never.';
COMMENT ON COLUMN onceward_record.step IS 'A random number of the transaction that stored the recovery point last, by which it is recognised; NULL for none.';
COMMENT ON COLUMN onceward_record.state IS '10 in progress, 11 in progress and resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41 unknown and left to a person, 50 expired, 0 no record.';
COMMENT ON COLUMN onceward_record.version IS 'The version of the record: a program changes no record of a version that it does not know.';
COMMENT ON COLUMN onceward_record.resumable IS 'Whether a later attempt resumes what a lost owner began; NULL for no.';
COMMENT ON COLUMN onceward_record.status IS 'Completed: the HTTP status of the stored answer; else 0.';
COMMENT ON COLUMN onceward_record.not_replayable IS 'Whether the answer was already on its way to the client without being stored; NULL for no.';
COMMENT ON COLUMN onceward_record.not_stored IS 'Whether the body of the answer was too large to be stored; NULL for no.';
COMMENT ON COLUMN onceward_record.key_uuid IS 'The idempotency key, if it is a UUID in its usual form: it takes less room so.';
COMMENT ON COLUMN onceward_record.nonce IS 'In progress: of the owner, by which it recognises its own grant.';
COMMENT ON COLUMN onceward_record.fingerprint IS 'Of the request: the version of its rules (1 byte), the id of the secret (4), the keyed hash (32) and, if it is bound to one, the session (16).';
COMMENT ON COLUMN onceward_record.operation IS 'The method and route pattern, or the name given to Guard.Do.';
COMMENT ON COLUMN onceward_record.scope IS 'The security boundary that the key lives in.';
COMMENT ON COLUMN onceward_record.key IS 'The idempotency key, if it is no UUID.';
COMMENT ON COLUMN onceward_record.point IS 'The recovery point that was reached last.';
COMMENT ON COLUMN onceward_record.last_error IS 'Why it was last released, or became unknown.';
COMMENT ON COLUMN onceward_record.first_error IS 'What went wrong first, if something else went wrong or was tried since.';
COMMENT ON COLUMN onceward_record.reconcile_error IS 'What the last attempt to reconcile was answered.';
COMMENT ON COLUMN onceward_record.provider_id IS 'What the provider calls the effect.';
COMMENT ON COLUMN onceward_record.trace_id IS 'The trace of the first execution.';
COMMENT ON COLUMN onceward_record.content_type IS 'Completed: the first header field of the answer, if it is Content-Type.';
COMMENT ON COLUMN onceward_record.header IS 'Completed: the other header fields of the answer, length-prefixed.';
COMMENT ON COLUMN onceward_record.data IS 'What a phased operation carries from step to step.';
COMMENT ON COLUMN onceward_record.body IS 'Completed: the body of the answer.';
COMMENT ON TABLE onceward_late_completion IS 'Answers that came too late and were refused, kept for those who settle what is unknown.';
COMMENT ON COLUMN onceward_late_completion.id IS 'That of the record.';
COMMENT ON COLUMN onceward_late_completion.attempt IS 'The attempt whose answer it is.';
COMMENT ON COLUMN onceward_late_completion.at IS 'When it was refused, in microseconds since 1970.';
COMMENT ON COLUMN onceward_late_completion.status IS 'The HTTP status of the answer.';
COMMENT ON COLUMN onceward_late_completion.not_stored IS 'Whether the body of the answer was too large to be stored.';
COMMENT ON COLUMN onceward_late_completion.content_type IS 'The first header field of the answer, if it is Content-Type.';
COMMENT ON COLUMN onceward_late_completion.header IS 'The other header fields of the answer, length-prefixed.';
COMMENT ON COLUMN onceward_late_completion.body IS 'The body of the answer.';
COMMENT ON TABLE onceward_external_event IS 'What other systems told by themselves, such as webhooks.';
COMMENT ON COLUMN onceward_external_event.at IS 'When it happened by the clock of the sender, in microseconds since 1970.';
COMMENT ON COLUMN onceward_external_event.received_at IS 'When it was kept, likewise.';
COMMENT ON COLUMN onceward_external_event.any_scope IS 'Whether the sender may settle records of every scope.';
COMMENT ON COLUMN onceward_external_event.scope IS 'Otherwise the one whose records it may settle.';
COMMENT ON COLUMN onceward_external_event.source IS 'The other system.';
COMMENT ON COLUMN onceward_external_event.event_id IS 'The id that the source gave to the event.';
COMMENT ON COLUMN onceward_external_event.subject IS 'What it is about: a downstream key, or the id of the provider.';
COMMENT ON COLUMN onceward_external_event.body IS 'The event itself.';
COMMENT ON TABLE onceward_audit IS 'Who did what to which record, and why. Entries are only added. Look at them by the view onceward_audit_log.';
COMMENT ON COLUMN onceward_audit.number IS 'The order of the entries.';
COMMENT ON COLUMN onceward_audit.id IS 'That of the record.';
COMMENT ON COLUMN onceward_audit.attempt IS 'The attempt that was acted on.';
COMMENT ON COLUMN onceward_audit.at IS 'When it was written, in microseconds since 1970.';
COMMENT ON COLUMN onceward_audit.scope IS 'The scope of the record, which may be gone.';
COMMENT ON COLUMN onceward_audit.key IS 'The key of the record.';
COMMENT ON COLUMN onceward_audit.actor IS 'Who acted: a person, or the name of a program.';
COMMENT ON COLUMN onceward_audit.action IS 'What was done.';
COMMENT ON COLUMN onceward_audit.reason IS 'Why, in the words of the actor.';
COMMENT ON COLUMN onceward_audit.outcome IS 'Empty before the act; in a second entry, how it ended.';
COMMENT ON TABLE onceward_execution IS 'Requests of routes whose executions are audited. Entries are only added. Look at them by the view onceward_execution_log.';
COMMENT ON COLUMN onceward_execution.number IS 'The order of the entries.';
COMMENT ON COLUMN onceward_execution.id IS 'That of the record.';
COMMENT ON COLUMN onceward_execution.attempt IS 'That of the record, zero if nothing of it was visible.';
COMMENT ON COLUMN onceward_execution.at IS 'When it was written, in microseconds since 1970.';
COMMENT ON COLUMN onceward_execution.decision IS '1 execute, 2 replay, 3 in progress, 4 mismatch, 5 unknown, 6 refused.';
COMMENT ON COLUMN onceward_execution.origin IS 'Of an execution: 1 created, 2 retried, 3 resumed, 4 recreated, 5 repeated; 0 for none.';
COMMENT ON COLUMN onceward_execution.scope IS 'The scope of the record, which may be gone.';
COMMENT ON COLUMN onceward_execution.key IS 'The key of the record.';
COMMENT ON COLUMN onceward_execution.operation IS 'The method and route pattern.';
COMMENT ON COLUMN onceward_execution.actor IS 'Who called, as the service knows them.';
COMMENT ON TABLE onceward_outbox IS 'Messages that were added and are not promoted yet. Look at all messages by the view onceward_messages.';
COMMENT ON COLUMN onceward_outbox.number IS 'The order of messages; below zero for change-data-capture alone, never promoted.';
COMMENT ON COLUMN onceward_outbox.id IS 'Made by the program that adds the message, larger ones later.';
COMMENT ON COLUMN onceward_outbox.lane IS 'A hash of topic and aggregate, within which messages keep their order; 0 for none.';
COMMENT ON COLUMN onceward_outbox.due IS 'The first delivery, in microseconds since 1970.';
COMMENT ON COLUMN onceward_outbox.created_at IS 'When it was added, likewise.';
COMMENT ON COLUMN onceward_outbox.origin_attempt IS 'The attempt of the operation that added it.';
COMMENT ON COLUMN onceward_outbox.topic IS 'Where it goes; empty for change-data-capture alone.';
COMMENT ON COLUMN onceward_outbox.aggregatetype IS 'The kind of thing that it is about.';
COMMENT ON COLUMN onceward_outbox.aggregateid IS 'The thing that it is about.';
COMMENT ON COLUMN onceward_outbox.type IS 'What happened to it.';
COMMENT ON COLUMN onceward_outbox.downstream_key IS 'The idempotency key to send along.';
COMMENT ON COLUMN onceward_outbox.attributes IS 'Content type, source, subject, step and headers, as JSON.';
COMMENT ON COLUMN onceward_outbox.origin_scope IS 'The scope of the operation that added it; NULL for none.';
COMMENT ON COLUMN onceward_outbox.origin_key IS 'The key of the operation that added it.';
COMMENT ON COLUMN onceward_outbox.payload IS 'The message itself.';
COMMENT ON TABLE onceward_delivery IS 'Messages that were promoted: workers deliver them, and they are kept until they are purged. Look at all messages by the view onceward_messages.';
COMMENT ON COLUMN onceward_delivery.id IS 'That of the message.';
COMMENT ON COLUMN onceward_delivery.number IS 'The order of messages.';
COMMENT ON COLUMN onceward_delivery.lane IS 'A hash of topic and aggregate, within which messages keep their order; 0 for none.';
COMMENT ON COLUMN onceward_delivery.due IS 'Next delivery, end of the lease, or when it was done, in microseconds since 1970.';
COMMENT ON COLUMN onceward_delivery.created_at IS 'When it was added, likewise.';
COMMENT ON COLUMN onceward_delivery.token IS 'That of the lease, zero if there is none, below zero for a dead letter that was given up.';
COMMENT ON COLUMN onceward_delivery.origin_attempt IS 'The attempt of the operation that added it.';
COMMENT ON COLUMN onceward_delivery.attempts IS 'How often it was delivered.';
COMMENT ON COLUMN onceward_delivery.state IS '0 ready, 1 leased, 2 behind an earlier one, 3 dead and holding up its aggregate, 4 done, 5 dead.';
COMMENT ON COLUMN onceward_delivery.topic IS 'Where it goes.';
COMMENT ON COLUMN onceward_delivery.aggregatetype IS 'The kind of thing that it is about.';
COMMENT ON COLUMN onceward_delivery.aggregateid IS 'The thing that it is about.';
COMMENT ON COLUMN onceward_delivery.type IS 'What happened to it.';
COMMENT ON COLUMN onceward_delivery.downstream_key IS 'The idempotency key to send along.';
COMMENT ON COLUMN onceward_delivery.attributes IS 'Content type, source, subject, step and headers, as JSON.';
COMMENT ON COLUMN onceward_delivery.origin_scope IS 'The scope of the operation that added it; NULL for none.';
COMMENT ON COLUMN onceward_delivery.origin_key IS 'The key of the operation that added it.';
COMMENT ON COLUMN onceward_delivery.payload IS 'The message itself.';
COMMENT ON COLUMN onceward_delivery.provider_id IS 'What the receiver calls the effect.';
COMMENT ON COLUMN onceward_delivery.last_error IS 'Why the last delivery failed.';
COMMENT ON COLUMN onceward_delivery.answer IS 'What the handler kept of the receiver''s answer.';
COMMENT ON TABLE onceward_inbox IS 'Events that consumers have had.';
COMMENT ON COLUMN onceward_inbox.applied_at IS 'When it was applied, in microseconds since 1970.';
COMMENT ON COLUMN onceward_inbox.event_id IS 'The id of the event.';
COMMENT ON COLUMN onceward_inbox.consumer IS 'Who has had it.';
COMMENT ON VIEW onceward_records IS 'The records, for people. Columns without a comment are those of the table onceward_record.';
COMMENT ON COLUMN onceward_records.id IS 'The primary key: query by it, or by state.';
COMMENT ON COLUMN onceward_records.state IS 'in_progress, completed, failed_retryable, unknown or expired.';
COMMENT ON COLUMN onceward_records.dead_letter IS 'Whether reconciliation has given up: a person must settle the record.';
COMMENT ON COLUMN onceward_records.lease_until IS 'In progress: when the right to execute ends.';
COMMENT ON COLUMN onceward_records.reconcile_at IS 'Unknown: when it is asked after next.';
COMMENT ON COLUMN onceward_records.settled_at IS 'When it was settled or, unknown, when its attempt was lost.';
COMMENT ON COLUMN onceward_records.expires_at IS 'When it may be removed.';
COMMENT ON COLUMN onceward_records.answer_status IS 'The HTTP status of the stored answer.';
COMMENT ON COLUMN onceward_records.answer_bytes IS 'The size of the stored answer, with its header fields.';
COMMENT ON VIEW onceward_messages IS 'The messages of the outbox, for people, wherever they are.';
COMMENT ON VIEW onceward_message IS 'The messages of the outbox, wherever they are, as the program reads them: for people there is onceward_messages.';
COMMENT ON VIEW onceward_audit_log IS 'Who did what to which record, for people.';
COMMENT ON VIEW onceward_execution_log IS 'Requests of audited routes, for people.';

INSERT INTO onceward_schema (version) VALUES (1);
