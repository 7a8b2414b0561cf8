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

-- Completions that came too late, kept for whoever reconciles.
CREATE TABLE onceward_finding (
	id       uuid NOT NULL,
	attempt  bigint NOT NULL,
	at       bigint NOT NULL,
	response bytea NOT NULL
);

CREATE INDEX onceward_finding_id ON onceward_finding (id, at);
CREATE INDEX onceward_finding_at ON onceward_finding (at);

-- Records that somebody waits for: whoever settles one of them notifies. Losing this table loses no more than a wake-up.
CREATE UNLOGGED TABLE onceward_waiter (
	id    uuid PRIMARY KEY,
	until bigint NOT NULL
);

-- The store's clock: the moment itself, not the start of the transaction.
-- +goose StatementBegin
CREATE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
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

-- Reserves, extends and completes many records at once, one after the other, in the order given: callers sort by id, so
-- that two of them cannot wait for each other. Each item is decided by what is there at that moment. What cannot be
-- decided from the few columns looked at here is handed back as it stands (outcome 0), and so is every refusal.
--
-- kinds: 1 reserve, 2 reserve without creating, 3 extend, 4 complete.
-- outcome: 0 read, 1 absent, 2 created, 3 recreated, 4 retried, 5 written.
-- +goose StatementBegin
CREATE FUNCTION onceward_step_1(
	kinds smallint[], ids uuid[], attempts bigint[], spans bigint[], retentions integer[], queues smallint[],
	answers bytea[], requests bytea[], mores bytea[], channel text
) RETURNS TABLE (
	o_item integer, o_outcome smallint, o_now bigint, o_attempt bigint, o_due bigint, o_retention integer,
	o_answer bytea, o_queue smallint, o_request bytea, o_more bytea
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
	r onceward_record;
	i integer;
	waited boolean := EXISTS (SELECT FROM onceward_waiter);
BEGIN
	FOR i IN 1 .. cardinality(ids) LOOP
		o_item := i;
		IF kinds[i] >= 3 THEN
			o_now := onceward_now();
			IF kinds[i] = 3 THEN
				UPDATE onceward_record t SET due = o_now + spans[i]
				WHERE t.id = ids[i] AND t.attempt = attempts[i] AND t.queue IN (10, 11) AND get_byte(t.request, 0) & 15 = 1
				RETURNING t.due INTO o_due;
			ELSE
				UPDATE onceward_record t SET queue = 20, answer = answers[i],
					more = t.more || CASE WHEN t.queue = 11 THEN mores[i] || '\x0b0101'::bytea ELSE mores[i] END,
					retention = onceward_longer(t.retention, retentions[i]),
					due = o_now + onceward_span(onceward_longer(t.retention, retentions[i]))
				WHERE t.id = ids[i] AND t.attempt = attempts[i] AND t.queue IN (10, 11) AND get_byte(t.request, 0) & 15 = 1
				RETURNING t.due INTO o_due;
			END IF;
			IF FOUND THEN
				IF waited AND kinds[i] = 4 THEN
					PERFORM pg_notify(channel, w.id::text) FROM onceward_waiter w WHERE w.id = ids[i];
				END IF;
				o_outcome := 5;
				RETURN NEXT;
				CONTINUE;
			END IF;
		END IF;
		LOOP
			SELECT * INTO r FROM onceward_record t WHERE t.id = ids[i];
			o_now := onceward_now();
			IF NOT FOUND THEN
				o_outcome := 1;
				EXIT WHEN kinds[i] <> 1;
				INSERT INTO onceward_record AS t (id, attempt, due, retention, answer, queue, request, more)
				VALUES (ids[i], nextval('onceward_attempt'), o_now + spans[i], retentions[i], answers[i], queues[i],
					requests[i], '\x0108'::bytea || int8send(o_now) || mores[i])
				ON CONFLICT (id) DO NOTHING
				RETURNING t.attempt INTO o_attempt;
				o_outcome := 2;
				EXIT WHEN FOUND;
				CONTINUE; -- somebody was faster: look again
			END IF;
			o_outcome := 0;
			EXIT WHEN kinds[i] >= 3 OR get_byte(r.request, 0) & 15 <> 1;
			IF r.queue = 50 OR r.queue IN (20, 30) AND r.due <= o_now THEN
				EXIT WHEN kinds[i] <> 1;
				UPDATE onceward_record t SET attempt = nextval('onceward_attempt'), due = o_now + spans[i],
					retention = retentions[i], answer = answers[i], queue = queues[i], request = requests[i],
					more = '\x0108'::bytea || int8send(o_now) || mores[i]
				WHERE t.id = ids[i] AND t.attempt = r.attempt AND t.queue = r.queue AND t.due = r.due
				RETURNING t.attempt INTO o_attempt;
				o_outcome := 3;
				EXIT WHEN FOUND;
				CONTINUE;
			END IF;
			EXIT WHEN r.queue <> 30 OR r.request <> requests[i];
			UPDATE onceward_record t SET attempt = nextval('onceward_attempt'), due = o_now + spans[i],
				retention = onceward_longer(t.retention, retentions[i]), answer = answers[i], queue = queues[i],
				more = t.more || '\x050006000900'::bytea
			WHERE t.id = ids[i] AND t.attempt = r.attempt AND t.queue = 30 AND t.due = r.due
			RETURNING t.attempt, t.retention, t.more INTO o_attempt, o_retention, o_more;
			o_outcome := 4;
			EXIT WHEN FOUND;
		END LOOP;
		IF o_outcome = 0 THEN
			o_attempt := r.attempt;
			o_due := r.due;
			o_retention := r.retention;
			o_answer := r.answer;
			o_queue := r.queue;
			o_request := r.request;
			o_more := r.more;
		END IF;
		RETURN NEXT;
		IF o_outcome IN (0, 4) THEN
			o_answer := NULL;
			o_request := NULL;
			o_more := NULL;
		END IF;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Makes at most so many records unknown whose lease ran out, and returns which. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
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
SET enable_seqscan = off
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
	DELETE FROM onceward_waiter w WHERE w.until < now_us;
	DELETE FROM onceward_finding f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped;
END
$$;
-- +goose StatementEnd

INSERT INTO onceward_schema (version, compatible) VALUES (1, 1);

-- +goose Down

DROP FUNCTION onceward_reap(integer, boolean);
DROP FUNCTION onceward_sweep(integer);
DROP FUNCTION onceward_step_1(
	smallint[], uuid[], bigint[], bigint[], integer[], smallint[], bytea[], bytea[], bytea[], text
);
DROP FUNCTION onceward_longer(integer, integer);
DROP FUNCTION onceward_span(integer);
DROP FUNCTION onceward_now();
DROP TABLE onceward_waiter;
DROP TABLE onceward_finding;
DROP TABLE onceward_record;
DROP SEQUENCE onceward_attempt;
DROP TABLE onceward_operation;
DROP TABLE onceward_secret;
DROP TABLE onceward_schema;
