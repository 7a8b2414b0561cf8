-- +goose Up

-- An index that another one makes concurrently looks like one that was left half made. The lock waits until it is whole, and
-- lets others read and write, who would wait behind those of below; who has read may go on to write, so that it needs not be the
-- strongest from the beginning. Who makes the index waits for all who look at anything: so the lock is a statement by itself, and
-- the one before looks up what it needs.
SELECT has_table_privilege('onceward_record', 'UPDATE');
LOCK TABLE onceward_record IN SHARE UPDATE EXCLUSIVE MODE;

-- A column is added below, for which nobody may look at its table, as a dump does for as long as it takes. Who would hold that up
-- does so here, where nobody waits for this migration yet, and a lock_timeout ends it before anything is made. The lock is let go
-- again, because programs that start read the table.
-- +goose StatementBegin
DO $$
BEGIN
	LOCK TABLE onceward_secret IN ACCESS EXCLUSIVE MODE;
	RAISE SQLSTATE 'OW006';
EXCEPTION WHEN SQLSTATE 'OW006' THEN -- undoes the block, with the lock
	NULL;
END
$$;
-- +goose StatementEnd

-- Records that have an answer are most of all, and nobody looks for them but by their names: the reaper walks to them (below).
-- The first index holds the others, for the sweeper, the reconciler, the resumer and those who count: an answer that a transaction
-- stores is never in it. The second one, by what the provider calls the effect, is as before, but for its condition: every
-- statement that writes a record prepares that anew, which took longer than to look for what it spared. To make them takes as
-- long as to read the table, during which no record can be written, unless they were made concurrently before
-- (docs/migrations.md). The lock of the first of these statements is enough for the others.
DROP INDEX IF EXISTS onceward_record_due;
DROP INDEX IF EXISTS onceward_record_provider_id;

-- One that was left half made would be taken for whole below, or make that of all partitions so. With that of all partitions go
-- those that belong to it, which are not dropped alone.
-- +goose StatementBegin
DO $$
DECLARE
	half text;
BEGIN
	FOREACH half IN ARRAY ARRAY(
		SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE NOT i.indisvalid AND (c.oid IN (to_regclass('onceward_record_open'), to_regclass('onceward_record_provider'))
			OR c.relname ~ '_(state_due|provider)_idx$'
				AND i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('onceward_record')))
		ORDER BY c.relkind = 'I' DESC)
	LOOP
		BEGIN
			EXECUTE format('DROP INDEX IF EXISTS %s', half);
		EXCEPTION WHEN internal_error THEN -- who made it lets go of the lock a moment before it is whole
			IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(half) AND NOT indisvalid) THEN
				RAISE;
			END IF;
		END;
	END LOOP;
END
$$;
-- +goose StatementEnd

CREATE INDEX IF NOT EXISTS onceward_record_open ON onceward_record (state, due) WHERE state <> 20;
CREATE INDEX IF NOT EXISTS onceward_record_provider ON onceward_record (sha256(onceward_field(extra, 7)))
	WHERE position('\x07'::bytea IN extra) > 0 AND onceward_field(extra, 7) IS NOT NULL;

-- All records go after a while, and until vacuum comes those that are gone take room: it comes when a tenth of them are, not a
-- fifth, unless whoever looks after the table has said otherwise.
-- +goose StatementBegin
DO $$
DECLARE
	each text;
BEGIN
	FOR each IN
		SELECT c.oid::regclass::text FROM pg_class c
		WHERE (c.oid = to_regclass('onceward_record')
				OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('onceward_record')))
			AND c.relkind = 'r' AND coalesce(array_to_string(c.reloptions, ' '), '') !~ 'autovacuum_vacuum_'
	LOOP
		EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.1)', each);
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Where the reaper is on its walk through the records. Without the row each call begins at a page that is drawn by lot.
CREATE TABLE onceward_walk (
	one    boolean PRIMARY KEY CHECK (one),
	page   bigint NOT NULL, -- where the next call goes on
	walked bigint NOT NULL, -- up to when it has gone so far as it should, in microseconds since 1970
	kept   bigint NOT NULL  -- how long the records are kept that it removes, on average, in microseconds
);

