-- +goose Up

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
	PRIMARY KEY (id),
	KEY onceward_outbox_state (state, topic, due, created_at),
	KEY onceward_outbox_order (open_lane, place, state)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Messages that leave the database.';

-- Events that consumers have had. Texts that come from outside may hold any byte.
CREATE TABLE IF NOT EXISTS onceward_inbox (
	event_id   VARBINARY(255) NOT NULL COMMENT 'The id that the sender gave to the event.',
	consumer   VARBINARY(255) NOT NULL COMMENT 'Who has had it.',
	applied_at BIGINT NOT NULL COMMENT 'When, in microseconds since 1970.',
	PRIMARY KEY (event_id, consumer),
	KEY onceward_inbox_applied_at (applied_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Events that consumers have had.';

INSERT IGNORE INTO onceward_schema (version, compatible) VALUES (2, 1);

-- +goose Down

DROP TABLE onceward_inbox;
DROP TABLE onceward_outbox;
DROP TABLE onceward_lock;
DELETE FROM onceward_schema WHERE version = 2;
