-- +goose Up

-- What the provider calls the effect of a record: the field of tag 7 in the column extra, the last one of several, or NULL.
-- It never fails: what is damaged has none.
-- +goose StatementBegin
CREATE FUNCTION onceward_provider_id(extra bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
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
		IF tag = 7 THEN
			found := substr(fields, at + 1, long::integer);
		END IF;
		at := at + long::integer;
	END LOOP;
	RETURN nullif(found, ''::bytea);
END
$$;
-- +goose StatementEnd

-- Whoever writes a record maintains its indexes, also where functions are not for everybody.
GRANT EXECUTE ON FUNCTION onceward_provider_id(bytea) TO PUBLIC;

-- For finding a record by what the provider calls its effect. Most records have no such id, and pay for a look for the byte
-- that is its tag. The hash is there because an index does not take values of every length.
CREATE INDEX onceward_record_provider_id ON onceward_record (sha256(onceward_provider_id(extra)))
	WHERE position('\x07'::bytea IN extra) > 0 AND onceward_provider_id(extra) IS NOT NULL;

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

INSERT INTO onceward_schema (version, compatible) VALUES (3, 1);

-- +goose Down

DROP FUNCTION onceward_purge_executions(interval, integer);
DROP TABLE onceward_execution;
DROP INDEX onceward_record_provider_id;
DROP FUNCTION onceward_provider_id(bytea);
DELETE FROM onceward_schema WHERE version = 3;