INSERT INTO onceward_walk (one, page, walked, kept) VALUES (true, 0, 0, 86400000000);

COMMENT ON TABLE onceward_walk IS 'Where the reaper is on its walk through the records: one row.';
COMMENT ON COLUMN onceward_walk.one IS 'There is one row.';
COMMENT ON COLUMN onceward_walk.page IS 'The page of the table, and of each of its partitions, where the next call of the reaper goes on.';
COMMENT ON COLUMN onceward_walk.walked IS 'Up to when the reaper has gone so far as it should, in microseconds since 1970: how far it goes follows from the time since.';
COMMENT ON COLUMN onceward_walk.kept IS 'The retention of the records that the reaper has removed lately, on average, in microseconds: a round takes a twenty-fourth of it.';

-- Who may remove records goes on doing so, and who owns them. A role that migrates as a member of that one may not give the table
-- away where the owner may not create tables: it then gives the rights.
-- +goose StatementBegin
DO $$
DECLARE
	keeper text := (SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass('onceward_record'));
	each   text;
BEGIN
	BEGIN
		EXECUTE format('ALTER TABLE onceward_walk OWNER TO %s', keeper);
	EXCEPTION WHEN insufficient_privilege THEN
		EXECUTE format('GRANT SELECT, UPDATE ON onceward_walk TO %s', keeper);
	END;
	FOR each IN
		SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
		FROM pg_class c, aclexplode(c.relacl) a
		WHERE c.oid = to_regclass('onceward_record') AND a.privilege_type = 'DELETE' AND a.grantee <> c.relowner
	LOOP
		EXECUTE format('GRANT SELECT, UPDATE ON onceward_walk TO %s', each);
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Makes at most so many records unknown whose lease ran out, and returns which, as before.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us bigint := onceward_now();
	whole  boolean;
	places tid[];
	keys   uuid[];
BEGIN
	FOR whole, places, keys IN
		WITH lost AS MATERIALIZED (
			SELECT t.tableoid AS part, t.ctid AS place, t.id FROM onceward_record t
			WHERE t.state = 10 AND t.due <= now_us AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
			ORDER BY t.state, t.due LIMIT batch
			FOR UPDATE SKIP LOCKED
		)
		SELECT l.part = to_regclass('onceward_record'), array_agg(l.place), array_agg(l.id) FROM lost l GROUP BY l.part
	LOOP
		IF whole THEN
			RETURN QUERY UPDATE onceward_record t
			SET state = 40, due = now_us,
				extra = t.extra || '\x050d'::bytea || 'lease ran out'::bytea || '\x0208'::bytea || int8send(now_us)
			WHERE t.ctid = ANY (places)
			RETURNING t.id;
		ELSE
			RETURN QUERY UPDATE onceward_record t
			SET state = 40, due = now_us,
				extra = t.extra || '\x050d'::bytea || 'lease ran out'::bytea || '\x0208'::bytea || int8send(now_us)
			WHERE t.id = ANY (keys)
			RETURNING t.id;
		END IF;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- Removes at most so many settled records past their expiry and returns how many, or marks them expired first, as before, but
