-- The records. Everything about a record is in one versioned value; the columns beside it are what queries look for.
-- Records are named by the hash of their ID, as logs show it, so that a line of a log leads to its record by one index.
CREATE TABLE onceward_record (
	hash        BLOB NOT NULL UNIQUE, -- the first half of the SHA-256 of the id
	id          BLOB NOT NULL,        -- scope and key, length-prefixed
	state       INTEGER NOT NULL,     -- 10 in progress, 11 resumed when the lease has run out, 20 completed, 30 retryable,
	                                  -- 40 unknown, 41 unknown and left to an operator, 50 expired
	due         INTEGER NOT NULL,     -- when a background worker must look at it, in microseconds since 1970
	provider_id BLOB,                 -- what the provider calls the effect, NULL for most: a copy, for the index
	record      BLOB NOT NULL
) STRICT;

CREATE INDEX onceward_record_due ON onceward_record (state, due);
CREATE INDEX onceward_record_provider_id ON onceward_record (provider_id) WHERE provider_id IS NOT NULL;

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

-- Messages that leave the database. Change-data-capture reads the columns aggregatetype, aggregateid, type and payload under
-- the names that its outbox routers expect. What is large comes last, so that the rest is read without it.
CREATE TABLE onceward_outbox (
	number         INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of commits, because one transaction writes at a time
	id             TEXT NOT NULL UNIQUE,
	topic          TEXT NOT NULL, -- empty for change-data-capture alone
	lane           TEXT, -- the topic and the aggregate, in which order is kept; NULL for a message that waits for no other
	state          INTEGER NOT NULL, -- 0 ready, 1 leased, 2 behind, 3 holding, 4 done, 5 dead, 6 for change-data-capture alone
	due            INTEGER NOT NULL, -- when it is delivered, its lease ends or it was done, in microseconds since 1970
	token          INTEGER NOT NULL DEFAULT 0, -- of the lease, zero if there is none
	attempts       INTEGER NOT NULL DEFAULT 0,
	created_at     INTEGER NOT NULL,
	aggregatetype  TEXT NOT NULL,
	aggregateid    TEXT NOT NULL,
	type           TEXT NOT NULL,
	step           TEXT NOT NULL,
	content_type   TEXT NOT NULL,
	source         TEXT NOT NULL,
	subject        TEXT NOT NULL,
	origin         BLOB, -- scope and key of the operation that added it, length-prefixed; NULL if none did
	origin_attempt INTEGER NOT NULL,
	downstream_key TEXT NOT NULL,
	provider_id    TEXT NOT NULL DEFAULT '',
	last_error     TEXT NOT NULL DEFAULT '',
	headers        TEXT NOT NULL, -- a JSON object
	payload        BLOB NOT NULL,
	answer         BLOB -- what the handler kept of the receiver's answer
) STRICT;

-- Each index holds only the messages in the states that it is for, so that those that are done slow down nobody. The state
-- is part of those that are counted or walked without a look at the messages.
CREATE INDEX onceward_outbox_claim ON onceward_outbox (topic, due, number, created_at, state) WHERE state < 2; -- ready, leased
CREATE INDEX onceward_outbox_order ON onceward_outbox (lane, number, state) WHERE state < 4 AND lane IS NOT NULL; -- open
CREATE INDEX onceward_outbox_behind ON onceward_outbox (lane, created_at) WHERE state = 2;
CREATE INDEX onceward_outbox_dead ON onceward_outbox (number, state) WHERE state IN (3, 5); -- holding, dead
CREATE INDEX onceward_outbox_purge ON onceward_outbox (due) WHERE state IN (4, 6); -- done, captured
CREATE INDEX onceward_outbox_provider ON onceward_outbox (provider_id) WHERE provider_id <> '';

-- Which consumer has had which event. The texts come from outside and may hold any byte.
CREATE TABLE onceward_inbox (
	event_id   BLOB NOT NULL,
	consumer   BLOB NOT NULL,
	applied_at INTEGER NOT NULL, -- in microseconds since 1970
	PRIMARY KEY (event_id, consumer)
) STRICT, WITHOUT ROWID;

