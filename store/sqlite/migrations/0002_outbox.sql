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
	payload        BLOB NOT NULL
) STRICT;

-- Each index holds only the messages in the states that it is for, so that those that are done slow down nobody. The state
-- is part of those that are counted or walked without a look at the messages.
CREATE INDEX onceward_outbox_claim ON onceward_outbox (topic, due, number, created_at, state) WHERE state < 2; -- ready, leased
CREATE INDEX onceward_outbox_order ON onceward_outbox (lane, number, state) WHERE state < 4 AND lane IS NOT NULL; -- open
CREATE INDEX onceward_outbox_behind ON onceward_outbox (lane, created_at) WHERE state = 2;
CREATE INDEX onceward_outbox_dead ON onceward_outbox (number, state) WHERE state IN (3, 5); -- holding, dead
CREATE INDEX onceward_outbox_purge ON onceward_outbox (due) WHERE state IN (4, 6); -- done, captured

-- Which consumer has had which event. The texts come from outside and may hold any byte.
CREATE TABLE onceward_inbox (
	event_id   BLOB NOT NULL,
	consumer   BLOB NOT NULL,
	applied_at INTEGER NOT NULL, -- in microseconds since 1970
	PRIMARY KEY (event_id, consumer)
) STRICT, WITHOUT ROWID;

CREATE INDEX onceward_inbox_applied_at ON onceward_inbox (applied_at);
