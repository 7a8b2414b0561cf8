-- +goose Up

-- Which version of the tables this is, and the oldest version of the program's own knowledge that may still use them.
CREATE TABLE onceward_schema (
	version    integer PRIMARY KEY,
	compatible integer NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT now()
);

-- What the names of the records are derived with: it keeps outsiders from finding keys that collide.
CREATE TABLE onceward_secret (
	value bytea NOT NULL
);

INSERT INTO onceward_secret (value)
SELECT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

-- The names of operations, so that a record holds a small number instead of a text.
CREATE TABLE onceward_operation (
	number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name   bytea NOT NULL UNIQUE
);

-- Attempt tokens: one sequence for all records, so that none is ever used twice (S7).
CREATE SEQUENCE onceward_attempt;

-- The records. The order of the columns leaves no gaps between them.
CREATE TABLE onceward_record (
	id        uuid PRIMARY KEY,  -- a keyed hash of scope and key
	attempt   bigint NOT NULL,
	due       bigint NOT NULL,   -- end of the lease, next reconciliation or expiry, in microseconds since 1970
	retention integer NOT NULL,  -- in seconds or, if negative, in microseconds
	answer    bytea NOT NULL,    -- in progress: the nonce; completed: the stored response
	queue     smallint NOT NULL, -- ten times the state, plus which background worker it waits for
	request   bytea NOT NULL,    -- version, fingerprint, operation, scope and key
	more      bytea NOT NULL     -- what only some records have, as tagged fields; the last of a kind counts
);

-- For the sweeper, the reconciler and the reaper. Steps of 2^24 microseconds make entries equal, which the index stores
-- once: seven bytes a record instead of twenty.
CREATE INDEX onceward_record_due ON onceward_record (queue, (due >> 24));

-- Ballast: a dozen pages of rows that are no records. In a table of few pages the planner prefers to scan, and a plan that
-- was cached then would go on scanning when the table has grown.
INSERT INTO onceward_record (id, attempt, due, retention, answer, queue, request, more)
SELECT md5('ballast ' || i)::uuid, 0, 0, 0, decode(repeat('00', 250), 'hex'), 0, '', '' FROM generate_series(1, 300) AS i;

-- Completions that came too late, kept for whoever reconciles.
CREATE TABLE onceward_finding (
	id       uuid NOT NULL,
	attempt  bigint NOT NULL,
	at       bigint NOT NULL,
	response bytea NOT NULL
);

CREATE INDEX onceward_finding_id ON onceward_finding (id, at);
CREATE INDEX onceward_finding_at ON onceward_finding (at);

-- The store's clock: the moment itself, not the start of the transaction.
-- +goose StatementBegin
CREATE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;
-- +goose StatementEnd

-- A retention in microseconds.
-- +goose StatementBegin
CREATE FUNCTION onceward_span(retention integer) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN $1 < 0 THEN -($1::bigint) ELSE $1 * 1000000::bigint END $$;
-- +goose StatementEnd

