-- +goose Up

-- The versions of the tables, one row for each migration.
CREATE TABLE IF NOT EXISTS onceward_schema (
	version    INT NOT NULL PRIMARY KEY,
	compatible INT NOT NULL COMMENT 'The oldest version of a program that may use the tables.',
	applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB COMMENT = 'The versions of the tables, one row for each migration.';

-- The records, one for each idempotency key. No column has a collation: bytes decide which key is which. Times are
-- microseconds since 1970. A write names the attempt and the revision that it was decided on, and changes the latter.
CREATE TABLE IF NOT EXISTS onceward_record (
	hash        BINARY(16) NOT NULL COMMENT 'The first half of the SHA-256 of the id, as logs show it.',
	attempt     BIGINT NOT NULL COMMENT 'The fencing token: it grows with each grant of the right to execute.',
	revision    INT UNSIGNED NOT NULL COMMENT 'How often the record was written at any attempt.',
	state       TINYINT NOT NULL COMMENT '10 in progress, 11 in progress and resumed when the lease has run out, 20 completed, 30 retryable, 40 unknown, 41 unknown and left to a person, 50 expired.',
	due         BIGINT NOT NULL COMMENT 'End of the lease, next reconciliation or expiry.',
	created_at  BIGINT NOT NULL COMMENT 'When the record was made.',
	settled_at  BIGINT NOT NULL COMMENT 'When it was settled or lost, zero if it is neither.',
	id          MEDIUMBLOB NOT NULL COMMENT 'Scope and key, length-prefixed.',
	provider_id BLOB COMMENT 'What the provider calls the effect, NULL for most: a copy, for the index.',
	record      LONGBLOB NOT NULL COMMENT 'Everything else, as the program encodes it.',
	PRIMARY KEY (hash),
	KEY onceward_record_due (state, due),
	KEY onceward_record_provider_id (provider_id(64))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'The records, one for each idempotency key.';

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
	KEY onceward_late_completion_hash (hash, at),
	KEY onceward_late_completion_at (at)
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
	KEY onceward_external_event_about (about),
	KEY onceward_external_event_received (received_at)
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
	KEY onceward_audit_hash (hash, at),
	KEY onceward_audit_at (at)
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
	KEY onceward_execution_hash (hash, at),
	KEY onceward_execution_at (at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Requests of routes whose executions are audited.';

INSERT IGNORE INTO onceward_schema (version, compatible) VALUES (1, 1);

-- +goose Down

DROP TABLE onceward_execution;
DROP TABLE onceward_audit;
DROP TABLE onceward_external_event;
DROP TABLE onceward_late_completion;
DROP TABLE onceward_meta;
DROP TABLE onceward_record;
DROP TABLE onceward_schema;