CREATE INDEX onceward_inbox_applied_at ON onceward_inbox (applied_at);

-- The records, for people. The value of a record is taken apart here alone, byte by byte: a number is bytes of seven
-- bits, the lowest first, the last of them below 128; a text comes behind its length. The fields: 1 the id of the
-- secret; behind the fingerprint and the session, 2 the attempt; behind the nonce, 3 the retention, 4 to 8 the end of
-- the lease, the next reconciliation, creation, settlement and expiry, 9 how often reconciliation was tried; then
-- texts, 10 the operation, 11 the recovery point, 12 the last error, 13 the first one, 14 the id of the provider, 15 the
-- trace, 16 the data; last, 17 the status of the answer if there is one, or else the reconcile error. Of each, the walk tells the number and where what follows it begins. A
-- byte is read by its two hexadecimal digits. The scope of an id is as long as its first byte says or, from 128 on, its
-- first two. Queries by id (x'…') and by state_code go by an index.
CREATE VIEW onceward_records AS
SELECT
	hash AS id,
	lower(hex(hash)) AS hash,
	CAST(substr(name, start, size) AS TEXT) AS scope,
	CASE hex(substr(name, start + size, 1))
		WHEN '01' THEN lower(substr(hex(substr(name, -16)), 1, 8) || '-' || substr(hex(substr(name, -16)), 9, 4) || '-'
			|| substr(hex(substr(name, -16)), 13, 4) || '-' || substr(hex(substr(name, -16)), 17, 4) || '-'
			|| substr(hex(substr(name, -16)), 21))
		ELSE CAST(substr(name, start + size + 1) AS TEXT)
	END AS key,
	CAST(nullif(substr(record, fields ->> '$.10[1]', fields ->> '$.10[0]'), x'') AS TEXT) AS operation,
	CASE state_code / 10
		WHEN 1 THEN 'in_progress' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed_retryable' WHEN 4 THEN 'unknown' ELSE 'expired'
	END AS state,
	state_code,
	state_code = 41 AS dead_letter,
	(fields ->> '$.2[0]') / 2 AS attempt,
	strftime('%Y-%m-%d %H:%M:%fZ', due / 1e6, 'unixepoch') AS due,
	strftime('%Y-%m-%d %H:%M:%fZ', nullif(fields ->> '$.6[0]', 0) / 2e6, 'unixepoch') AS created_at,
	strftime('%Y-%m-%d %H:%M:%fZ', nullif(fields ->> '$.4[0]', 0) / 2e6, 'unixepoch') AS lease_until,
	strftime('%Y-%m-%d %H:%M:%fZ', nullif(fields ->> '$.5[0]', 0) / 2e6, 'unixepoch') AS reconcile_at,
	strftime('%Y-%m-%d %H:%M:%fZ', nullif(fields ->> '$.7[0]', 0) / 2e6, 'unixepoch') AS settled_at,
	strftime('%Y-%m-%d %H:%M:%fZ', nullif(fields ->> '$.8[0]', 0) / 2e6, 'unixepoch') AS expires_at,
	(fields ->> '$.3[0]') / 2e9 AS retention_seconds,
	CAST(nullif(substr(record, fields ->> '$.11[1]', fields ->> '$.11[0]'), x'') AS TEXT) AS point,
	CAST(nullif(substr(record, fields ->> '$.13[1]', fields ->> '$.13[0]'), x'') AS TEXT) AS first_error,
	CAST(nullif(substr(record, fields ->> '$.12[1]', fields ->> '$.12[0]'), x'') AS TEXT) AS last_error,
	CASE WHEN fields ->> '$.flags' & 36 = 32
		THEN CAST(nullif(substr(record, fields ->> '$.17[1]', fields ->> '$.17[0]'), x'') AS TEXT)
	END AS reconcile_error,
	fields ->> '$.9[0]' AS reconcile_count,
	CAST(provider_id AS TEXT) AS provider_id,
	CAST(nullif(substr(record, fields ->> '$.15[1]', fields ->> '$.15[0]'), x'') AS TEXT) AS trace_id,
	CASE WHEN fields ->> '$.flags' & 4 THEN fields ->> '$.17[0]' END AS answer_status,
	length(record) AS record_bytes