-- finds them by a walk through the pages of the table: from where the call before ended, and behind the last page from the first
-- one on. How far it goes follows from the time since, however many call and how often: a round takes a twenty-fourth of the time
-- for which records are kept, so that what has expired takes little room, and a record is read two dozen times in its life; a
-- minute at least, a day at most, and so long that no more than 1,024 pages (8 MiB) are read in a second. A table of up to 2,048
-- pages is walked through by each call. What a call that found so many, or took two seconds, or half of what a
-- statement may take, has left is for the next one. While another one is at it, nothing is done. It looks without locks, and then
-- locks and removes what it has found in one statement, so that nobody waits for the walk. What is locked, or has changed since,
-- is left for the next round.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us   bigint := onceward_now();
	most     integer := coalesce(batch, 2147483647);
	parts    bigint; -- partitions, which are walked through side by side
	whole    boolean; -- there are none
	pages    bigint; -- of the largest one
	long     bigint; -- for how long records are kept
	round_us bigint;
	step     bigint; -- pages that are read at once
	least_go bigint; -- pages that are read whatever the time is: all of a small table
	time_us  bigint; -- for how long it walks
	here     bigint;
	upto     bigint;
	since    bigint;
	gone     bigint := 0;
	allowed  bigint;
	from_tid tid;
	upto_tid tid;
	met      integer := 0;
	places   tid[] := '{}';
	keys     uuid[] := '{}';
	met_at   tid[];
	met_keys uuid[];
	each     bigint;
	doomed   smallint[] := CASE WHEN soft THEN '{50}' ELSE '{20,30,50}' END;
	reaped   integer := 0;
	n        integer;