-- The longer of two retentions.
-- +goose StatementBegin
CREATE FUNCTION onceward_longer(a integer, b integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
	SELECT CASE
		WHEN ($1 < 0) <> ($2 < 0) THEN
			CASE WHEN (CASE WHEN $1 < 0 THEN -($1::bigint) ELSE $1 * 1000000::bigint END)
				>= (CASE WHEN $2 < 0 THEN -($2::bigint) ELSE $2 * 1000000::bigint END) THEN $1 ELSE $2 END
		WHEN $1 < 0 THEN least($1, $2)
		ELSE greatest($1, $2)
	END
$$;
-- +goose StatementEnd

-- Reserves many records at once, one after the other, in the order given: callers sort by id, so that two of them cannot
-- wait for each other. Each is decided by what is there at that moment: made where there is none, made anew over one that
-- counts for nothing any more, taken over if it may be retried by the same request, or handed back as it stands.
--
-- outcome: 0 read, 1 absent, 2 created, 3 recreated, 4 retried.
-- +goose StatementBegin
CREATE FUNCTION onceward_reserve_1(
	ids uuid[], creates boolean[], spans bigint[], retentions integer[], queues smallint[], nonces bytea[],
	requests bytea[], mores bytea[]
) RETURNS TABLE (
	o_item bigint, o_outcome smallint, o_now bigint, o_attempt bigint, o_due bigint, o_retention integer, o_answer bytea,
	o_queue smallint, o_request bytea, o_more bytea
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
	q record;
	expired boolean;
BEGIN
	o_now := onceward_now();
	FOR q IN
		SELECT u.id, u.creates, u.span, u.retention, u.queue, u.nonce, u.request, u.more, u.item
		FROM unnest(ids, creates, spans, retentions, queues, nonces, requests, mores)
			WITH ORDINALITY AS u (id, creates, span, retention, queue, nonce, request, more, item)
	LOOP
		LOOP
			SELECT q.item, 0, t.attempt, t.due, t.retention, t.answer, t.queue, t.request, t.more
			INTO o_item, o_outcome, o_attempt, o_due, o_retention, o_answer, o_queue, o_request, o_more
			FROM onceward_record t WHERE t.id = q.id;
			IF FOUND THEN
				EXIT WHEN o_queue < 20 OR o_queue > 30 AND o_queue < 50 OR get_byte(o_request, 0) & 15 <> 1;
				expired := o_queue = 50 OR o_due <= o_now;
				EXIT WHEN CASE WHEN expired THEN NOT q.creates ELSE o_queue <> 30 OR o_request <> q.request END;
				UPDATE onceward_record t SET attempt = nextval('onceward_attempt'), due = o_now + q.span,
					retention = CASE WHEN expired THEN q.retention ELSE onceward_longer(t.retention, q.retention) END,
					answer = q.nonce, queue = q.queue, request = q.request,
					more = CASE
						WHEN expired THEN '\x0108'::bytea || int8send(o_now) || q.more
						ELSE t.more || '\x050006000900'::bytea
					END
				WHERE t.id = q.id AND t.attempt = o_attempt AND t.queue = o_queue AND t.due = o_due
				RETURNING CASE WHEN expired THEN 3 ELSE 4 END, t.attempt, t.due, t.retention, '', t.more
				INTO o_outcome, o_attempt, o_due, o_retention, o_answer, o_more;
				EXIT WHEN FOUND;
			ELSE
				o_item := q.item;
				o_outcome := 1;
				EXIT WHEN NOT q.creates;
				INSERT INTO onceward_record AS t (id, attempt, due, retention, answer, queue, request, more)
				VALUES (q.id, nextval('onceward_attempt'), o_now + q.span, q.retention, q.nonce, q.queue, q.request,
					'\x0108'::bytea || int8send(o_now) || q.more)
				ON CONFLICT (id) DO NOTHING
				RETURNING 2, t.attempt INTO o_outcome, o_attempt;
				EXIT WHEN FOUND;
			END IF;
			-- Somebody was faster: look again.
		END LOOP;
		RETURN NEXT;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Stores many answers at once, in the order given. It returns the items that were written; the others are not in progress
-- at that attempt.
-- +goose StatementBegin
CREATE FUNCTION onceward_complete_1(ids uuid[], attempts bigint[], retentions integer[], answers bytea[], mores bytea[])
RETURNS TABLE (o_item bigint, o_due bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	q record;
	now_us bigint := onceward_now();
BEGIN
	FOR q IN
		SELECT u.id, u.attempt, u.retention, u.answer, u.more, u.item
		FROM unnest(ids, attempts, retentions, answers, mores) WITH ORDINALITY AS u (id, attempt, retention, answer, more, item)
	LOOP
		UPDATE onceward_record t SET queue = 20, answer = q.answer,
			more = t.more || CASE WHEN t.queue = 11 THEN q.more || '\x0b0101'::bytea ELSE q.more END,
			retention = onceward_longer(t.retention, q.retention),
			due = now_us + onceward_span(onceward_longer(t.retention, q.retention))
		WHERE t.id = q.id AND t.attempt = q.attempt AND t.queue IN (10, 11) AND get_byte(t.request, 0) & 15 = 1
		RETURNING q.item, t.due INTO o_item, o_due;
		IF FOUND THEN
			RETURN NEXT;
		END IF;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Extends many leases at once, in the order given. It returns the items that were written.
-- +goose StatementBegin
CREATE FUNCTION onceward_extend_1(ids uuid[], attempts bigint[], spans bigint[])
RETURNS TABLE (o_item bigint, o_due bigint) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	q record;
	now_us bigint := onceward_now();
BEGIN
	FOR q IN
		SELECT u.id, u.attempt, u.span, u.item
		FROM unnest(ids, attempts, spans) WITH ORDINALITY AS u (id, attempt, span, item)
	LOOP
		UPDATE onceward_record t SET due = now_us + q.span
		WHERE t.id = q.id AND t.attempt = q.attempt AND t.queue IN (10, 11) AND get_byte(t.request, 0) & 15 = 1
		RETURNING q.item, t.due INTO o_item, o_due;
		IF FOUND THEN
			RETURN NEXT;
		END IF;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Makes at most so many records unknown whose lease ran out, and returns which. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	now_us bigint := onceward_now();
BEGIN
	RETURN QUERY
	WITH lost AS MATERIALIZED (
		SELECT t.id FROM onceward_record t
		WHERE t.queue = 10 AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us AND get_byte(t.request, 0) & 15 = 1
		ORDER BY t.queue, t.due >> 24 LIMIT batch
		FOR UPDATE SKIP LOCKED
	)
	UPDATE onceward_record t
	SET queue = 40, due = now_us, more = t.more || '\x050d'::bytea || 'lease ran out'::bytea
	WHERE t.id = ANY (ARRAY(SELECT lost.id FROM lost))
	RETURNING t.id;
END
$$;
-- +goose StatementEnd

-- Removes at most so many settled records past their expiry and returns how many; softly, it marks them expired first and
-- removes them a retention later. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	now_us bigint := onceward_now();
	settled smallint;
	reaped integer := 0;
	n integer;
BEGIN
	FOREACH settled IN ARRAY ARRAY[20, 30, 50]::smallint[] LOOP
		EXIT WHEN reaped >= batch;
		IF soft AND settled <> 50 THEN
			WITH due AS MATERIALIZED (
				SELECT t.id FROM onceward_record t
				WHERE t.queue = settled AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us AND get_byte(t.request, 0) & 15 = 1
				ORDER BY t.queue, t.due >> 24 LIMIT batch - reaped
				FOR UPDATE SKIP LOCKED
			)
			UPDATE onceward_record t
			SET queue = 50, due = now_us + onceward_span(t.retention), answer = '',
				more = CASE
					WHEN substr(t.more, 1, 2) = '\x0108'::bytea THEN substr(t.more, 1, 10)
					ELSE '\x0108'::bytea || int8send(t.due - onceward_span(t.retention))
				END || '\x0208'::bytea || int8send(t.due - onceward_span(t.retention))
			WHERE t.id = ANY (ARRAY(SELECT due.id FROM due));
		ELSE
			WITH due AS MATERIALIZED (
				SELECT t.id FROM onceward_record t
				WHERE t.queue = settled AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us AND get_byte(t.request, 0) & 15 = 1
				ORDER BY t.queue, t.due >> 24 LIMIT batch - reaped
				FOR UPDATE SKIP LOCKED
			)
			DELETE FROM onceward_record t WHERE t.id = ANY (ARRAY(SELECT due.id FROM due));
		END IF;
		GET DIAGNOSTICS n = ROW_COUNT;
		reaped := reaped + n;
	END LOOP;
	DELETE FROM onceward_finding f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped;
END
$$;
-- +goose StatementEnd

INSERT INTO onceward_schema (version, compatible) VALUES (1, 1);

-- +goose Down

DROP FUNCTION onceward_reap(integer, boolean);
DROP FUNCTION onceward_sweep(integer);
DROP FUNCTION onceward_extend_1(uuid[], bigint[], bigint[]);
DROP FUNCTION onceward_complete_1(uuid[], bigint[], integer[], bytea[], bytea[]);
DROP FUNCTION onceward_reserve_1(
	uuid[], boolean[], bigint[], integer[], smallint[], bytea[], bytea[], bytea[]
);
DROP FUNCTION onceward_longer(integer, integer);
DROP FUNCTION onceward_span(integer);
DROP FUNCTION onceward_now();
DROP TABLE onceward_finding;
DROP TABLE onceward_record;
DROP SEQUENCE onceward_attempt;
DROP TABLE onceward_operation;
DROP TABLE onceward_secret;
DROP TABLE onceward_schema;
