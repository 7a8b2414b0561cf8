package postgres

// batchStatements are the statements of a batch: one for each kind of item, with an array for each column.
//
// They must not depend on what the planner thinks of the table. Records are found by a look-up for each item, which LIMIT
// keeps from becoming a join, and written through ON CONFLICT, which always goes by the primary key. The arrays hide behind a
// subquery, so that one plan serves batches of every size and is kept.
var batchStatements = [kinds]string{
	// A reservation makes a record where there is none, makes it anew over one that counts for nothing any more, takes it over
	// if it may be retried by the same request, or hands it back as it stands. A record that appeared or changed since the
	// look is not written: the item is to be sent again.
	kindReserve: `WITH q AS MATERIALIZED (
			SELECT u.*, n.now, s.attempt AS s_attempt, s.due AS s_due, s.retention AS s_retention, s.answer AS s_answer,
				s.queue AS s_queue, s.request AS s_request, s.more AS s_more,
				coalesce(s.queue = 50 OR s.queue IN (20, 30) AND s.due <= n.now, true) AS fresh,
				CASE
					WHEN u.mode = 0 THEN false
					WHEN s.queue IS NULL THEN u.mode = 2
					WHEN get_byte(s.request || '\x00'::bytea, 0) & 15 <> 1 THEN false
					WHEN s.queue = 50 OR s.queue IN (20, 30) AND s.due <= n.now THEN u.mode = 2
					ELSE s.queue = 30 AND s.request = u.request
				END AS takes
			FROM (SELECT @now() AS now) AS n
			CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::smallint[]), (SELECT $3::bigint[]), (SELECT $4::integer[]),
				(SELECT $5::smallint[]), (SELECT $6::bytea[]), (SELECT $7::bytea[]), (SELECT $8::bytea[]))
				WITH ORDINALITY AS u (id, mode, span, retention, queue, nonce, request, more, item)
			LEFT JOIN LATERAL (SELECT * FROM @record r WHERE r.id = u.id LIMIT 1) AS s ON true
		), w AS (
			INSERT INTO @record AS r (id, attempt, due, retention, answer, queue, request, more)
			SELECT id, nextval('@attempt'), now + span,
				CASE WHEN fresh THEN retention ELSE @longer(s_retention, retention) END, nonce, queue, request,
				CASE WHEN fresh THEN '\x0108'::bytea || int8send(now) || more ELSE s_more || '\x0500060009000b0100'::bytea END
			FROM q WHERE takes
			ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, due = excluded.due, retention = excluded.retention,
				answer = excluded.answer, queue = excluded.queue, request = excluded.request, more = excluded.more
			WHERE EXISTS (
				SELECT FROM q WHERE q.id = r.id AND q.s_attempt = r.attempt AND q.s_queue = r.queue AND q.s_due = r.due)
			RETURNING r.id, r.attempt, r.retention, r.more
		)
		SELECT q.item,
			CASE
				WHEN w.id IS NULL AND q.takes THEN 5
				WHEN w.id IS NULL AND q.s_queue IS NULL THEN 1
				WHEN w.id IS NULL THEN 0
				WHEN q.s_queue IS NULL THEN 2
				WHEN q.fresh THEN 3
				ELSE 4
			END::smallint,
			q.now, coalesce(w.attempt, q.s_attempt), q.s_due, coalesce(w.retention, q.s_retention), q.s_answer, q.s_queue,
			q.s_request, coalesce(w.more, q.s_more), pg_is_in_recovery()
		FROM q LEFT JOIN w ON w.id = q.id AND q.takes`,

	// A heartbeat or an answer changes a record that is in progress at its attempt, and returns its name. An item whose name
	// does not come back was refused. Should the record have been removed since the look, nothing may be made in its place:
	// the division stops the statement.
	kindExtend: `INSERT INTO @record AS r (id, attempt, due, retention, answer, queue, request, more)
		SELECT u.id, u.attempt, n.now + u.span, 0, '', 0, '', ''
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS u (id, attempt, span)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.queue IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET due = excluded.due WHERE r.attempt = excluded.attempt AND r.queue IN (10, 11)
		RETURNING r.id, r.due, 1 / CASE WHEN r.xmax = 0 THEN 0 ELSE 1 END`,

	// The longer retention in microseconds is the greater of both in microseconds; asked the other way round, the server would
	// not put the function's text in its place but parse and plan it each time.
	kindComplete: `INSERT INTO @record AS r (id, attempt, due, retention, answer, queue, request, more)
		SELECT u.id, u.attempt, n.now, u.retention, u.answer, 20, '', u.more
		FROM (SELECT @now() AS now) AS n
		CROSS JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::integer[]), (SELECT $4::bytea[]),
			(SELECT $5::bytea[])) AS u (id, attempt, retention, answer, more)
		CROSS JOIN LATERAL (SELECT FROM @record r WHERE r.id = u.id AND r.attempt = u.attempt AND r.queue IN (10, 11)
			AND get_byte(r.request || '\x00'::bytea, 0) & 15 = 1 LIMIT 1) AS s
		ON CONFLICT (id) DO UPDATE SET queue = 20, answer = excluded.answer,
			more = r.more || excluded.more || CASE WHEN r.queue = 11 THEN '\x0b0101'::bytea ELSE ''::bytea END,
			retention = @longer(r.retention, excluded.retention),
			due = excluded.due + greatest(@span(r.retention), @span(excluded.retention))
		WHERE r.attempt = excluded.attempt AND r.queue IN (10, 11)
		RETURNING r.id, r.due, 1 / CASE WHEN r.xmax = 0 THEN 0 ELSE 1 END`,
}