BEGIN
	SELECT w.page, w.walked, w.kept INTO here, since, long FROM onceward_walk w FOR UPDATE SKIP LOCKED;
	IF NOT FOUND AND EXISTS (SELECT FROM onceward_walk) THEN
		RETURN 0;
	END IF;
	LOCK TABLE onceward_record IN ROW EXCLUSIVE MODE; -- which may be converted to partitions, or from them, until then
	SELECT greatest(count(*), 1), count(*) = 0,
		greatest(max(pg_relation_size(inhrelid)), pg_relation_size(to_regclass('onceward_record')), 0)
			/ current_setting('block_size')::bigint
	INTO parts, whole, pages FROM pg_inherits WHERE inhparent = to_regclass('onceward_record');

	long := least(greatest(coalesce(long, 86400000000), 0), 3155760000000000); -- a hundred years
	round_us := greatest(least(long / 24, 86400000000), 60000000, pages * parts * 1000000 / 1024);
	step := greatest(128 / parts, 8);
	least_go := CASE WHEN pages * parts <= 2048 THEN pages ELSE 0 END;
	here := greatest(coalesce(here, floor(random() * pages)::bigint), 0);
	since := least(greatest(coalesce(since, 0), now_us - round_us), now_us);
	time_us := least(2000000, (SELECT min(setting::bigint) * 500 FROM pg_settings
		WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0'));
	allowed := least(pages, greatest(least_go, (pages * ((now_us - since)::numeric / round_us))::bigint));
	-- A clock that steps back ends the walk too.
	WHILE gone < allowed AND (gone = 0 OR onceward_now() BETWEEN now_us AND now_us + time_us) LOOP
		IF here >= pages THEN
			here := 0;
		END IF;
		upto := least(here + least(step, allowed - gone), pages);
		from_tid := format('(%s,0)', here)::tid;
		upto_tid := format('(%s,0)', upto)::tid;
		SELECT count(*), array_agg(d.place) FILTER (WHERE whole), array_agg(d.id) FILTER (WHERE NOT whole),
			avg(onceward_retention_us(d.retention))::bigint
		INTO n, met_at, met_keys, each
		FROM (
			SELECT t.ctid AS place, t.id, t.retention FROM onceward_record t
			WHERE t.ctid >= from_tid AND t.ctid < upto_tid AND t.state IN (20, 30, 50) AND t.due <= now_us
				AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
			LIMIT most - met
		) d;
		IF n > 0 THEN
			places := places || met_at;
			keys := keys || met_keys;
			met := met + n;
			long := long + (each - long) / 10000 * least(n, 1000);
		END IF;
		EXIT WHEN met >= most; -- there may be more on these pages
		since := since + round_us * (upto - here) / pages;
		gone := gone + upto - here;
		here := upto;
	END LOOP;
	IF soft AND whole AND met > 0 THEN
		UPDATE onceward_record t
		SET state = 50, due = now_us + onceward_retention_us(t.retention), answer = '',
			extra = CASE
				WHEN substr(t.extra, 1, 2) = '\x0108'::bytea THEN substr(t.extra, 1, 10)
				ELSE '\x0108'::bytea || int8send(t.due - onceward_retention_us(t.retention))
			END || '\x0208'::bytea || int8send(t.due - onceward_retention_us(t.retention))
		WHERE t.ctid = ANY (ARRAY(
			SELECT r.ctid FROM onceward_record r
			WHERE r.ctid = ANY (places) AND r.state IN (20, 30) AND r.due <= now_us
				AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
			FOR UPDATE SKIP LOCKED));
		GET DIAGNOSTICS reaped = ROW_COUNT;
	ELSIF soft AND met > 0 THEN
		UPDATE onceward_record t
		SET state = 50, due = now_us + onceward_retention_us(t.retention), answer = '',
			extra = CASE
				WHEN substr(t.extra, 1, 2) = '\x0108'::bytea THEN substr(t.extra, 1, 10)
				ELSE '\x0108'::bytea || int8send(t.due - onceward_retention_us(t.retention))
			END || '\x0208'::bytea || int8send(t.due - onceward_retention_us(t.retention))
		WHERE t.id = ANY (ARRAY(
			SELECT r.id FROM onceward_record r
			WHERE r.id = ANY (keys) AND r.state IN (20, 30) AND r.due <= now_us
				AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
			FOR UPDATE SKIP LOCKED));
		GET DIAGNOSTICS reaped = ROW_COUNT;
	END IF;
	IF whole AND met > 0 THEN
		DELETE FROM onceward_record t WHERE t.ctid = ANY (ARRAY(
			SELECT r.ctid FROM onceward_record r
			WHERE r.ctid = ANY (places) AND r.state = ANY (doomed) AND r.due <= now_us
				AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
			FOR UPDATE SKIP LOCKED));
		GET DIAGNOSTICS n = ROW_COUNT;
		reaped := reaped + n;
	ELSIF met > 0 THEN
		DELETE FROM onceward_record t WHERE t.id = ANY (ARRAY(
			SELECT r.id FROM onceward_record r
			WHERE r.id = ANY (keys) AND r.state = ANY (doomed) AND r.due <= now_us
				AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1
			FOR UPDATE SKIP LOCKED));
		GET DIAGNOSTICS n = ROW_COUNT;
		reaped := reaped + n;
	END IF;
	IF met >= most AND reaped = 0 THEN
		here := upto; -- all that was found is locked
	END IF;
	UPDATE onceward_walk w SET page = here, walked = least(since, now_us), kept = long WHERE w.one;
	DELETE FROM onceward_late_completion f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped;
END
$$;
-- +goose StatementEnd

-- Tables of an earlier version have nothing of what new ones have, and keep the names of their records.
ALTER TABLE onceward_secret ADD COLUMN IF NOT EXISTS form integer NOT NULL DEFAULT 0;

COMMENT ON COLUMN onceward_secret.form IS 'What the tables have since they were made, one bit for each: 1, the name of a key that tells its time begins with that; 2, answers may be in a code for text.';
COMMENT ON COLUMN onceward_record.id IS 'The hash of scope and key, as logs show it, in the form of a UUID; its first eight digits are the time of the key, if that tells one (onceward_secret.form).';
COMMENT ON COLUMN onceward_records.id IS 'The primary key: query by it, or by state. Of a hash it is onceward_record_id(hash).';

-- The name of the record whose scope and key have a hash, which logs show, or NULL: the hash itself, or with a time in the
-- place of its first eight digits. It goes by the index from where the name would be in one time to where it would be in the next
-- that there is, and looks at sixteen names in each place, because times of which there is a single one are many where other
-- keys are. It does not find the records of tables with a secret.
-- +goose StatementBegin
CREATE FUNCTION onceward_record_id(hash text) RETURNS uuid LANGUAGE sql STABLE STRICT
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
	WITH RECURSIVE wanted AS MATERIALIZED (
		SELECT $1::uuid AS id, substr(encode(uuid_send($1::uuid), 'hex'), 9) COLLATE "C" AS ending
	), walk AS (
		SELECT ARRAY(SELECT r.id FROM onceward_record r WHERE r.id >= n.sought ORDER BY r.id LIMIT 16) AS met
		FROM (SELECT ('018c0000' || ending)::uuid AS sought FROM wanted) n
		UNION ALL
		SELECT ARRAY(SELECT r.id FROM onceward_record r WHERE r.id >= n.sought ORDER BY r.id LIMIT 16)
		FROM (
			SELECT (CASE WHEN substr(l.digits, 9) < ending THEN substr(l.digits, 1, 8)
				ELSE lpad(to_hex(('x' || substr(l.digits, 1, 8))::bit(32)::bigint + 1), 8, '0') END || ending)::uuid AS sought
			FROM (SELECT encode(uuid_send(met[16]), 'hex') COLLATE "C" AS digits FROM walk WHERE met[16] IS NOT NULL) l, wanted
		) n
		WHERE n.sought < '024c0000000000000000000000000000'::uuid
	)
	SELECT coalesce(
		(SELECT r.id FROM onceward_record r, wanted WHERE r.id = wanted.id),
		(SELECT m.id FROM walk, unnest(walk.met) AS m(id), wanted WHERE substr(encode(uuid_send(m.id), 'hex'), 9) = ending LIMIT 1))
$$;
-- +goose StatementEnd

-- Programs of the version before may go on.
INSERT INTO onceward_schema (version, compatible) SELECT 6, max(compatible) FROM onceward_schema;

-- +goose Down

-- Programs of this version should have ended: they have read how records are named, and would not find those that get other
-- names below. Programs of before cannot read answers in the code for text, and would refuse to replay them: nobody writes one
-- after the look, in a transaction. The reaper takes its locks in the same order. What refers to a record by its name has to
-- follow, at once: what is deferred would keep the table from being altered.
-- +goose StatementBegin
DO $$
DECLARE
	refers pg_constraint;
	moves  boolean; -- a record that changes its partition is deleted and inserted, for who refers to it
BEGIN
	LOCK TABLE onceward_walk IN ACCESS EXCLUSIVE MODE;
	LOCK TABLE onceward_record IN ACCESS EXCLUSIVE MODE;
	moves := current_setting('server_version_num')::integer < 150000
		AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'onceward_record'::regclass);
	SELECT c.* INTO refers FROM pg_constraint c, onceward_secret s
	WHERE s.form <> 0 AND c.contype = 'f' AND c.confrelid = 'onceward_record'::regclass AND (c.confupdtype <> 'c' OR moves)
	LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'the foreign key % of % does not follow records that get other names', refers.conname,
			refers.conrelid::regclass
			USING HINT = CASE WHEN moves THEN 'Drop it, SELECT onceward_partition(0), and make it again with ON UPDATE CASCADE.'
				ELSE 'Drop it, and make it again with ON UPDATE CASCADE.' END;
	END IF;
	IF EXISTS (SELECT FROM onceward_record WHERE state = 20 AND get_byte(answer || '\x0000'::bytea, 1) >= 128) THEN
		RAISE EXCEPTION 'there are answers in a code that earlier versions do not know'
			USING HINT = 'They are gone when their records have expired and were removed.';
	END IF;
END
$$;
-- +goose StatementEnd

-- Programs of before do not find a record that is named by its time, and would execute again: it gets its hash for a name.
UPDATE onceward_late_completion l SET id = encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex')::uuid
FROM onceward_record r, onceward_secret s
WHERE s.form <> 0 AND r.id = l.id AND r.id >= '018c0000000000000000000000000000' AND r.id < '024c0000000000000000000000000000'
	AND onceward_request_parts(r.request) IS NOT NULL;

UPDATE onceward_record r SET id = encode(substr(sha256((onceward_request_parts(r.request))[3]), 1, 16), 'hex')::uuid
FROM onceward_secret s
WHERE s.form <> 0 AND r.id >= '018c0000000000000000000000000000' AND r.id < '024c0000000000000000000000000000'
	AND onceward_request_parts(r.request) IS NOT NULL;

-- From now on a record is named by its hash alone. A program that still goes by the time is refused, and commits nothing, also
-- after the next way up: so this stays. Of other names three in a thousand are in the same range. Every statement that writes a
-- record prepares the condition anew, which is short for that reason.
-- +goose StatementBegin
DO $$
BEGIN
	IF EXISTS (SELECT FROM onceward_secret WHERE form <> 0) THEN
		CREATE FUNCTION onceward_named_by_hash(id uuid, request bytea) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
		SET search_path FROM CURRENT
		AS $function$
		BEGIN
			RETURN id = encode(substr(sha256((onceward_request_parts(request))[3]), 1, 16), 'hex')::uuid;
		END
		$function$;
		GRANT EXECUTE ON FUNCTION onceward_named_by_hash(uuid, bytea) TO PUBLIC; -- all who write records run it
		ALTER TABLE onceward_record ADD CONSTRAINT onceward_record_named_by_hash CHECK (
			id < '018c0000000000000000000000000000' OR id >= '024c0000000000000000000000000000'
			OR onceward_named_by_hash(id, request)) NOT VALID;
	END IF;
END
$$;
-- +goose StatementEnd

UPDATE onceward_audit SET id = encode(substr(sha256(name), 1, 16), 'hex')::uuid FROM onceward_secret s WHERE s.form <> 0;
UPDATE onceward_execution SET id = encode(substr(sha256(name), 1, 16), 'hex')::uuid FROM onceward_secret s WHERE s.form <> 0;

UPDATE onceward_schema SET compatible = least(compatible,
	CASE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'onceward_record'::regclass) THEN 5 ELSE 3 END)
