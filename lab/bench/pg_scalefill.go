package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// cloneStatement copies a completed record that the store has written: the copies differ in their names, which are random
// as those of the store are, and in when they expire.
const cloneStatement = `INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
	SELECT gen_random_uuid(), r.attempt, $2::bigint + number * $3::bigint, r.retention, r.answer, r.state, r.request, r.extra
	FROM (SELECT * FROM onceward_record WHERE state = 20 LIMIT 1) r, generate_series(1, $1::bigint) number`

// cloneRecords adds n completed records. They expire one after the other within a day that starts in an hour, or, if they
// are to be expired, did so within the hour before this one.
func cloneRecords(ctx context.Context, s *pgSite, n int, expired bool) error {
	if n == 0 {
		return nil
	}
	first, within := time.Now().Add(time.Hour), 24*time.Hour
	if expired {
		first, within = time.Now().Add(-2*time.Hour), time.Hour
	}
	tag, err := s.pool.Exec(ctx, cloneStatement, n, first.UnixMicro(), max(1, within.Microseconds()/int64(n)))
	if err == nil && tag.RowsAffected() != int64(n) {
		err = fmt.Errorf("%d records were cloned, want %d", tag.RowsAffected(), n)
	}
	return err
}

// withSide fills a store with records and hands it over.
func (s *pgServer) withSide(ctx context.Context, r *report, records int, use func(*scaleSide) error) error {
	return s.visit(ctx, scaleCallers, durably, func(site *pgSite) error {
		store, err := openStore(ctx, site)
		if err != nil {
			return err
		}
		side := &scaleSide{records: records, site: site, store: store, keys: newKeys(smallKeys)}
		started := time.Now()
		if err = side.fill(ctx); err == nil {
			err = s.warm(ctx, r, side)
		}
		if err == nil {
			r.note("%s in place after %s", side.name(), time.Since(started).Round(time.Second))
			err = use(side)
		}
		return errors.Join(err, store.Close())
	})
}

// fillSteps is in how many places of the table the keys lie that are replayed.
const fillSteps = 10

// fill writes the keys that are replayed through the store, and the others in between.
func (s *scaleSide) fill(ctx context.Context) error {
	each, others := len(s.keys)/fillSteps, (s.records-len(s.keys))/fillSteps
	for i := range fillSteps {
		if err := fill(ctx, s.store, s.keys[i*each:(i+1)*each]); err != nil {
			return err
		}
		if err := cloneRecords(ctx, s.site, others, false); err != nil {
			return err
		}
	}
	return s.site.expect(ctx, int64(fillSteps*(each+others)), pgRecords)
}

// warm brings the table and its indexes into the server's memory, and does the work of a vacuum that would come later.
func (s *pgServer) warm(ctx context.Context, r *report, side *scaleSide) error {
	if _, err := side.site.pool.Exec(ctx, `VACUUM ANALYZE onceward_record`); err != nil {
		return err
	}
	if err := s.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_prewarm`); err != nil {
		r.note("%s are as warm as filling left them: %v", side.name(), err)
		return nil
	}
	return s.exec(ctx, `SELECT pg_prewarm(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind IN ('r', 'i') AND pg_relation_size(c.oid) > 0`, side.site.schema)
}
