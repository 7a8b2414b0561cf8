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
