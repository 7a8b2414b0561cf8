-- The records. Everything about a record is in one versioned value; the columns beside it are what queries look for. The
-- states: 10 in progress, 11 in progress and resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41
-- unknown and left to an operator, 50 expired.
CREATE TABLE onceward_record (
	id     BLOB NOT NULL UNIQUE, -- scope and key, length-prefixed
	state  INTEGER NOT NULL, -- see above
	due    INTEGER NOT NULL, -- when a background worker must look at it, in microseconds since 1970
	record BLOB NOT NULL
) STRICT;

CREATE INDEX onceward_record_due ON onceward_record (state, due);

-- Completions that came too late, kept as evidence for a reconciler or a person.
CREATE TABLE onceward_late_completion (
	id      BLOB NOT NULL,
	attempt INTEGER NOT NULL,
	at      INTEGER NOT NULL,
	record  BLOB NOT NULL -- the refused answer, in the encoding of a record
) STRICT;

CREATE INDEX onceward_late_completion_id ON onceward_late_completion (id, at);
CREATE INDEX onceward_late_completion_at ON onceward_late_completion (at);

-- What other systems told by themselves, such as webhooks. Texts that come from outside are blobs: they may hold any byte.
CREATE TABLE onceward_external_event (
	source      BLOB NOT NULL,
	any_scope   INTEGER NOT NULL, -- 1 if the sender may settle records of every scope
	scope       BLOB NOT NULL,    -- else those of this one alone
	event_id    BLOB NOT NULL,
	subject     BLOB NOT NULL,
	at          INTEGER NOT NULL, -- by the sender's clock
	received_at INTEGER NOT NULL, -- by the store's
	body        BLOB NOT NULL,
	UNIQUE (source, any_scope, scope, event_id)
) STRICT;

CREATE INDEX onceward_external_event_subject ON onceward_external_event (source, subject, any_scope, scope);
CREATE INDEX onceward_external_event_received ON onceward_external_event (received_at);

-- Who did what to which record, and why. Entries are only added, and stay when their record is gone. Their order is that of
-- their numbers: a clock may step back.
CREATE TABLE onceward_audit (
	number  INTEGER PRIMARY KEY,
	id      BLOB NOT NULL,
	attempt INTEGER NOT NULL,
	actor   BLOB NOT NULL,
	action  BLOB NOT NULL,
	reason  BLOB NOT NULL,
	outcome BLOB NOT NULL,
	at      INTEGER NOT NULL
) STRICT;

CREATE INDEX onceward_audit_id ON onceward_audit (id, number);
CREATE INDEX onceward_audit_at ON onceward_audit (at);

-- Single numbers: max_removed_attempt is the largest attempt token of a record that was removed, failed_commits counts
-- commits that failed and whose outcome had to be made certain.
CREATE TABLE onceward_meta (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO onceward_meta (name, value) VALUES ('max_removed_attempt', 0), ('failed_commits', 0);
