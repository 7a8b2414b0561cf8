-- +goose Up

-- Which version of the tables this is, and the oldest version of the program's own knowledge that may still use them.
CREATE TABLE onceward_schema (
	version    integer PRIMARY KEY,
	compatible integer NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT now()
);

-- What the names of the records are derived with, beside their IDs. It is empty, so that a record is named by the hash that
-- logs show. Tables of an earlier version have random bytes here and keep them: it never changes, because all programs that
-- use the tables must find a record under the same name. Neither does the form, which says what these tables have and those of
-- an earlier version do not, one bit for each: 1, the name of a key that tells its time begins with that; 2, answers may be in a
-- code for text.
CREATE TABLE onceward_secret (
	value bytea NOT NULL,
	form  integer NOT NULL DEFAULT 0
);

INSERT INTO onceward_secret (value, form) VALUES ('', 3);

-- The names of operations, so that a record holds a small number instead of a text.
CREATE TABLE onceward_operation (
	number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name   bytea NOT NULL UNIQUE
);

-- Attempt tokens: one sequence for all records, so that none is ever used twice (S7).
CREATE SEQUENCE onceward_attempt;

-- The records. The order of the columns leaves no gaps between them. The states: 10 in progress, 11 in progress and
-- resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41 unknown and left to an operator, 50
-- expired; 0 is no record.
CREATE TABLE onceward_record (
	id        uuid PRIMARY KEY,  -- a hash of scope and key, with the secret, by the form
	attempt   bigint NOT NULL,
	due       bigint NOT NULL,   -- end of the lease, next reconciliation or expiry, in microseconds since 1970
	retention integer NOT NULL,  -- in seconds or, if negative, in microseconds
	answer    bytea NOT NULL,    -- in progress: the nonce; completed: the stored response
	state     smallint NOT NULL, -- see above
	request   bytea NOT NULL,    -- version, fingerprint, operation, scope and key
	extra     bytea NOT NULL     -- what only some records have, as tagged fields; the last of a kind counts
);

-- For the sweeper, the reconciler and the reaper. Steps of 2^24 microseconds make entries equal, which the index stores
-- once: seven bytes a record instead of twenty.
CREATE INDEX onceward_record_due ON onceward_record (state, (due >> 24));

-- Ballast: a dozen pages of rows that are no records. In a table of few pages the planner prefers to scan, and a plan
-- that was cached then would go on scanning when the table has grown.
INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
SELECT md5('ballast ' || i)::uuid, 0, 0, 0, decode(repeat('00', 250), 'hex'), 0, '', ''
FROM generate_series(1, 300) AS i;

-- Completions that came too late, kept for reconciliation.
CREATE TABLE onceward_late_completion (
	id       uuid NOT NULL,
	attempt  bigint NOT NULL,
	at       bigint NOT NULL,
	response bytea NOT NULL
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
	name    bytea NOT NULL, -- scope and key, length-prefixed: the record may be gone
	actor   bytea NOT NULL,
	action  bytea NOT NULL,
	reason  bytea NOT NULL,
	outcome bytea NOT NULL
);

CREATE INDEX onceward_audit_id ON onceward_audit (id, number);
CREATE INDEX onceward_audit_at ON onceward_audit (at);

-- The store's clock: the moment itself, not the start of the transaction.
-- +goose StatementBegin
CREATE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;
-- +goose StatementEnd

-- A retention in microseconds.
-- +goose StatementBegin
CREATE FUNCTION onceward_retention_us(retention integer) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN $1 < 0 THEN -($1::bigint) ELSE $1 * 1000000::bigint END $$;
-- +goose StatementEnd

-- The longer of two retentions.
-- +goose StatementBegin
CREATE FUNCTION onceward_longer_retention(a integer, b integer) RETURNS integer LANGUAGE sql IMMUTABLE
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

