-- Records are named by the hash of their ID, as logs show it, so that a line of a log leads to its record by the one index
-- that there is. A program that knows the tables of before and still has the file open makes no record from here on, because
-- it knows no hash: it is refused. The two functions are the program's own.
CREATE TABLE onceward_record_3 (
	hash        BLOB NOT NULL UNIQUE, -- the first half of the SHA-256 of the id
	id          BLOB NOT NULL,        -- scope and key, length-prefixed
	state       INTEGER NOT NULL,     -- 10 in progress, 11 resumed when the lease has run out, 20 completed, 30 retryable,
	                                  -- 40 unknown, 41 unknown and left to an operator, 50 expired
	due         INTEGER NOT NULL,     -- when a background worker must look at it, in microseconds since 1970
	provider_id BLOB,                 -- what the provider calls the effect, NULL for most: a copy, for the index
	record      BLOB NOT NULL
) STRICT;

-- +program
INSERT INTO onceward_record_3 (hash, id, state, due, provider_id, record)
SELECT onceward_id_hash(id), id, state, due, onceward_provider_id(record), record FROM onceward_record ORDER BY rowid;
-- -program

DROP TABLE onceward_record;
ALTER TABLE onceward_record_3 RENAME TO onceward_record;

CREATE INDEX onceward_record_due ON onceward_record (state, due);
CREATE INDEX onceward_record_provider_id ON onceward_record (provider_id) WHERE provider_id IS NOT NULL;

-- The oldest version of a program that may use the tables, so that an old one and a new one can use a file at once. Where it
-- is not told, it is the version of the tables.
ALTER TABLE onceward_schema ADD COLUMN compatible INTEGER;

-- Requests of routes whose executions are audited: who called, and what was decided. Entries are only added, and stay when
-- their record is gone. The decisions: 1 execute, 2 replay, 3 in progress, 4 mismatch, 5 unknown, 6 refused; the origins of
-- an execution: 1 created, 2 retried, 3 resumed, 4 recreated, 5 repeated; 0 for none.
CREATE TABLE onceward_execution (
	number    INTEGER PRIMARY KEY,
	id        BLOB NOT NULL,    -- scope and key, length-prefixed
	attempt   INTEGER NOT NULL, -- that of the record, zero if nothing of it was visible
	at        INTEGER NOT NULL, -- in microseconds since 1970
	decision  INTEGER NOT NULL, -- see above
	origin    INTEGER NOT NULL, -- see above
	operation BLOB NOT NULL,
	actor     BLOB NOT NULL     -- who called, as the service knows them
) STRICT;

CREATE INDEX onceward_execution_id ON onceward_execution (id, at);
CREATE INDEX onceward_execution_at ON onceward_execution (at);
