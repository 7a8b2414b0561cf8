-- +goose Up

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
	origin         bytea,              -- scope and key of the operation that added it, length-prefixed
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
	origin         bytea,
	payload        bytea NOT NULL,
	provider_id    text,                        -- what the receiver calls the effect
	last_error     text                         -- why the last delivery failed
);

-- For claims. Messages that are done are not in it, nor those that wait for another one.
CREATE INDEX onceward_delivery_due ON onceward_delivery (topic, due) WHERE state < 2;
-- For the order within an aggregate.
CREATE INDEX onceward_delivery_lane ON onceward_delivery (lane, number) WHERE state < 4 AND lane <> 0;
-- For the rest: behind, by lane; dead and done, by time. It is one index, because each that a table has costs time with each
-- row, also with those that it does not hold.
CREATE INDEX onceward_delivery_state ON onceward_delivery (state, (CASE WHEN state = 2 THEN lane ELSE due END)) WHERE state > 1;

-- All messages, wherever they are. The new ones are ready (0), or captured (6): for change-data-capture alone. Each state is a
-- constant, so that a query for another one does not look at them.
CREATE VIEW onceward_message AS
SELECT id, due, created_at, origin_attempt, attempts, state, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin, payload,
	provider_id, last_error
FROM onceward_delivery
UNION ALL
SELECT id, due, created_at, origin_attempt, 0, 0::smallint, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin, payload,
	NULL::text, NULL::text
FROM onceward_outbox WHERE number > 0
UNION ALL
SELECT id, due, created_at, origin_attempt, 0, 6::smallint, topic, aggregatetype, aggregateid, type, downstream_key, attributes, origin, payload,
	NULL::text, NULL::text
FROM onceward_outbox WHERE number < 0;

-- Promotes at most so many messages to deliveries, the earliest. Only one session at a time does it, and looks when it is its
-- turn: so a message is promoted together with the earlier ones of its aggregate, or after them, and a session that sees it sees
-- those. It is to be a transaction of its own, because others wait for its end. A message that was added twice under one id, by
-- SQL of the application, is one. Returns how many there were: fewer than that many are all.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_promote(most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
	promoted integer;
BEGIN
	-- Locks of two numbers whose last bit is zero are not those of aggregates.
	PERFORM pg_advisory_xact_lock('onceward_outbox'::regclass::oid::integer, 0);
	WITH gone AS (
		DELETE FROM onceward_outbox o
		WHERE o.ctid = ANY (ARRAY(SELECT e.ctid FROM onceward_outbox e WHERE e.number > 0 ORDER BY e.number LIMIT most))
		RETURNING o.*
	), kept AS (
		INSERT INTO onceward_delivery (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type, downstream_key,
			attributes, origin, payload)
		SELECT g.id, g.number, g.lane, g.due, g.created_at, g.origin_attempt, g.topic, g.aggregatetype, g.aggregateid, g.type, g.downstream_key,
			g.attributes, g.origin, g.payload
		FROM gone g
		ON CONFLICT (id) DO NOTHING
	)
	SELECT count(*) INTO promoted FROM gone;
	RETURN promoted;
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
	topic text, aggregatetype text, aggregateid text, type text, downstream_key text, attributes text, origin bytea, payload bytea,
	provider_id text, last_error text)
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
		o.type, o.downstream_key, o.attributes, o.origin, CASE WHEN o.state = 1 THEN o.payload END, o.provider_id, o.last_error;
	IF more THEN
		RETURN NEXT;
	END IF;
END
$$;
-- +goose StatementEnd

-- Ends leases that are still held, and returns which, with their lanes: these are to be freed afterwards. The ids are to be in
-- order, because that is how others lock messages too.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_finish(ids uuid[], tokens bigint[], states smallint[], waits bigint[], counts integer[],
	providers text[], errors text[])
RETURNS TABLE (id uuid, lane bigint)
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
	RETURNING o.id, o.lane;
END
$$;
-- +goose StatementEnd

-- Makes leases last longer, and returns those that are held. One that is being finished at this moment is left alone.
-- +goose StatementBegin
CREATE FUNCTION onceward_outbox_extend(ids uuid[], tokens bigint[], lease bigint) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_mergejoin = off
AS $$
DECLARE
	now_us bigint := onceward_now();
BEGIN
	UPDATE onceward_delivery o SET due = now_us + lease
	WHERE o.ctid = ANY (ARRAY(
		SELECT e.ctid FROM unnest(ids, tokens) AS u (id, token)
		JOIN onceward_delivery e ON e.id = u.id AND e.token = u.token AND e.state = 1
		FOR UPDATE OF e SKIP LOCKED));
	RETURN QUERY
	SELECT e.id FROM unnest(ids, tokens) AS u (id, token)
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

-- Events that consumers have had. Texts that come from outside are bytea: they may hold any byte.
CREATE TABLE onceward_inbox (
	applied_at bigint NOT NULL, -- in microseconds since 1970
	event_id   bytea NOT NULL,
	consumer   bytea NOT NULL,
	PRIMARY KEY (event_id, consumer)
);

CREATE INDEX onceward_inbox_applied_at ON onceward_inbox (applied_at);

-- Forgets at most so many events that were applied longer ago than that. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge_inbox(age interval, batch integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	oldest bigint := onceward_now() - (extract(epoch FROM age) * 1000000)::bigint;
	purged integer;
BEGIN
	DELETE FROM onceward_inbox t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_inbox o WHERE o.applied_at < oldest ORDER BY o.applied_at LIMIT batch));
	GET DIAGNOSTICS purged = ROW_COUNT;
	RETURN purged;
END
$$;
-- +goose StatementEnd

INSERT INTO onceward_schema (version, compatible) VALUES (2, 1);

-- +goose Down

DROP FUNCTION onceward_purge_inbox(interval, integer);
DROP TABLE onceward_inbox;
DROP FUNCTION onceward_purge_outbox(interval, integer);
DROP FUNCTION onceward_outbox_free_stuck(integer);
DROP FUNCTION onceward_outbox_free(bigint[]);
DROP FUNCTION onceward_outbox_extend(uuid[], bigint[], bigint);
DROP FUNCTION onceward_outbox_finish(uuid[], bigint[], smallint[], bigint[], integer[], text[], text[]);
DROP FUNCTION onceward_outbox_claim(text[], integer[], bigint, bigint);
DROP FUNCTION onceward_outbox_promote(integer);
DROP VIEW onceward_message;
DROP TABLE onceward_delivery;
DROP TABLE onceward_outbox;
DROP SEQUENCE onceward_outbox_number;
DELETE FROM onceward_schema WHERE version = 2;
