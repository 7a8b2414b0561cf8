-- +goose Up

-- The versions of the tables, one row for each migration.
CREATE TABLE IF NOT EXISTS onceward_schema (
	version    INT NOT NULL PRIMARY KEY,
	applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB COMMENT = 'The versions of the tables, one row for each migration.';

-- The records, one for each idempotency key. No column has a collation: bytes decide which key is which. Times are
-- microseconds since 1970. A write names the attempt and the revision that it was decided on, and changes the latter.
-- Columns and indexes cost every write, so there are few. The column record begins with six lengths of four bytes, the
-- most significant first: of the rest, which is as the program encodes it, of the id, which is scope and key, of the
-- provider's id, of the operation, of the body and of the data. They follow in this order, the last two unless they are in content.
CREATE TABLE IF NOT EXISTS onceward_record (
	hash        BINARY(16) NOT NULL COMMENT 'The first half of the SHA-256 of the id, as logs show it.',
	attempt     BIGINT NOT NULL COMMENT 'The fencing token: it grows with each grant of the right to execute.',
	revision    BIGINT NOT NULL COMMENT 'Drawn at random by each write, which recognises itself by it.',
	state       TINYINT NOT NULL COMMENT '10 in progress, 11 in progress and resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41 unknown and left to a person, 50 expired.',
	due         BIGINT NOT NULL COMMENT 'End of the lease, next reconciliation or expiry.',
	created_at  BIGINT NOT NULL COMMENT 'When the record was made.',
	settled_at  BIGINT NOT NULL COMMENT 'When it was settled or lost, zero if it is neither.',
	record      MEDIUMBLOB NOT NULL COMMENT 'Everything else: see above.',
	content     LONGBLOB COMMENT 'The body of the stored answer and the data of a phased operation, if they are too large for the column record; else NULL.',
	PRIMARY KEY (hash),
	KEY due (state, due)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'The records, one for each idempotency key.';

-- What providers call effects, for those who know no more than that. An entry is made before the attempt's record carries
-- the id, or with it, and one that is of no use any more does no harm: what it leads to is looked at.
CREATE TABLE IF NOT EXISTS onceward_provider (
	name    BINARY(16) NOT NULL COMMENT 'The first half of the SHA-256 of the provider''s id.',
	hash    BINARY(16) NOT NULL COMMENT 'That of the record.',
	attempt BIGINT NOT NULL COMMENT 'That of the record when the entry was made.',
	PRIMARY KEY (name, hash, attempt),
	KEY hash (hash)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Which records carry the id of a provider.';

-- Single numbers: max_removed_attempt is at least the largest attempt token of a record that was removed.
CREATE TABLE IF NOT EXISTS onceward_meta (
	name  VARBINARY(64) NOT NULL PRIMARY KEY,
	value BIGINT NOT NULL
) ENGINE = InnoDB COMMENT = 'Single numbers, by their names.';

INSERT IGNORE INTO onceward_meta (name, value) VALUES ('max_removed_attempt', 0);

-- Answers that came too late and were refused, for those who settle what is unknown.
CREATE TABLE IF NOT EXISTS onceward_late_completion (
	number  BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	hash    BINARY(16) NOT NULL COMMENT 'That of the record.',
	id      MEDIUMBLOB NOT NULL COMMENT 'Scope and key, length-prefixed.',
	attempt BIGINT NOT NULL COMMENT 'The attempt whose answer it is.',
	at      BIGINT NOT NULL COMMENT 'When it was refused.',
	record  LONGBLOB NOT NULL COMMENT 'The refused answer, in the encoding of a record.',
	KEY hash (hash, at),
	KEY at (at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Answers that came too late and were refused.';

-- What other systems told by themselves, such as webhooks. Texts that come from outside are bytes of any length, which no
-- index takes: their hashes are.
CREATE TABLE IF NOT EXISTS onceward_external_event (
	identity    BINARY(32) NOT NULL COMMENT 'A hash of source, scope and id: an event that comes again is the same.',
	about       BINARY(32) NOT NULL COMMENT 'A hash of source, scope and subject.',
	source      MEDIUMBLOB NOT NULL COMMENT 'The other system.',
	any_scope   TINYINT NOT NULL COMMENT '1 if the sender may settle records of every scope.',
	scope       MEDIUMBLOB NOT NULL COMMENT 'Else those of this one alone.',
	event_id    MEDIUMBLOB NOT NULL COMMENT 'The id that the source gave to the event.',
	subject     MEDIUMBLOB NOT NULL COMMENT 'What it is about: a downstream key, or the id of the provider.',
	at          BIGINT NOT NULL COMMENT 'When it happened by the clock of the sender.',
	received_at BIGINT NOT NULL COMMENT 'When it was kept.',
	body        LONGBLOB NOT NULL COMMENT 'The event itself.',
	PRIMARY KEY (identity),
	KEY about (about),
	KEY received_at (received_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'What other systems told by themselves, such as webhooks.';

-- Who did what to which record, and why. Entries are only added, and stay when their record is gone.
CREATE TABLE IF NOT EXISTS onceward_audit (
	number  BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	hash    BINARY(16) NOT NULL COMMENT 'That of the record.',
	id      MEDIUMBLOB NOT NULL COMMENT 'Scope and key, length-prefixed: the record may be gone.',
	attempt BIGINT NOT NULL COMMENT 'The attempt that was acted on.',
	at      BIGINT NOT NULL COMMENT 'When it was written.',
	actor   MEDIUMBLOB NOT NULL COMMENT 'Who acted: a person, or the name of a program.',
	action  MEDIUMBLOB NOT NULL COMMENT 'What was done.',
	reason  MEDIUMBLOB NOT NULL COMMENT 'Why, in the words of the actor.',
	outcome MEDIUMBLOB NOT NULL COMMENT 'Empty before the act; in a second entry, how it ended.',
	KEY hash (hash, at),
	KEY at (at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Who did what to which record, and why.';

-- Requests of routes whose executions are audited. Entries are only added, and stay when their record is gone.
CREATE TABLE IF NOT EXISTS onceward_execution (
	number    BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	hash      BINARY(16) NOT NULL COMMENT 'That of the record.',
	id        MEDIUMBLOB NOT NULL COMMENT 'Scope and key, length-prefixed: the record may be gone.',
	attempt   BIGINT NOT NULL COMMENT 'That of the record, zero if nothing of it was visible.',
	at        BIGINT NOT NULL COMMENT 'When it was written.',
	decision  TINYINT NOT NULL COMMENT '1 execute, 2 replay, 3 in progress, 4 mismatch, 5 unknown, 6 refused.',
	origin    TINYINT NOT NULL COMMENT 'Of an execution: 1 created, 2 retried, 3 resumed, 4 recreated, 5 repeated; 0 for none.',
	operation MEDIUMBLOB NOT NULL COMMENT 'The method and route pattern.',
	actor     MEDIUMBLOB NOT NULL COMMENT 'Who called, as the service knows them.',
	KEY hash (hash, at),
	KEY at (at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Requests of routes whose executions are audited.';

-- The records, for people; times are in UTC. The scope of an id is as long as its first byte says or, from 128 on, its
-- first two. Queries by id (x'…') and by state_code go by an index.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW onceward_records AS
SELECT
	r.hash AS id,
	LOWER(HEX(r.hash)) AS hash,
	CONVERT(SUBSTRING(r.id, r.start, r.size) USING utf8mb4) AS scope,
	CASE ORD(SUBSTRING(r.id, r.start + r.size, 1))
		WHEN 1 THEN LOWER(CONCAT_WS('-', HEX(SUBSTRING(r.id, -16, 4)), HEX(SUBSTRING(r.id, -12, 2)),
			HEX(SUBSTRING(r.id, -10, 2)), HEX(SUBSTRING(r.id, -8, 2)), HEX(SUBSTRING(r.id, -6))))
		ELSE CONVERT(SUBSTRING(r.id, r.start + r.size + 1) USING utf8mb4)
	END AS `key`,
	CONVERT(NULLIF(r.operation, '') USING utf8mb4) AS operation,
	ELT(r.state DIV 10, 'in_progress', 'completed', 'failed_retryable', 'unknown', 'expired') AS state,
	r.state AS state_code,
	r.state = 41 AS dead_letter,
	r.attempt,
	TIMESTAMPADD(MICROSECOND, r.created_at, '1970-01-01') AS created_at,
	IF(r.state DIV 10 = 1, TIMESTAMPADD(MICROSECOND, r.due, '1970-01-01'), NULL) AS lease_until,
	IF(r.state DIV 10 = 4, TIMESTAMPADD(MICROSECOND, r.due, '1970-01-01'), NULL) AS reconcile_at,
	TIMESTAMPADD(MICROSECOND, NULLIF(r.settled_at, 0), '1970-01-01') AS settled_at,
	IF(r.state DIV 10 IN (2, 3, 5), TIMESTAMPADD(MICROSECOND, r.due, '1970-01-01'), NULL) AS expires_at,
	CONVERT(NULLIF(r.provider_id, '') USING utf8mb4) AS provider_id,
	r.body_bytes
FROM (
	SELECT t.*, IF(ORD(t.id) < 128, 2, 3) AS start,
		IF(ORD(t.id) < 128, ORD(t.id), (ORD(t.id) & 127) + ORD(SUBSTRING(t.id, 2, 1)) * 128) AS size
	FROM (
		SELECT s.hash, s.attempt, s.state, s.due, s.created_at, s.settled_at,
			SUBSTRING(s.record, 25 + s.rest_bytes, s.id_bytes) AS id,
			SUBSTRING(s.record, 25 + s.rest_bytes + s.id_bytes, s.provider_bytes) AS provider_id,
			SUBSTRING(s.record, 25 + s.rest_bytes + s.id_bytes + s.provider_bytes,
				CONV(HEX(SUBSTRING(s.record, 13, 4)), 16, 10)) AS operation,
			CAST(CONV(HEX(SUBSTRING(s.record, 17, 4)), 16, 10) AS UNSIGNED) AS body_bytes
		FROM (
			SELECT r.*, CONV(HEX(LEFT(r.record, 4)), 16, 10) AS rest_bytes,
				CONV(HEX(SUBSTRING(r.record, 5, 4)), 16, 10) AS id_bytes,
				CONV(HEX(SUBSTRING(r.record, 9, 4)), 16, 10) AS provider_bytes
			FROM onceward_record r
		) s
	) t
) r;

-- Who did what to which record, for people.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW onceward_audit_log AS
SELECT
	e.number,
	TIMESTAMPADD(MICROSECOND, e.at, '1970-01-01') AS at,
	e.hash AS id,
	CONVERT(SUBSTRING(e.id, e.start, e.size) USING utf8mb4) AS scope,
	CASE ORD(SUBSTRING(e.id, e.start + e.size, 1))
		WHEN 1 THEN LOWER(CONCAT_WS('-', HEX(SUBSTRING(e.id, -16, 4)), HEX(SUBSTRING(e.id, -12, 2)),
			HEX(SUBSTRING(e.id, -10, 2)), HEX(SUBSTRING(e.id, -8, 2)), HEX(SUBSTRING(e.id, -6))))
		ELSE CONVERT(SUBSTRING(e.id, e.start + e.size + 1) USING utf8mb4)
	END AS `key`,
	e.attempt,
	CONVERT(e.actor USING utf8mb4) AS actor,
	CONVERT(e.action USING utf8mb4) AS action,
	CONVERT(e.reason USING utf8mb4) AS reason,
	CONVERT(e.outcome USING utf8mb4) AS outcome
FROM (
	SELECT t.*, IF(ORD(t.id) < 128, 2, 3) AS start,
		IF(ORD(t.id) < 128, ORD(t.id), (ORD(t.id) & 127) + ORD(SUBSTRING(t.id, 2, 1)) * 128) AS size
	FROM onceward_audit t
) e;

-- The requests of audited routes, for people.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW onceward_execution_log AS
SELECT
	e.number,
	TIMESTAMPADD(MICROSECOND, e.at, '1970-01-01') AS at,
	e.hash AS id,
	CONVERT(SUBSTRING(e.id, e.start, e.size) USING utf8mb4) AS scope,
	CASE ORD(SUBSTRING(e.id, e.start + e.size, 1))
		WHEN 1 THEN LOWER(CONCAT_WS('-', HEX(SUBSTRING(e.id, -16, 4)), HEX(SUBSTRING(e.id, -12, 2)),
			HEX(SUBSTRING(e.id, -10, 2)), HEX(SUBSTRING(e.id, -8, 2)), HEX(SUBSTRING(e.id, -6))))
		ELSE CONVERT(SUBSTRING(e.id, e.start + e.size + 1) USING utf8mb4)
	END AS `key`,
	e.attempt,
	CONVERT(e.operation USING utf8mb4) AS operation,
	CONVERT(e.actor USING utf8mb4) AS actor,
	ELT(e.decision, 'execute', 'replay', 'in_progress', 'mismatch', 'unknown', 'refused') AS decision,
	ELT(e.origin, 'created', 'retried', 'resumed', 'recreated', 'repeated') AS origin
FROM (
	SELECT t.*, IF(ORD(t.id) < 128, 2, 3) AS start,
		IF(ORD(t.id) < 128, ORD(t.id), (ORD(t.id) & 127) + ORD(SUBSTRING(t.id, 2, 1)) * 128) AS size
	FROM onceward_execution t
) e;

-- Rows that transactions lock until they end, by a hash of what is locked: a name, or an aggregate of the outbox. The
-- number of an aggregate is the place of its last message; of all others it is when they were locked last.
CREATE TABLE IF NOT EXISTS onceward_lock (
	name   BINARY(16) NOT NULL COMMENT 'A hash of what is locked.',
	number BIGINT NOT NULL COMMENT 'Larger each time: by the clock, in microseconds since 1970, or one more.',
	PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Rows that transactions lock until they end.';

-- Messages that leave the database. The columns id, aggregatetype, aggregateid, type and payload are those that
-- change-data-capture routers look for. An aggregate is known by a hash, its lane; two that share one wait for each other.
CREATE TABLE IF NOT EXISTS onceward_outbox (
	id             CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'A UUID, larger ones later.',
	lane           BIGINT COMMENT 'A hash of topic and aggregate, within which messages keep their order; NULL: none.',
	open_lane      BIGINT COMMENT 'The same as long as the message is open.',
	place          BIGINT NOT NULL COMMENT 'The order within the lane, which is that of commits.',
	state          TINYINT NOT NULL COMMENT '0 ready, 1 leased, 2 behind, 3 holding, 4 done, 5 dead, 6 for change-data-capture alone.',
	topic          VARBINARY(255) NOT NULL COMMENT 'Empty for change-data-capture alone.',
	due            BIGINT NOT NULL COMMENT 'Next delivery, end of the lease or when it was done, in microseconds since 1970.',
	created_at     BIGINT NOT NULL COMMENT 'Likewise.',
	token          BIGINT NOT NULL DEFAULT 0 COMMENT 'Of the lease; below zero for a dead letter that was given up.',
	attempts       INT NOT NULL DEFAULT 0 COMMENT 'How often a delivery was begun.',
	origin_attempt BIGINT NOT NULL COMMENT 'That of the operation which added it.',
	aggregatetype  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	aggregateid    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	type           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	downstream_key BLOB NOT NULL COMMENT 'The idempotency key to send along.',
	origin         MEDIUMBLOB COMMENT 'Scope and key of the operation that added it, length-prefixed.',
	attributes     MEDIUMBLOB NOT NULL COMMENT 'Content type, source, subject, step and headers, as JSON.',
	provider_id    MEDIUMBLOB COMMENT 'What the receiver calls the effect.',
	last_error     MEDIUMBLOB COMMENT 'Why the last delivery failed.',
	payload        LONGBLOB NOT NULL,
	answer         MEDIUMBLOB COMMENT 'What the handler kept of the receiver''s answer.',
	PRIMARY KEY (id),
	KEY onceward_outbox_state (state, topic, due, created_at),
	KEY onceward_outbox_order (open_lane, place, state),
	KEY onceward_outbox_provider (provider_id(64))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Messages that leave the database.';

-- Events that consumers have had. Texts that come from outside may hold any byte.
CREATE TABLE IF NOT EXISTS onceward_inbox (
	event_id   VARBINARY(255) NOT NULL COMMENT 'The id that the sender gave to the event.',
	consumer   VARBINARY(255) NOT NULL COMMENT 'Who has had it.',
	applied_at BIGINT NOT NULL COMMENT 'When, in microseconds since 1970.',
	PRIMARY KEY (event_id, consumer),
	KEY onceward_inbox_applied_at (applied_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Events that consumers have had.';

INSERT IGNORE INTO onceward_schema (version) VALUES (1);
