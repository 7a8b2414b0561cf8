-- +goose Up

-- Locks for servers whose advisory locks do nothing. A transaction takes one by a row that it inserts and deletes at once:
-- until it ends, no other can insert the same, and at its end the row is gone either way. So the table is always empty,
-- nothing of it has to outlive a crash, and what is to be cleaned up are rows that never counted.
CREATE UNLOGGED TABLE onceward_lock (
	space smallint NOT NULL, -- 1 for locks of one number, 2 for those of two, as of the advisory ones
	key   bigint NOT NULL,
	PRIMARY KEY (space, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, vacuum_truncate = false);

COMMENT ON TABLE onceward_lock IS 'Locks of transactions under way, where advisory locks do nothing. It always looks empty.';
COMMENT ON COLUMN onceward_lock.space IS '1 for locks of one number: records and operations; 2 for those of two: names and aggregates.';
COMMENT ON COLUMN onceward_lock.key IS 'What is locked.';

-- Takes a lock until the transaction ends, and waits for the one that has it. The return value is always true.
-- +goose StatementBegin
CREATE FUNCTION onceward_take_lock(wanted_space smallint, wanted bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
	place tid;
BEGIN
	INSERT INTO onceward_lock (space, key) VALUES (wanted_space, wanted) RETURNING ctid INTO place;
	DELETE FROM onceward_lock t WHERE t.ctid = place;
	RETURN true;
END
$$;
-- +goose StatementEnd

-- Takes a lock if it is free, and reports whether it was. An insert cannot be told not to wait, but not to wait for long. What
-- it waited for is in the context of the error: if not for another entry of the index, but for the table, which has to grow,
-- the lock may be free, and is tried again. A time that is up between two waits of one insert is told as if a user had
-- cancelled the statement.
-- +goose StatementBegin
CREATE FUNCTION onceward_try_lock(wanted_space smallint, wanted bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '10ms'
AS $$
DECLARE
	place  tid;
	waited text;
BEGIN
	FOR try IN 1..5 LOOP
		BEGIN
			INSERT INTO onceward_lock (space, key) VALUES (wanted_space, wanted) RETURNING ctid INTO place;
			DELETE FROM onceward_lock t WHERE t.ctid = place;
			RETURN true;
		EXCEPTION
			WHEN lock_not_available OR query_canceled THEN
				GET STACKED DIAGNOSTICS waited = PG_EXCEPTION_CONTEXT;
				EXIT WHEN strpos(waited, 'onceward_lock_pkey') > 0;
		END;
	END LOOP;
	RETURN false;
END
$$;
-- +goose StatementEnd

-- As before, but on a server without advisory locks too. There, and where they do nothing, the caller takes the row lock first.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION onceward_outbox_promote(most integer) RETURNS integer
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
	IF to_regprocedure('pg_advisory_xact_lock(integer,integer)') IS NOT NULL THEN
		PERFORM pg_advisory_xact_lock('onceward_outbox'::regclass::oid::integer, 0);
	END IF;
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

-- Programs of before go on: they know no row locks, and take the advisory ones.
INSERT INTO onceward_schema (version, compatible) SELECT 4, compatible FROM onceward_schema WHERE version = 3;

-- +goose Down

-- The function that promotes stays: it does what the one before did.
DROP FUNCTION onceward_try_lock(smallint, bigint);
DROP FUNCTION onceward_take_lock(smallint, bigint);
DROP TABLE onceward_lock;
DELETE FROM onceward_schema WHERE version = 4;
