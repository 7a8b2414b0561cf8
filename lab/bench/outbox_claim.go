package main

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// The numbers of delivered messages that are still kept while claims are measured.
const (
	fewDone  = 1_000
	manyDone = 1_000_000
)

// claimBatch is how many messages are claimed at once, and claimTimes how often in a turn.
const (
	claimBatch = 100
	claimTimes = 50
)

// measureClaim compares the cost of a claim beside few and beside many messages that are done.
func (s *pgServer) measureClaim(ctx context.Context, o *options, r *report) error {
	if !o.wants("outbox-claim-scale") {
		return nil
	}
	return s.withDone(ctx, fewDone, func(few *claimSide) error {
		return s.withDone(ctx, manyDone, func(many *claimSide) error {
			times := make(series)
			for range o.rounds {
				for _, side := range []*claimSide{few, many} {
					took, err := side.turn(ctx)
					if err != nil {
						return err
					}
					times.add(side.name, float64(took))
				}
			}
			t := &table{title: fmt.Sprintf("A claim of %d messages", claimBatch), head: []string{"beside", "time"}}
			for _, side := range []*claimSide{few, many} {
				t.add(side.name, time.Duration(times.median(side.name)).Round(time.Microsecond).String())
			}
			r.keep(t)
			r.judge("outbox-claim-scale", times.ratio(many.name, few.name))
			return nil
		})
	})
}

// claimSide is an outbox with some messages that are done.
type claimSide struct {
	name  string
	site  *pgSite
	store *postgres.Store
}

// promoteAll promotes all messages, and claims none.
const promoteAll = `WITH gone AS (DELETE FROM onceward_outbox RETURNING *)
	INSERT INTO onceward_delivery (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
		downstream_key, attributes, origin_scope, origin_key, payload)
	SELECT id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
		downstream_key, attributes, origin_scope, origin_key, payload FROM gone`

// withDone makes messages, has them claimed and finished, and vacuums as a server does by itself after so many changes.
func (s *pgServer) withDone(ctx context.Context, done int, use func(*claimSide) error) error {
	return s.visit(ctx, 1, durably, func(site *pgSite) error {
		store, err := postgres.New(ctx, site.pool, postgres.WithSchema(site.schema))
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		side := &claimSide{name: grouped(float64(done)) + " done messages", site: site, store: store}
		if err := side.add(ctx, done); err != nil {
			return err
		}
		for _, statement := range []string{
			promoteAll, `UPDATE onceward_delivery SET state = 1, token = 1`,
			`UPDATE onceward_delivery SET state = 4`, `VACUUM ANALYZE onceward_outbox, onceward_delivery`,
		} {
			if _, err := site.pool.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return use(side)
	})
}

func (c *claimSide) add(ctx context.Context, messages int) error {
	fill := fmt.Sprintf(fillOutbox, accounts, accounts)
	_, err := c.site.pool.Exec(ctx, fill, outboxTopic, []byte(outboxPayload), messages)
	return err
}

// turn is the mean time of a claim. What is claimed is finished before the next, outside of the time.
func (c *claimSide) turn(ctx context.Context) (mean time.Duration, err error) {
	var took time.Duration
	wanted := []outbox.ClaimRequest{{Topic: outboxTopic, Limit: claimBatch}}
	for range claimTimes {
		if err := c.add(ctx, claimBatch); err != nil {
			return 0, err
		}
		start := time.Now()
		claimed, err := c.store.ClaimMessages(ctx, wanted, time.Minute)
		took += time.Since(start)
		if err == nil && len(claimed) != claimBatch {
			err = fmt.Errorf("%d messages were claimed, want %d", len(claimed), claimBatch)
		}
		if err != nil {
			return 0, err
		}
		outcomes := make([]outbox.Outcome, len(claimed))
		for i := range claimed {
			outcomes[i] = outbox.Outcome{Lease: claimed[i].Lease(), State: outbox.StateDone, Attempts: claimed[i].Attempts}
		}
		if _, err := c.store.FinishMessages(ctx, outcomes); err != nil {
			return 0, err
		}
	}
	return took / claimTimes, nil
}