FROM onceward_secret s WHERE s.form <> 0;

ALTER TABLE onceward_secret DROP COLUMN form;

DROP FUNCTION onceward_record_id(text);

COMMENT ON COLUMN onceward_record.id IS 'The hash of scope and key, as logs show it, in the form of a UUID.';
COMMENT ON COLUMN onceward_records.id IS 'The primary key: query by it, or by state.';

DROP INDEX onceward_record_open;
DROP INDEX onceward_record_provider;
CREATE INDEX onceward_record_due ON onceward_record (state, (due >> 24));
CREATE INDEX onceward_record_provider_id ON onceward_record (sha256(onceward_field(extra, 7)))
	WHERE CASE length(extra) WHEN 0 THEN false WHEN 6 THEN get_byte(extra, 0) <> 13 WHEN 10 THEN get_byte(extra, 0) <> 1
		WHEN 16 THEN get_byte(extra, 0) <> 1 OR get_byte(extra, 10) <> 13 ELSE true END
		AND position('\x07'::bytea IN extra) > 0 AND onceward_field(extra, 7) IS NOT NULL;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us bigint := onceward_now();
	whole  boolean;
	places tid[];
	keys   uuid[];
BEGIN
	FOR whole, places, keys IN
		WITH lost AS MATERIALIZED (
			SELECT t.tableoid AS part, t.ctid AS place, t.id FROM onceward_record t
			WHERE t.state = 10 AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us
				AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
			ORDER BY t.state, t.due >> 24 LIMIT batch
			FOR UPDATE SKIP LOCKED
		)
		SELECT l.part = to_regclass('onceward_record'), array_agg(l.place), array_agg(l.id) FROM lost l GROUP BY l.part
	LOOP
		IF whole THEN
			RETURN QUERY UPDATE onceward_record t
			SET state = 40, due = now_us,
				extra = t.extra || '\x050d'::bytea || 'lease ran out'::bytea || '\x0208'::bytea || int8send(now_us)
			WHERE t.ctid = ANY (places)
			RETURNING t.id;
		ELSE
			RETURN QUERY UPDATE onceward_record t
			SET state = 40, due = now_us,
				extra = t.extra || '\x050d'::bytea || 'lease ran out'::bytea || '\x0208'::bytea || int8send(now_us)
			WHERE t.id = ANY (keys)
			RETURNING t.id;
		END IF;
	END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
	now_us  bigint := onceward_now();
	settled smallint;
	reaped  integer := 0;
	n       integer;
	whole   boolean;
	places  tid[];
	keys    uuid[];
