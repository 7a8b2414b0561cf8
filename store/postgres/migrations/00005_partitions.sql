-- +goose Up

-- Makes at most so many records unknown whose lease ran out, and returns which, as before, in tables of both forms: whole,
-- and partitioned. Where a row lies (its ctid) says nothing in a partitioned table, so that there rows are changed by their
-- key, those of one partition at a time, which spares looking into the others. Which form the table has is told by the rows
-- that were found, and by nothing earlier: it may change until the statement that finds them has locked it. Plans for many
-- partitions look costly enough to be compiled, which takes longer than running them.
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

-- Removes at most so many settled records past their expiry and returns how many, or marks them expired first, as before, in
-- tables of both forms.
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

-- Spreads the records over so many partitions, by the hash of their names, or with 0 makes one table of them again. It copies
-- the table and locks out everybody meanwhile, so that nothing is executed. Indexes, views, comments, settings, the owner and
-- rights on the table are taken along. A trigger, a policy, or a foreign key or materialized view of somebody else's that depends
-- on the table, is an error that changes nothing. So is a transaction that goes on seeing what was there when it began, unless it
-- has made the tables: it would not copy what was answered since. And so is one that has just brought the tables to this version:
-- until that is committed others call the functions of before, which would change the wrong rows of a partitioned table. Each
-- partition has ballast of its own, for the reason that the table has.
-- +goose StatementBegin
CREATE FUNCTION onceward_partition(partitions integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	found integer;
	before regclass;
	made boolean;
	keeper text;
	settings text;
	told text;
	key_name name;
	indexes text[];
	views text[];
	rights text[];
	each text;
BEGIN
	IF partitions IS NULL OR partitions < 0 OR partitions = 1 OR partitions > 256 THEN
		RAISE EXCEPTION 'records are spread over 2 to 256 partitions, or 0 for a table that is whole, not %', partitions;
	END IF;
	LOCK TABLE onceward_record IN ACCESS EXCLUSIVE MODE;
	before := 'onceward_record'::regclass;
	SELECT count(*) INTO found FROM pg_inherits WHERE inhparent = before;
	IF found = partitions THEN
		RETURN;
	END IF;
	made := (SELECT xmin FROM onceward_schema ORDER BY version LIMIT 1) = pg_current_xact_id()::xid;
	IF NOT made AND (SELECT xmin FROM onceward_schema WHERE version = 5) = pg_current_xact_id()::xid THEN
		RAISE EXCEPTION 'the tables were brought to version 5 in this transaction: commit that before records are converted';
	END IF;
	IF NOT made AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
		RAISE EXCEPTION 'records are converted in a transaction that is READ COMMITTED, and this one is %',
			upper(current_setting('transaction_isolation'))
			USING HINT = 'Begin it by: BEGIN ISOLATION LEVEL READ COMMITTED';
	END IF;
	IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = before AND NOT tgisinternal) THEN
		RAISE EXCEPTION 'the table onceward_record has a trigger, which would be lost: drop it first';
	END IF;
	IF (SELECT relrowsecurity FROM pg_class WHERE oid = before) THEN
		RAISE EXCEPTION 'the table onceward_record has policies, which would be lost: disable row security first';
	END IF;

	SELECT relowner::regrole::text, obj_description(oid, 'pg_class') INTO keeper, told FROM pg_class WHERE oid = before;
	SELECT array_to_string(reloptions, ', ') INTO settings FROM pg_class
	WHERE reloptions IS NOT NULL
		AND (oid = before OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = before))
	LIMIT 1;
	SELECT array_agg(replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')) INTO indexes FROM pg_index
	WHERE indrelid = before AND NOT indisprimary;
	SELECT conname INTO key_name FROM pg_constraint WHERE conrelid = before AND contype = 'p';
	SELECT array_agg(format('CREATE OR REPLACE VIEW %s%s AS %s', c.oid::regclass,
		' WITH (' || array_to_string(c.reloptions, ', ') || ')', pg_get_viewdef(c.oid))) INTO views
	FROM pg_class c
	WHERE c.relkind = 'v' AND c.oid IN (
		SELECT r.ev_class FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
		WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = before);
	SELECT array_agg(format('GRANT %s ON onceward_record TO %s%s', a.privilege_type,
		CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
		CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)) INTO rights
	FROM pg_class c, aclexplode(c.relacl) a
	WHERE c.oid = before AND a.grantee <> c.relowner;

	FOR each IN SELECT relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = before LOOP
		EXECUTE format('ALTER INDEX %I RENAME TO %I', each, 'before_' || each);
	END LOOP;
	ALTER TABLE onceward_record RENAME TO onceward_record_before;
	EXECUTE format('CREATE TABLE onceward_record (LIKE onceward_record_before INCLUDING COMMENTS INCLUDING STORAGE '
		'INCLUDING COMPRESSION INCLUDING DEFAULTS INCLUDING CONSTRAINTS)%s',
		CASE WHEN partitions > 0 THEN ' PARTITION BY HASH (id)' ELSE coalesce(' WITH (' || settings || ')', '') END);
	EXECUTE format('COMMENT ON TABLE onceward_record IS %L', told);
	FOR i IN 0 .. partitions - 1 LOOP
		each := format('onceward_record_p%s_%s', partitions, i);
		EXECUTE format('CREATE TABLE %s PARTITION OF onceward_record FOR VALUES WITH (MODULUS %s, REMAINDER %s)%s', each,
			partitions, i, coalesce(' WITH (' || settings || ')', ''));
		EXECUTE format('COMMENT ON TABLE %s IS %L', each, format('Partition %s of the records, from 0.', i));
		EXECUTE format('ALTER TABLE %s OWNER TO %s', each, keeper);
	END LOOP;
	INSERT INTO onceward_record SELECT * FROM onceward_record_before WHERE state <> 0;
	INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
	SELECT md5('ballast ' || i)::uuid, 0, 0, 0, decode(repeat('00', 250), 'hex'), 0, '', ''
	FROM generate_series(1, 300 * greatest(partitions, 1)) AS i;
	EXECUTE format('ALTER TABLE onceward_record ADD CONSTRAINT %I PRIMARY KEY (id)', key_name);
	EXECUTE format('ALTER TABLE onceward_record OWNER TO %s', keeper);
	FOREACH each IN ARRAY coalesce(indexes, '{}') || coalesce(views, '{}') || coalesce(rights, '{}') LOOP
		EXECUTE each;
	END LOOP;
	DROP TABLE onceward_record_before;
	ANALYZE onceward_record;
	-- Programs of before take a refusal by a partition for one of a table of the application's.
	UPDATE onceward_schema SET compatible = greatest(compatible, 5) WHERE version = 5;
END
$$;
-- +goose StatementEnd

-- It takes the owner of the table anyway.
REVOKE EXECUTE ON FUNCTION onceward_partition(integer) FROM PUBLIC;

-- Programs of the version before may go on with tables that are not partitioned.
INSERT INTO onceward_schema (version, compatible) SELECT 5, max(compatible) FROM onceward_schema;

-- +goose Down

-- The functions of before would change the wrong rows of a partitioned table.
-- +goose StatementBegin
DO $$
BEGIN
	IF (SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('onceward_record')) THEN
		RAISE EXCEPTION 'the records are partitioned, which earlier versions do not know'
			USING HINT = 'Make one table of them first: SELECT onceward_partition(0)';
	END IF;
END
$$;
-- +goose StatementEnd

DROP FUNCTION onceward_partition(integer);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_sweep(batch integer DEFAULT 1000) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
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

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_reap(batch integer DEFAULT 1000, soft boolean DEFAULT false) RETURNS integer
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

DELETE FROM onceward_schema WHERE version = 5;