-- Makes at most so many records unknown whose lease ran out, and returns which. Any scheduler may call it. Here as
-- below, rows are locked where they lie and changed at that place, without another look-up; one that has moved since
-- stays for the next time.
-- +goose StatementBegin
CREATE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	now_us bigint := onceward_now();
BEGIN
	RETURN QUERY
	WITH lost AS MATERIALIZED (
		SELECT t.ctid AS place FROM onceward_record t
		WHERE t.state = 10 AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us
			AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
		ORDER BY t.state, t.due >> 24 LIMIT batch
		FOR UPDATE SKIP LOCKED
	)
	UPDATE onceward_record t
	SET state = 40, due = now_us,
		extra = t.extra || '\x050d'::bytea || 'lease ran out'::bytea || '\x0208'::bytea || int8send(now_us)
	WHERE t.ctid = ANY (ARRAY(SELECT lost.place FROM lost))
	RETURNING t.id;
END
$$;
-- +goose StatementEnd

-- Removes at most so many settled records past their expiry and returns how many; softly, it marks them expired first
-- and removes them a retention later. Any scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
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
				SELECT t.ctid AS place FROM onceward_record t
				WHERE t.state = settled AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us
					AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
				ORDER BY t.state, t.due >> 24 LIMIT batch - reaped
				FOR UPDATE SKIP LOCKED
			)
			UPDATE onceward_record t
			SET state = 50, due = now_us + onceward_retention_us(t.retention), answer = '',
				extra = CASE
					WHEN substr(t.extra, 1, 2) = '\x0108'::bytea THEN substr(t.extra, 1, 10)
					ELSE '\x0108'::bytea || int8send(t.due - onceward_retention_us(t.retention))
				END || '\x0208'::bytea || int8send(t.due - onceward_retention_us(t.retention))
			WHERE t.ctid = ANY (ARRAY(SELECT due.place FROM due));
		ELSE
			WITH due AS MATERIALIZED (
				SELECT t.ctid AS place FROM onceward_record t
				WHERE t.state = settled AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us
					AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
				ORDER BY t.state, t.due >> 24 LIMIT batch - reaped
				FOR UPDATE SKIP LOCKED
			)
			DELETE FROM onceward_record t WHERE t.ctid = ANY (ARRAY(SELECT due.place FROM due));
		END IF;
		GET DIAGNOSTICS n = ROW_COUNT;
		reaped := reaped + n;
	END LOOP;
	DELETE FROM onceward_late_completion f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped;
END
$$;
-- +goose StatementEnd

-- Removes at most so many external events that are older than an age, the oldest first, and returns how many. Any
-- scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge_external_events(age interval, batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	oldest bigint := onceward_now() - (extract(epoch FROM age) * 1000000)::bigint;
	purged integer;
BEGIN
	DELETE FROM onceward_external_event t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_external_event o WHERE o.received_at < oldest ORDER BY o.received_at LIMIT batch));
	GET DIAGNOSTICS purged = ROW_COUNT;
	RETURN purged;
END
$$;
-- +goose StatementEnd

-- Removes at most so many entries of the audit that are older than an age, the oldest first, and returns how many. Any
-- scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge_audit(age interval, batch integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
	oldest bigint := onceward_now() - (extract(epoch FROM age) * 1000000)::bigint;
	purged integer;
BEGIN
	DELETE FROM onceward_audit t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_audit o WHERE o.at < oldest ORDER BY o.at LIMIT batch));
	GET DIAGNOSTICS purged = ROW_COUNT;
	RETURN purged;
END
$$;
-- +goose StatementEnd

-- Tables of this form are for programs that know it, also while later migrations are missing: others would name a key in another
-- way, and execute it again.
INSERT INTO onceward_schema (version, compatible) VALUES (1, 6);

-- +goose Down

DROP FUNCTION onceward_purge_audit(interval, integer);
DROP FUNCTION onceward_purge_external_events(interval, integer);
DROP FUNCTION onceward_reap(integer, boolean);
DROP FUNCTION onceward_sweep(integer);
DROP FUNCTION onceward_longer_retention(integer, integer);
DROP FUNCTION onceward_retention_us(integer);
DROP FUNCTION onceward_now();
DROP TABLE onceward_audit;
DROP TABLE onceward_external_event;
DROP TABLE onceward_late_completion;
DROP TABLE onceward_record;
DROP FUNCTION IF EXISTS onceward_named_by_hash(uuid, bytea); -- of the way back from the sixth migration
DROP SEQUENCE onceward_attempt;
DROP TABLE onceward_operation;
DROP TABLE onceward_secret;
DROP TABLE onceward_schema;