FROM (
	SELECT
		r.hash, r.id AS name, r.state AS state_code, r.due, r.provider_id, r.record, n.value ->> 0 AS start, n.value ->> 1 AS size,
		f.value AS fields
	FROM onceward_record AS r
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(r.id, 1, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(r.id, 1, 1)), 2, 1))))) AS a
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(r.id, 2, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(r.id, 2, 1)), 2, 1))))) AS b
	JOIN json_each(json_array(json_array(
		iif(a.value < 128, 2, 3), iif(a.value < 128, a.value, (a.value & 127) + b.value * 128)))) AS n
	JOIN json_each(json_array(json((
		WITH RECURSIVE
		head (value, flags) AS (
			SELECT substr(r.record, 1, 16384), (instr('123456789ABCDEF', substr(hex(substr(r.record, 4, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(r.record, 4, 1)), 2, 1)))
		),
		walk (field, at, byte, number, bits, done, found) AS (
			SELECT 1, 5, NULL, 0, 0, 0, flags FROM head
			UNION ALL
			SELECT field, at, (instr('123456789ABCDEF', substr(hex(substr(iif(at < 16384, head.value, r.record), at, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(iif(at < 16384, head.value, r.record), at, 1)), 2, 1))), number, bits, NULL, NULL
			FROM walk, head
			WHERE byte IS NULL AND at <= length(r.record) AND bits < 64 AND (field < 17 OR field = 17 AND flags & 36)
			UNION ALL
			SELECT field, at + 1, NULL, number | ((byte & 127) << bits), bits + 7, NULL, NULL
			FROM walk WHERE byte >= 128
			UNION ALL
			SELECT
				field + 1,
				at + 1 + CASE field WHEN 1 THEN 33 + (flags & 16) WHEN 2 THEN 16 ELSE iif(field >= 10, number | (byte << bits), 0) END,
				NULL, 0, 0, field, json_array(number | (byte << bits), at + 1)
			FROM walk, head WHERE byte < 128
		)
		SELECT json_group_object(iif(done = 0, 'flags', done), json(found)) FROM walk WHERE done IS NOT NULL
	)))) AS f
);

-- The messages of the outbox, for people. Queries by id, and for one state_code above 1, go by an index.
CREATE VIEW onceward_messages AS
SELECT
	id,
	topic,
	aggregatetype AS aggregate_type,
	aggregateid AS aggregate_id,
	type,
	CASE state
		WHEN 0 THEN 'ready' WHEN 1 THEN 'leased' WHEN 2 THEN 'behind' WHEN 3 THEN 'holding' WHEN 4 THEN 'done' WHEN 5 THEN 'dead'
		ELSE 'captured'
	END AS state,
	state AS state_code,
	attempts,
	strftime('%Y-%m-%d %H:%M:%fZ', created_at / 1e6, 'unixepoch') AS created_at,
	strftime('%Y-%m-%d %H:%M:%fZ', due / 1e6, 'unixepoch') AS due,
	CAST(substr(name, start, size) AS TEXT) AS origin_scope,
	CASE WHEN name IS NOT NULL THEN CASE hex(substr(name, start + size, 1))
		WHEN '01' THEN lower(substr(hex(substr(name, -16)), 1, 8) || '-' || substr(hex(substr(name, -16)), 9, 4) || '-'
			|| substr(hex(substr(name, -16)), 13, 4) || '-' || substr(hex(substr(name, -16)), 17, 4) || '-'
			|| substr(hex(substr(name, -16)), 21))
		ELSE CAST(substr(name, start + size + 1) AS TEXT)
	END END AS origin_key,
	origin_attempt,
	downstream_key,
	nullif(provider_id, '') AS provider_id,
	nullif(last_error, '') AS last_error,
	length(payload) AS payload_bytes
FROM (
	SELECT m.*, m.origin AS name, n.value ->> 0 AS start, n.value ->> 1 AS size
	FROM onceward_outbox AS m
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(m.origin, 1, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(m.origin, 1, 1)), 2, 1))))) AS a
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(m.origin, 2, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(m.origin, 2, 1)), 2, 1))))) AS b
	JOIN json_each(json_array(json_array(
		iif(a.value < 128, 2, 3), iif(a.value < 128, a.value, (a.value & 127) + b.value * 128)))) AS n
);

