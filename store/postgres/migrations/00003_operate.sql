-- +goose Up

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
DELETE FROM onceward_schema WHERE version = 3;
