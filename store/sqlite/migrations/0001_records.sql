-- The records. Everything about a record is in one versioned value; the columns beside it are what queries look for.
CREATE TABLE onceward_record (
	id     BLOB NOT NULL UNIQUE, -- scope and key, length-prefixed
	queue  INTEGER NOT NULL, -- ten times the state, plus which background worker it waits for
	due    INTEGER NOT NULL, -- when that worker must look at it, in microseconds since 1970
	record BLOB NOT NULL
) STRICT;

CREATE INDEX onceward_record_due ON onceward_record (queue, due);

-- Completions that came too late, kept for whoever reconciles.
CREATE TABLE onceward_finding (
	id      BLOB NOT NULL,
	attempt INTEGER NOT NULL,
	at      INTEGER NOT NULL,
	record  BLOB NOT NULL -- the refused answer, in the encoding of a record
) STRICT;

CREATE INDEX onceward_finding_id ON onceward_finding (id, at);
CREATE INDEX onceward_finding_at ON onceward_finding (at);

-- Single numbers: floor is the largest attempt token of a record that was removed; doubt counts commits whose outcome had
-- to be made certain.
CREATE TABLE onceward_number (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO onceward_number (name, value) VALUES ('floor', 0), ('doubt', 0);