-- Who did what to which record, for people.
CREATE VIEW onceward_audit_log AS
SELECT
	number,
	strftime('%Y-%m-%d %H:%M:%fZ', at / 1e6, 'unixepoch') AS at,
	CAST(substr(name, start, size) AS TEXT) AS scope,
	CASE hex(substr(name, start + size, 1))
		WHEN '01' THEN lower(substr(hex(substr(name, -16)), 1, 8) || '-' || substr(hex(substr(name, -16)), 9, 4) || '-'
			|| substr(hex(substr(name, -16)), 13, 4) || '-' || substr(hex(substr(name, -16)), 17, 4) || '-'
			|| substr(hex(substr(name, -16)), 21))
		ELSE CAST(substr(name, start + size + 1) AS TEXT)
	END AS key,
	attempt,
	CAST(actor AS TEXT) AS actor,
	CAST(action AS TEXT) AS action,
	CAST(reason AS TEXT) AS reason,
	CAST(outcome AS TEXT) AS outcome
FROM (
	SELECT e.*, e.id AS name, n.value ->> 0 AS start, n.value ->> 1 AS size
	FROM onceward_audit AS e
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(e.id, 1, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(e.id, 1, 1)), 2, 1))))) AS a
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(e.id, 2, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(e.id, 2, 1)), 2, 1))))) AS b
	JOIN json_each(json_array(json_array(
		iif(a.value < 128, 2, 3), iif(a.value < 128, a.value, (a.value & 127) + b.value * 128)))) AS n
);

-- The requests of audited routes, for people.
CREATE VIEW onceward_execution_log AS
SELECT
	number,
	strftime('%Y-%m-%d %H:%M:%fZ', at / 1e6, 'unixepoch') AS at,
	CAST(substr(name, start, size) AS TEXT) AS scope,
	CASE hex(substr(name, start + size, 1))
		WHEN '01' THEN lower(substr(hex(substr(name, -16)), 1, 8) || '-' || substr(hex(substr(name, -16)), 9, 4) || '-'
			|| substr(hex(substr(name, -16)), 13, 4) || '-' || substr(hex(substr(name, -16)), 17, 4) || '-'
			|| substr(hex(substr(name, -16)), 21))
		ELSE CAST(substr(name, start + size + 1) AS TEXT)
	END AS key,
	attempt,
	CAST(operation AS TEXT) AS operation,
	CAST(actor AS TEXT) AS actor,
	CASE decision
		WHEN 1 THEN 'execute' WHEN 2 THEN 'replay' WHEN 3 THEN 'in_progress' WHEN 4 THEN 'mismatch' WHEN 5 THEN 'unknown'
		WHEN 6 THEN 'refused'
	END AS decision,
	CASE origin
		WHEN 1 THEN 'created' WHEN 2 THEN 'retried' WHEN 3 THEN 'resumed' WHEN 4 THEN 'recreated' WHEN 5 THEN 'repeated'
	END AS origin
FROM (
	SELECT e.*, e.id AS name, n.value ->> 0 AS start, n.value ->> 1 AS size
	FROM onceward_execution AS e
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(e.id, 1, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(e.id, 1, 1)), 2, 1))))) AS a
	JOIN json_each(json_array((instr('123456789ABCDEF', substr(hex(substr(e.id, 2, 1)), 1, 1)) * 16
			+ instr('123456789ABCDEF', substr(hex(substr(e.id, 2, 1)), 2, 1))))) AS b
	JOIN json_each(json_array(json_array(
		iif(a.value < 128, 2, 3), iif(a.value < 128, a.value, (a.value & 127) + b.value * 128)))) AS n
);
