-- +goose Up

-- A field of the column extra by its tag, the last one of several, or NULL. It never fails: what is damaged has none. It calls
-- nothing of ours, because whoever maintains an index has no search_path to find that by. The function and the index may be
-- there already: to make the index takes seconds for each million of records, during which none can be written, unless it was
-- made concurrently before (docs/migrations.md).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_field(extra bytea, wanted integer) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	fields bytea := extra || ''::bytea; -- read from where it is stored once, not for each byte
	size   integer := length(fields);
	at     integer := 0;
	tag    integer;
	part   integer;
	bits   integer;
	long   bigint;
	found  bytea;
BEGIN
	WHILE at < size LOOP
		tag := get_byte(fields, at);
		at := at + 1;
		long := 0;
		bits := 0;
		LOOP
			IF at >= size OR bits > 28 THEN
				RETURN NULL;
			END IF;
			part := get_byte(fields, at);
			at := at + 1;
			long := long | ((part & 127)::bigint << bits);
			bits := bits + 7;
			EXIT WHEN part < 128;
		END LOOP;
		IF long > size - at THEN
			RETURN NULL;
		END IF;
		IF tag = wanted THEN
			found := substr(fields, at + 1, long::integer);
		END IF;
		at := at + long::integer;
	END LOOP;
	RETURN nullif(found, ''::bytea);
END
$$;
-- +goose StatementEnd

-- Whoever writes a record maintains its indexes, also where functions are not for everybody.
GRANT EXECUTE ON FUNCTION onceward_field(bytea, integer) TO PUBLIC;

-- For finding a record by what the provider calls its effect. Most records have no such id: those that hold no more than when
-- they were made, and which secret their downstream keys are derived with, are known by their length and tags, and others pay for
-- a look for the byte that is the tag. The hash is there because an index does not take values of every length.
CREATE INDEX IF NOT EXISTS onceward_record_provider_id ON onceward_record (sha256(onceward_field(extra, 7)))
	WHERE CASE length(extra) WHEN 0 THEN false WHEN 6 THEN get_byte(extra, 0) <> 13 WHEN 10 THEN get_byte(extra, 0) <> 1
		WHEN 16 THEN get_byte(extra, 0) <> 1 OR get_byte(extra, 10) <> 13 ELSE true END
		AND position('\x07'::bytea IN extra) > 0 AND onceward_field(extra, 7) IS NOT NULL;

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
	name      bytea NOT NULL,    -- scope and key, length-prefixed: the record may be gone
	operation bytea NOT NULL,
	actor     bytea NOT NULL     -- who called, as the service knows them
);

CREATE INDEX onceward_execution_id ON onceward_execution (id, at);
CREATE INDEX onceward_execution_at ON onceward_execution (at);

-- Removes at most so many audited requests that are older than an age, the oldest first, and returns how many. Any
-- scheduler may call it.
-- +goose StatementBegin
CREATE FUNCTION onceward_purge_executions(age interval, batch integer DEFAULT 1000) RETURNS integer
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
	DELETE FROM onceward_execution t WHERE t.ctid = ANY (ARRAY(
		SELECT o.ctid FROM onceward_execution o WHERE o.at < oldest ORDER BY o.at LIMIT batch));
	GET DIAGNOSTICS purged = ROW_COUNT;
	RETURN purged;
END
$$;
-- +goose StatementEnd

-- From here on: what is for people to read. The functions take the columns of records apart, never fail, and are used by
-- the views alone: neither the program nor an index knows them.

-- A moment, which the tables hold in microseconds since 1970; 0 for none. What is damaged may be one that there is not.
-- +goose StatementBegin
CREATE FUNCTION onceward_time(us bigint) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT timestamptz 'epoch' + CASE WHEN $1 <> 0 AND $1 BETWEEN -62135596800000000 AND 253402300799999999 THEN $1 END * interval '1 microsecond' $$;
-- +goose StatementEnd

-- A number of eight bytes.
-- +goose StatementBegin
CREATE FUNCTION onceward_bigint(b bytea) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN length($1) = 8 THEN ('x' || encode($1, 'hex'))::bit(64)::bigint END $$;
-- +goose StatementEnd