BEGIN
	FOREACH settled IN ARRAY ARRAY[20, 30, 50]::smallint[] LOOP
		EXIT WHEN reaped >= batch;
		FOR whole, places, keys IN
			WITH due AS MATERIALIZED (
				SELECT t.tableoid AS part, t.ctid AS place, t.id FROM onceward_record t
				WHERE t.state = settled AND t.due >> 24 <= now_us >> 24 AND t.due <= now_us
					AND get_byte(t.request || '\x00'::bytea, 0) & 15 = 1
				ORDER BY t.state, t.due >> 24 LIMIT batch - reaped
				FOR UPDATE SKIP LOCKED
			)
			SELECT d.part = to_regclass('onceward_record'), array_agg(d.place), array_agg(d.id) FROM due d GROUP BY d.part
		LOOP
			IF soft AND settled <> 50 AND whole THEN
				UPDATE onceward_record t
				SET state = 50, due = now_us + onceward_retention_us(t.retention), answer = '',
					extra = CASE
						WHEN substr(t.extra, 1, 2) = '\x0108'::bytea THEN substr(t.extra, 1, 10)
						ELSE '\x0108'::bytea || int8send(t.due - onceward_retention_us(t.retention))
					END || '\x0208'::bytea || int8send(t.due - onceward_retention_us(t.retention))
				WHERE t.ctid = ANY (places);
			ELSIF soft AND settled <> 50 THEN
				UPDATE onceward_record t
				SET state = 50, due = now_us + onceward_retention_us(t.retention), answer = '',
					extra = CASE
						WHEN substr(t.extra, 1, 2) = '\x0108'::bytea THEN substr(t.extra, 1, 10)
						ELSE '\x0108'::bytea || int8send(t.due - onceward_retention_us(t.retention))
					END || '\x0208'::bytea || int8send(t.due - onceward_retention_us(t.retention))
				WHERE t.id = ANY (keys);
			ELSIF whole THEN
				DELETE FROM onceward_record t WHERE t.ctid = ANY (places);
			ELSE
				DELETE FROM onceward_record t WHERE t.id = ANY (keys);
			END IF;
			GET DIAGNOSTICS n = ROW_COUNT;
			reaped := reaped + n;
		END LOOP;
	END LOOP;
	DELETE FROM onceward_late_completion f WHERE f.at < now_us - 7776000000000; -- 90 days
	RETURN reaped;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
DECLARE
	each text;
BEGIN
	FOR each IN
		SELECT c.oid::regclass::text FROM pg_class c
		WHERE (c.oid = to_regclass('onceward_record')
				OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('onceward_record')))
			AND 'autovacuum_vacuum_scale_factor=0.1' = ANY (c.reloptions)
	LOOP
		EXECUTE format('ALTER TABLE %s RESET (autovacuum_vacuum_scale_factor)', each);
	END LOOP;
END
$$;
-- +goose StatementEnd

DROP TABLE onceward_walk;
DELETE FROM onceward_schema WHERE version = 6;
