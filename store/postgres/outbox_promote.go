package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The statements that promote new messages to deliveries, and claim them in the same step: a message that is
// inserted as ready and leased by a later statement is written twice, in the table and in its indexes. One
// session at a time promotes messages, and it reads them when it has the lock. So a message is promoted together
// with the earlier messages of its aggregate, or after them. A message that SQL of the application has added
// twice with one id counts once.
//
// Claimed messages are read by a separate statement after the commit, so that a worker that is slow to read
// does not block other workers.
const (
	planSettings = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
		set_config('enable_mergejoin', 'off', true)`
	// A message is claimed if it is wanted and due, if no earlier message of its lane is open, and if the messages of
	// its lane that are promoted with it and come before it are claimed too. Lanes of two topics may have the same
	// number. The attempt of the first message of each lane is counted here. If that message was already there, because
	// it was added again by hand, it is dropped, and the worker counts the attempt of the next message.
	promoteMessages = `WITH gone AS MATERIALIZED (
			DELETE FROM @outbox o
			WHERE o.ctid = ANY (ARRAY(SELECT e.ctid FROM @outbox e WHERE e.number > 0 ORDER BY e.number LIMIT $1))
			RETURNING o.*
		), moment AS MATERIALIZED (
			SELECT @now() AS now
		), judged AS (
			SELECT g.*, m.now, g.due <= m.now
				AND coalesce(row_number() OVER (PARTITION BY g.topic ORDER BY g.number) <= w.most, false)
				AND (g.lane = 0 OR (
					SELECT d.number FROM @delivery d WHERE d.lane = g.lane AND d.state < 4 AND d.lane <> 0
					ORDER BY d.lane, d.number LIMIT 1
				) IS NULL) AS free
			FROM gone g CROSS JOIN moment m LEFT JOIN unnest($2::text[], $3::integer[]) AS w (topic, most) ON w.topic = g.topic
		), chosen AS (
			SELECT j.*, j.free AND (j.lane = 0 OR bool_and(j.free) OVER lane) AS claimed,
				j.lane = 0 OR row_number() OVER lane = 1 AS heads
			FROM judged j WINDOW lane AS (PARTITION BY j.lane ORDER BY j.number)
		), kept AS (
			INSERT INTO @delivery (id, number, lane, due, created_at, token, origin_attempt, attempts, state, topic,
				aggregatetype, aggregateid, type, downstream_key, attributes, origin_scope, origin_key,
				payload)
			SELECT c.id, c.number, c.lane, CASE WHEN c.claimed THEN c.now + $4::bigint ELSE c.due END, c.created_at,
				CASE WHEN c.claimed THEN $5::bigint ELSE 0 END, c.origin_attempt,
				CASE WHEN c.claimed AND c.heads THEN 1 ELSE 0 END, CASE WHEN c.claimed THEN 1 ELSE 0 END, c.topic,
				c.aggregatetype, c.aggregateid, c.type, c.downstream_key, c.attributes, c.origin_scope, c.origin_key,
				c.payload
			FROM chosen c
			ON CONFLICT (id) DO NOTHING
			RETURNING id, state
		)
		SELECT (SELECT count(*) FROM gone), ARRAY(SELECT k.id FROM kept k WHERE k.state = 1)`
	readClaimed = `SELECT ` + messageColumns + `, number, lane FROM @delivery
		WHERE id = ANY ($1::uuid[]) AND token = $2 AND state = 1`
)

// promotesAtOnce is the most new messages that are promoted at once. Each failure halves the number, down to one, and
// each success doubles it again: messages can be large and a server slow, and a promotion that was cut off would
// otherwise be cut off the next time too.
const promotesAtOnce = 1000

// claimNew promotes as many new messages as are wanted, and claims as many of them as it can. It reports whether other
// messages became ready, and whether all new messages were promoted. If the reply of the promotion is lost, or the
// claimed messages cannot be read, they wait for the end of their lease, as if their worker had died.
func (s *Store) claimNew(ctx context.Context, c *messageClaim) (ready, all bool, err error) {
	most := promotesAtOnce
	topics, limits := c.args()
	if !c.far {
		most = 0
		for _, limit := range limits {
			most += int(limit)
		}
	}
	most = max(min(most, promotesAtOnce>>min(s.promoteFailures.Load(), 9)), 1)
	promoted, ids, err := s.promote(ctx, most, topics, limits, c.lease.Microseconds(), c.token)
	if err != nil {
		s.promoteFailures.Add(1)
		return false, false, err
	}
	c.far = c.far || len(ids) == 0 // wanted messages may come after many others
	found, err := s.readNew(ctx, c.token, ids)
	if err != nil {
		s.promoteFailures.Add(1)
		return false, false, err
	}
	if failures := s.promoteFailures.Load(); failures > 0 {
		s.promoteFailures.CompareAndSwap(failures, min(failures, 9)-1) // a hint: of two at once one may be lost
	}
	c.add(found.claimed)
	return promoted > len(found.claimed), promoted < most, s.bury(ctx, found.damaged)
}

// promote promotes messages, and returns how many there were, and which of them were claimed.
func (s *Store) promote(ctx context.Context, args ...any) (promoted int, claimed []pgtype.UUID, err error) {
	promotion := func(batch *pgx.Batch) {
		batch.Queue(s.render(lockPromotion))
		batch.Queue(s.render(promoteMessages), args...).
			QueryRow(func(row pgx.Row) error { return row.Scan(&promoted, &claimed) })
	}
	err = repeatUndone(ctx, func() error { return s.planned(ctx, promotion) })
	return promoted, claimed, err
}

// readNew reads the messages that were claimed when they were promoted. If the connection turns out to be dead, it
// reads them on another one.
func (s *Store) readNew(ctx context.Context, token int64, ids []pgtype.UUID) (found claimResult, err error) {
	if len(ids) == 0 {
		return claimResult{}, nil
	}
	reading := func(batch *pgx.Batch) {
		batch.Queue(s.render(readClaimed), ids, token).Query(func(rows pgx.Rows) (err error) {
			found, err = collectClaimed(rows, token)
			return err
		})
	}
	_, err = s.own.repeated(ctx, func() error { return s.planned(ctx, reading) })
	return found, err
}

// planned runs statements in one transaction and one round trip. As in the SQL functions of the outbox, their plans use
// only indexes: a plan that was made for an empty table is kept while the table grows.
func (s *Store) planned(ctx context.Context, queue func(batch *pgx.Batch)) error {
	batch := &pgx.Batch{}
	batch.Queue(begin)
	batch.Queue(planSettings)
	queue(batch)
	batch.Queue(`COMMIT`)
	return s.own.transact(ctx, batch)
}