-- A number whose bytes hold seven bits each, the lowest first.
-- +goose StatementBegin
CREATE FUNCTION onceward_number(b bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
	SELECT (sum((get_byte($1, i) & 127)::bigint << (7 * i))::bigint & 2147483647)::integer
	FROM generate_series(0, least(length($1), 5) - 1) AS i
$$;
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

-- The first error of a record: the first field of tag 5 that is not empty, if another one comes behind it, or NULL.
-- +goose StatementBegin
CREATE FUNCTION onceward_first_error(extra bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	fields bytea := extra || ''::bytea;
	size   integer := length(fields);
	at     integer := 0;
	tag    integer;
	part   integer;
	bits   integer;
	long   bigint;
	found  bytea;
BEGIN
	WHILE at < size LOOP
		tag := get_byte(fields, at);
		at := at + 1;
		long := 0;
		bits := 0;
		LOOP
			IF at >= size OR bits > 28 THEN
				RETURN NULL;
			END IF;
			part := get_byte(fields, at);
			at := at + 1;
			long := long | ((part & 127)::bigint << bits);
			bits := bits + 7;
			EXIT WHEN part < 128;
		END LOOP;
		IF long > size - at THEN
			RETURN NULL;
		END IF;
		IF tag = 5 AND found IS NOT NULL THEN
			RETURN found;
		END IF;
		IF tag = 5 THEN
			found := nullif(substr(fields, at + 1, long::integer), ''::bytea);
		END IF;
		at := at + long::integer;
	END LOOP;
	RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What stands behind the fingerprint in the column request: the number of the operation, its name where that is 0, the
-- scope, both behind their lengths, and the key. It comes in parts: the number, the name, and the scope and the key in the
-- encoding of an ID, with a tag between them.
-- +goose StatementBegin
CREATE FUNCTION onceward_request_parts(request bytea) RETURNS bytea[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	b     bytea := request || ''::bytea;
	size  integer := length(b);
	at    integer := 1;
	start integer;
	part  integer;
	bits  integer;
	long  bigint;
	parts bytea[];
BEGIN
	IF size = 0 OR get_byte(b, 0) & 15 <> 1 THEN
		RETURN NULL;
	END IF;
	FOR n IN 1..4 LOOP -- the id of the secret, the number, the name, the scope
		IF n = 2 THEN
			at := at + 33 + (get_byte(b, 0) & 32) / 2; -- the rules, the fingerprint, and the session where there is one
		END IF;
		CONTINUE WHEN n = 3 AND get_byte(parts[1], 0) <> 0;
		start := at;
		long := 0;
		bits := 0;
		LOOP
			IF at >= size OR bits > 28 THEN
				RETURN NULL;
			END IF;
			part := get_byte(b, at);
			at := at + 1;
			long := long | ((part & 127)::bigint << bits);
			bits := bits + 7;
			EXIT WHEN part < 128;
		END LOOP;
		IF n > 2 AND long > size - at THEN
			RETURN NULL;
		END IF;
		CASE n
			WHEN 2 THEN parts[1] := substr(b, start + 1, at - start);
			WHEN 3 THEN parts[2] := substr(b, at + 1, long::integer);
			WHEN 4 THEN parts[3] := substr(b, start + 1, at - start + long::integer)
				|| set_byte('\x00'::bytea, 0, (get_byte(b, 0) & 16) / 16) || substr(b, at + long::integer + 1);
			ELSE NULL;
		END CASE;
		IF n > 2 THEN
			at := at + long::integer;
		END IF;
	END LOOP;
	RETURN parts;
END
$$;
-- +goose StatementEnd

-- The scope of an ID, which is encoded as the length of the scope, the scope, a tag and the key.
-- +goose StatementBegin
CREATE FUNCTION onceward_scope(name bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	at   integer := 0;
	long bigint := 0;
BEGIN
	LOOP
		IF at >= length(name) OR at > 4 THEN
			RETURN NULL;
		END IF;
		long := long | ((get_byte(name, at) & 127)::bigint << (7 * at));
		at := at + 1;
		EXIT WHEN get_byte(name, at - 1) < 128;
	END LOOP;
	IF long > length(name) - at THEN
		RETURN NULL;
	END IF;
	RETURN substr(name, at + 1, long::integer);
END
$$;
-- +goose StatementEnd

-- The key of an ID: behind the tag 0 as it is, behind the tag 1 as the sixteen bytes of a UUID.
-- +goose StatementBegin
CREATE FUNCTION onceward_key(name bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
	at   integer := 0;
	long bigint := 0;
	key  bytea;
BEGIN
	LOOP
		IF at >= length(name) OR at > 4 THEN
			RETURN NULL;
		END IF;
		long := long | ((get_byte(name, at) & 127)::bigint << (7 * at));
		at := at + 1;
		EXIT WHEN get_byte(name, at - 1) < 128;
	END LOOP;
	IF long >= length(name) - at THEN
		RETURN NULL;
	END IF;
	at := at + long::integer;
	key := substr(name, at + 2);
	IF get_byte(name, at) = 0 THEN
		RETURN key;
	END IF;
	IF length(key) = 16 THEN
		RETURN convert_to(encode(key, 'hex')::uuid::text, 'UTF8');
	END IF;
	RETURN NULL;
END
$$;
-- +goose StatementEnd

-- The records, for people. Each state is a constant in a branch of its own, so that a query for one goes by the index on it,
-- and a query by id goes by the primary key. A hash is the id without its dashes, unless the tables have a secret. Rows that are
-- no records are not in it.
CREATE VIEW onceward_records AS
SELECT
	r.id,
	encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex') AS hash,
	onceward_text(onceward_scope((onceward_request_parts(r.request))[3])) AS scope,
	onceward_text(onceward_key((onceward_request_parts(r.request))[3])) AS key,
	onceward_text(coalesce((onceward_request_parts(r.request))[2], (
		SELECT o.name FROM onceward_operation o WHERE o.number = onceward_number((onceward_request_parts(r.request))[1])
	))) AS operation,
	'in_progress'::text AS state,
	false AS dead_letter,
	r.attempt,
	onceward_time(onceward_bigint(onceward_field(r.extra, 1))) AS created_at,
	onceward_time(r.due) AS lease_until,
	NULL::timestamptz AS reconcile_at,
	NULL::timestamptz AS settled_at,
	NULL::timestamptz AS expires_at,
	onceward_retention_us(r.retention) * interval '1 microsecond' AS retention,
	onceward_text(onceward_field(r.extra, 3)) AS point,
	onceward_text(onceward_first_error(r.extra)) AS first_error,
	onceward_text(onceward_field(r.extra, 5)) AS last_error,
	onceward_text(onceward_field(r.extra, 12)) AS reconcile_error,
	coalesce(onceward_number(onceward_field(r.extra, 6)), 0) AS reconcile_count,
	onceward_text(onceward_field(r.extra, 7)) AS provider_id,
	coalesce(encode(onceward_field(r.extra, 10), 'hex'), onceward_text(onceward_field(r.extra, 8))) AS trace_id,
	NULL::integer AS answer_status,
	NULL::integer AS answer_bytes
FROM onceward_record r WHERE r.state IN (10, 11)
UNION ALL
SELECT
	r.id,
	encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex') AS hash,
	onceward_text(onceward_scope((onceward_request_parts(r.request))[3])) AS scope,
	onceward_text(onceward_key((onceward_request_parts(r.request))[3])) AS key,
	onceward_text(coalesce((onceward_request_parts(r.request))[2], (
		SELECT o.name FROM onceward_operation o WHERE o.number = onceward_number((onceward_request_parts(r.request))[1])
	))) AS operation,
	'completed'::text AS state,
	false AS dead_letter,
	r.attempt,
	coalesce(onceward_time(onceward_bigint(onceward_field(r.extra, 1))),
		onceward_time(r.due) - onceward_retention_us(r.retention) * interval '1 microsecond') AS created_at,
	NULL::timestamptz AS lease_until,
	NULL::timestamptz AS reconcile_at,
	onceward_time(r.due) - onceward_retention_us(r.retention) * interval '1 microsecond' AS settled_at,
	onceward_time(r.due) AS expires_at,
	onceward_retention_us(r.retention) * interval '1 microsecond' AS retention,
	onceward_text(onceward_field(r.extra, 3)) AS point,
	onceward_text(onceward_first_error(r.extra)) AS first_error,
	onceward_text(onceward_field(r.extra, 5)) AS last_error,
	onceward_text(onceward_field(r.extra, 12)) AS reconcile_error,
	coalesce(onceward_number(onceward_field(r.extra, 6)), 0) AS reconcile_count,
	onceward_text(onceward_field(r.extra, 7)) AS provider_id,
	coalesce(encode(onceward_field(r.extra, 10), 'hex'), onceward_text(onceward_field(r.extra, 8))) AS trace_id,
	onceward_number(substr(r.answer, 1, 2)) / 2 AS answer_status,
	length(r.answer) AS answer_bytes
FROM onceward_record r WHERE r.state = 20
UNION ALL
SELECT
	r.id,
	encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex') AS hash,
	onceward_text(onceward_scope((onceward_request_parts(r.request))[3])) AS scope,
	onceward_text(onceward_key((onceward_request_parts(r.request))[3])) AS key,
	onceward_text(coalesce((onceward_request_parts(r.request))[2], (
		SELECT o.name FROM onceward_operation o WHERE o.number = onceward_number((onceward_request_parts(r.request))[1])
	))) AS operation,
	'failed_retryable'::text AS state,
	false AS dead_letter,
	r.attempt,
	onceward_time(onceward_bigint(onceward_field(r.extra, 1))) AS created_at,
	NULL::timestamptz AS lease_until,
	NULL::timestamptz AS reconcile_at,
	onceward_time(r.due) - onceward_retention_us(r.retention) * interval '1 microsecond' AS settled_at,
	onceward_time(r.due) AS expires_at,
	onceward_retention_us(r.retention) * interval '1 microsecond' AS retention,
	onceward_text(onceward_field(r.extra, 3)) AS point,
	onceward_text(onceward_first_error(r.extra)) AS first_error,
	onceward_text(onceward_field(r.extra, 5)) AS last_error,
	onceward_text(onceward_field(r.extra, 12)) AS reconcile_error,
	coalesce(onceward_number(onceward_field(r.extra, 6)), 0) AS reconcile_count,
	onceward_text(onceward_field(r.extra, 7)) AS provider_id,
	coalesce(encode(onceward_field(r.extra, 10), 'hex'), onceward_text(onceward_field(r.extra, 8))) AS trace_id,
	NULL::integer AS answer_status,
	NULL::integer AS answer_bytes
FROM onceward_record r WHERE r.state = 30
UNION ALL
SELECT
	r.id,
	encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex') AS hash,
	onceward_text(onceward_scope((onceward_request_parts(r.request))[3])) AS scope,
	onceward_text(onceward_key((onceward_request_parts(r.request))[3])) AS key,
	onceward_text(coalesce((onceward_request_parts(r.request))[2], (
		SELECT o.name FROM onceward_operation o WHERE o.number = onceward_number((onceward_request_parts(r.request))[1])
	))) AS operation,
	'unknown'::text AS state,
	r.state = 41 AS dead_letter,
	r.attempt,
	onceward_time(onceward_bigint(onceward_field(r.extra, 1))) AS created_at,
	NULL::timestamptz AS lease_until,
	onceward_time(r.due) AS reconcile_at,
	onceward_time(onceward_bigint(onceward_field(r.extra, 2))) AS settled_at,
	NULL::timestamptz AS expires_at,
	onceward_retention_us(r.retention) * interval '1 microsecond' AS retention,
	onceward_text(onceward_field(r.extra, 3)) AS point,
	onceward_text(onceward_first_error(r.extra)) AS first_error,
	onceward_text(onceward_field(r.extra, 5)) AS last_error,
	onceward_text(onceward_field(r.extra, 12)) AS reconcile_error,
	coalesce(onceward_number(onceward_field(r.extra, 6)), 0) AS reconcile_count,
	onceward_text(onceward_field(r.extra, 7)) AS provider_id,
	coalesce(encode(onceward_field(r.extra, 10), 'hex'), onceward_text(onceward_field(r.extra, 8))) AS trace_id,
	NULL::integer AS answer_status,
	NULL::integer AS answer_bytes
FROM onceward_record r WHERE r.state IN (40, 41)
UNION ALL
SELECT
	r.id,
	encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex') AS hash,
	onceward_text(onceward_scope((onceward_request_parts(r.request))[3])) AS scope,
	onceward_text(onceward_key((onceward_request_parts(r.request))[3])) AS key,
	onceward_text(coalesce((onceward_request_parts(r.request))[2], (
		SELECT o.name FROM onceward_operation o WHERE o.number = onceward_number((onceward_request_parts(r.request))[1])
	))) AS operation,
	'expired'::text AS state,
	false AS dead_letter,
	r.attempt,
	onceward_time(onceward_bigint(onceward_field(r.extra, 1))) AS created_at,
	NULL::timestamptz AS lease_until,
	NULL::timestamptz AS reconcile_at,
	onceward_time(onceward_bigint(onceward_field(r.extra, 2))) AS settled_at,
	onceward_time(r.due) AS expires_at,
	onceward_retention_us(r.retention) * interval '1 microsecond' AS retention,
	onceward_text(onceward_field(r.extra, 3)) AS point,
	onceward_text(onceward_first_error(r.extra)) AS first_error,
	onceward_text(onceward_field(r.extra, 5)) AS last_error,
	onceward_text(onceward_field(r.extra, 12)) AS reconcile_error,
	coalesce(onceward_number(onceward_field(r.extra, 6)), 0) AS reconcile_count,
	onceward_text(onceward_field(r.extra, 7)) AS provider_id,
	coalesce(encode(onceward_field(r.extra, 10), 'hex'), onceward_text(onceward_field(r.extra, 8))) AS trace_id,
	NULL::integer AS answer_status,
	NULL::integer AS answer_bytes
FROM onceward_record r WHERE r.state = 50;

-- The messages of the outbox, for people, wherever they are.
CREATE VIEW onceward_messages AS
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'ready'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 0
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'leased'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 1
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'behind'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 2
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'holding'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 3
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'done'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 4
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'dead'::text AS state,
	m.attempts AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	m.provider_id AS provider_id,
	m.last_error AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_delivery m WHERE m.state = 5
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'ready'::text AS state,
	0 AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	NULL::text AS provider_id,
	NULL::text AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_outbox m WHERE m.number > 0
UNION ALL
SELECT
	m.id,
	m.topic,
	m.aggregatetype AS aggregate_type,
	m.aggregateid AS aggregate_id,
	m.type,
	'captured'::text AS state,
	0 AS attempts,
	onceward_time(m.created_at) AS created_at,
	onceward_time(m.due) AS due,
	onceward_text(onceward_scope(m.origin)) AS origin_scope,
	onceward_text(onceward_key(m.origin)) AS origin_key,
	m.origin_attempt,
	m.downstream_key,
	NULL::text AS provider_id,
	NULL::text AS last_error,
	length(m.payload) AS payload_bytes
FROM onceward_outbox m WHERE m.number < 0;

-- Who did what to which record, for people.
CREATE VIEW onceward_audit_log AS
SELECT
	a.number,
	onceward_time(a.at) AS at,
	a.id,
	onceward_text(onceward_scope(a.name)) AS scope,
	onceward_text(onceward_key(a.name)) AS key,
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
	onceward_text(onceward_scope(e.name)) AS scope,
	onceward_text(onceward_key(e.name)) AS key,
	onceward_text(e.operation) AS operation,
	onceward_text(e.actor) AS actor,
	(ARRAY['execute', 'replay', 'in_progress', 'mismatch', 'unknown', 'refused'])[e.decision] AS decision,
	(ARRAY['created', 'retried', 'resumed', 'recreated', 'repeated'])[e.origin] AS origin,
	e.attempt
FROM onceward_execution e;

-- What each table and column holds, for those who look with a tool.
COMMENT ON TABLE onceward_schema IS 'The versions of the tables, one row for each migration.';
COMMENT ON COLUMN onceward_schema.version IS 'The version that the migration made.';
COMMENT ON COLUMN onceward_schema.compatible IS 'The oldest version of a program that may use the tables.';
COMMENT ON COLUMN onceward_schema.applied_at IS 'When it was applied.';
COMMENT ON TABLE onceward_secret IS 'What the names of records are derived with; empty since records are named by the hash of their scope and key.';
COMMENT ON COLUMN onceward_secret.value IS 'The secret.';
COMMENT ON TABLE onceward_operation IS 'The names of operations, so that a record holds a small number.';
COMMENT ON COLUMN onceward_operation.number IS 'The number.';
COMMENT ON COLUMN onceward_operation.name IS 'The method and route pattern, or the name given to Guard.Do, as bytes.';
COMMENT ON TABLE onceward_record IS 'The records, one for each idempotency key. Look at them by the view onceward_records. Rows with state 0 are no records: they keep the planner from scanning the table.';
COMMENT ON COLUMN onceward_record.id IS 'The hash of scope and key, as logs show it, in the form of a UUID.';
COMMENT ON COLUMN onceward_record.attempt IS 'The fencing token: it grows with each grant of the right to execute.';
COMMENT ON COLUMN onceward_record.due IS 'End of the lease, next reconciliation or expiry, in microseconds since 1970.';
COMMENT ON COLUMN onceward_record.retention IS 'How long the record is kept after it was settled, in seconds or, if negative, in microseconds.';
COMMENT ON COLUMN onceward_record.answer IS 'In progress: the nonce of the owner; completed: the stored response.';
COMMENT ON COLUMN onceward_record.state IS '10 in progress, 11 in progress and resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41 unknown and left to a person, 50 expired, 0 no record.';
COMMENT ON COLUMN onceward_record.request IS 'Version, fingerprint, operation, scope and key.';
COMMENT ON COLUMN onceward_record.extra IS 'What only some records have, as tagged fields; the last of a kind counts.';
COMMENT ON TABLE onceward_late_completion IS 'Answers that came too late and were refused, kept for those who settle what is unknown.';
COMMENT ON COLUMN onceward_late_completion.id IS 'That of the record.';
COMMENT ON COLUMN onceward_late_completion.attempt IS 'The attempt whose answer it is.';
COMMENT ON COLUMN onceward_late_completion.at IS 'When it was refused, in microseconds since 1970.';
COMMENT ON COLUMN onceward_late_completion.response IS 'The answer.';
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
COMMENT ON COLUMN onceward_audit.name IS 'Scope and key, length-prefixed: the record may be gone.';
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
COMMENT ON COLUMN onceward_execution.name IS 'Scope and key, length-prefixed: the record may be gone.';
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
COMMENT ON COLUMN onceward_outbox.origin IS 'Scope and key of the operation that added it, length-prefixed.';
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
COMMENT ON COLUMN onceward_delivery.origin IS 'Scope and key of the operation that added it, length-prefixed.';
COMMENT ON COLUMN onceward_delivery.payload IS 'The message itself.';
COMMENT ON COLUMN onceward_delivery.provider_id IS 'What the receiver calls the effect.';
COMMENT ON COLUMN onceward_delivery.last_error IS 'Why the last delivery failed.';
COMMENT ON TABLE onceward_inbox IS 'Events that consumers have had.';
COMMENT ON COLUMN onceward_inbox.applied_at IS 'When it was applied, in microseconds since 1970.';
COMMENT ON COLUMN onceward_inbox.event_id IS 'The id of the event.';
COMMENT ON COLUMN onceward_inbox.consumer IS 'Who has had it.';
COMMENT ON VIEW onceward_records IS 'The records, for people.';
COMMENT ON COLUMN onceward_records.id IS 'The primary key: query by it, or by state.';
COMMENT ON COLUMN onceward_records.hash IS 'The hash of scope and key, as logs show it.';
COMMENT ON COLUMN onceward_records.scope IS 'The security boundary that the key lives in.';
COMMENT ON COLUMN onceward_records.key IS 'The idempotency key.';
COMMENT ON COLUMN onceward_records.operation IS 'The method and route pattern, or the name given to Guard.Do.';
COMMENT ON COLUMN onceward_records.state IS 'in_progress, completed, failed_retryable, unknown or expired.';
COMMENT ON COLUMN onceward_records.dead_letter IS 'Whether reconciliation has given up: a person must settle the record.';
COMMENT ON COLUMN onceward_records.attempt IS 'The fencing token.';
COMMENT ON COLUMN onceward_records.created_at IS 'When the record was made.';
COMMENT ON COLUMN onceward_records.lease_until IS 'In progress: when the right to execute ends.';
COMMENT ON COLUMN onceward_records.reconcile_at IS 'Unknown: when it is asked after next.';
COMMENT ON COLUMN onceward_records.settled_at IS 'When it was settled or, unknown, when its attempt was lost.';
COMMENT ON COLUMN onceward_records.expires_at IS 'When it may be removed.';
COMMENT ON COLUMN onceward_records.retention IS 'How long it is kept after it was settled.';
COMMENT ON COLUMN onceward_records.point IS 'The recovery point that was reached last.';
COMMENT ON COLUMN onceward_records.first_error IS 'What went wrong first, if something else went wrong or was tried since.';
COMMENT ON COLUMN onceward_records.last_error IS 'Why it was last released, or became unknown.';
COMMENT ON COLUMN onceward_records.reconcile_error IS 'What the last attempt to reconcile was answered.';
COMMENT ON COLUMN onceward_records.reconcile_count IS 'How often reconciliation was tried.';
COMMENT ON COLUMN onceward_records.provider_id IS 'What the provider calls the effect.';
COMMENT ON COLUMN onceward_records.trace_id IS 'The trace of the first execution.';
COMMENT ON COLUMN onceward_records.answer_status IS 'The HTTP status of the stored answer.';
COMMENT ON COLUMN onceward_records.answer_bytes IS 'The size of the stored answer, with its header fields.';
COMMENT ON VIEW onceward_messages IS 'The messages of the outbox, for people, wherever they are.';
COMMENT ON VIEW onceward_message IS 'The messages of the outbox, wherever they are, as the program reads them: for people there is onceward_messages.';
COMMENT ON VIEW onceward_audit_log IS 'Who did what to which record, for people.';
COMMENT ON VIEW onceward_execution_log IS 'Requests of audited routes, for people.';

-- Programs of before go on with tables of theirs, which have a secret. In tables without one the keys of locks are others
-- than theirs, and two programs would each run a transactional handler for one key.
INSERT INTO onceward_schema (version, compatible) SELECT 3, CASE WHEN length(value) = 0 THEN 3 ELSE 1 END FROM onceward_secret;

-- +goose Down

DROP VIEW onceward_execution_log;
DROP VIEW onceward_audit_log;
DROP VIEW onceward_messages;
DROP VIEW onceward_records;
DROP FUNCTION onceward_key(bytea);
DROP FUNCTION onceward_scope(bytea);
DROP FUNCTION onceward_request_parts(bytea); -- without it the constraint of the way back from the sixth migration refuses more
DROP FUNCTION onceward_first_error(bytea);
DROP FUNCTION onceward_text(bytea);
DROP FUNCTION onceward_number(bytea);
DROP FUNCTION onceward_bigint(bytea);
DROP FUNCTION onceward_time(bigint);
DROP FUNCTION onceward_purge_executions(interval, integer);
DROP TABLE onceward_execution;
DROP INDEX onceward_record_provider_id;
DROP FUNCTION onceward_field(bytea, integer);
DELETE FROM onceward_schema WHERE version = 3;
