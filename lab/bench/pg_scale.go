package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/store"
)

// The sizes of the tables that are compared.
const (
	smallKeys        = 100_000
	defaultLargeKeys = 10_000_000
	scaleCallers     = 16
)

// scaleStep is an operation whose cost is to depend little on how many records there are.
type scaleStep struct {
	name  string
	title string
	// callers do it, so many times in a turn: so seldom that the small table stays small.
	callers, times int
	// measure is how long they took in a turn.
	measure func(s *scaleSide, ctx context.Context, step *scaleStep) (time.Duration, error)
}

var scaleSteps = []scaleStep{
	{"postgres-scale-reserve", "reservation of a new key, 16 callers", scaleCallers, 4_000, calls((*scaleSide).reserve)},
	{"postgres-scale-replay", "replay, 16 callers", scaleCallers, 20_000, calls((*scaleSide).replay)},
	{"postgres-scale-reap", "1,000 records reaped, one caller", 1, 16, (*scaleSide).reap},
}

// calls returns a measure of an operation, which is done a few times more before it counts.
func calls(operate func(*scaleSide, context.Context) error) func(
	*scaleSide, context.Context, *scaleStep,
) (time.Duration, error) {
	return func(s *scaleSide, ctx context.Context, step *scaleStep) (time.Duration, error) {
		once := func(ctx context.Context) error { return operate(s, ctx) }
		if _, err := repeatTimes(step.callers, step.times/warmUpPart, once); err != nil {
			return 0, err
		}
		return repeatTimes(step.callers, step.times, once)
	}
}

// scaleSide is a store with some number of records.
type scaleSide struct {
	records int
	site    *pgSite
	store   pgStore
	// keys are those that can be replayed.
	keys []string
}

// name is the head of its column.
func (s *scaleSide) name() string { return grouped(float64(s.records)) + " records" }

// reserveKeys returns the reservation of a new key.
func (s *scaleSide) reserveKeys(newKey func() string) func(context.Context) error {
	return func(ctx context.Context) error {
		v, err := s.store.Reserve(ctx, reservation(newKey()))
		return decided(v, err, store.DecisionExecute)
	}
}

func (s *scaleSide) reserve(ctx context.Context) error { return s.reserveKeys(newKey)(ctx) }

func (s *scaleSide) replay(ctx context.Context) error {
	return replayOnce(ctx, s.store, reservation(s.keys[rand.N(len(s.keys))]))
}

// reapBatch is how many records one call of the reaper removes at most.
const reapBatch = 1000

// reap has expired records removed, so many batches, and returns how long the calls took.
func (s *scaleSide) reap(ctx context.Context, step *scaleStep) (took time.Duration, err error) {
	if err := cloneRecords(ctx, s.site, step.times*reapBatch, true); err != nil {
		return 0, err
	}
	for range step.times {
		started := time.Now()
		n, err := s.store.Reap(ctx, reapBatch, false)
		if took += time.Since(started); err != nil || n != reapBatch {
			return 0, errors.Join(err, fmt.Errorf("the reaper removed %d records, want %d", n, reapBatch))
		}
	}
	return took, nil
}

// measureScale compares the cost of operations in a large table with that in a small one.
func measureScale(ctx context.Context, o *options, r *report) (err error) {
	if !o.wants(scaleNames()...) {
		return nil
	}
	large := o.keys
	if large == 0 {
		large = defaultLargeKeys
	}
	if large <= smallKeys {
		return fmt.Errorf("bench: -keys must be more than the %d that it is compared with", smallKeys)
	}
	s, err := openServer(ctx, o, "shared_buffers=6GB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r.note("%s", s.about)
	return s.withSide(ctx, r, smallKeys, func(small *scaleSide) error {
		return s.withSide(ctx, r, large, func(large *scaleSide) error {
			return s.compareSides(ctx, o, r, small, large)
		})
	})
}

// scaleNames are those of all that is measured in both tables.
func scaleNames() (names []string) {
	for _, step := range scaleSteps {
		names = append(names, step.name)
	}
	for _, l := range scaleLogs {
		names = append(names, l.name)
	}
	return names
}

// compareSides lets both sides take turns in each operation.
func (s *pgServer) compareSides(ctx context.Context, o *options, r *report, small, large *scaleSide) error {
	// The one checkpoint that is asked for: from here on they come as the server is set up.
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	t := &table{
		title: "Microseconds an operation on " + s.about,
		head:  []string{"operation", small.name(), large.name(), "ratio"},
	}
	for i := range scaleSteps {
		step := &scaleSteps[i]
		if !o.wants(step.name) {
			continue
		}
		micros, err := compareStep(ctx, o, step, small, large)
		if err != nil {
			return err
		}
		t.add(step.title, fmt.Sprintf("%.1f", micros.median(small.name())), fmt.Sprintf("%.1f", micros.median(large.name())),
			fmt.Sprintf("%.2f", micros.ratio(large.name(), small.name())))
		r.judgeTurns(step.name, micros.ratios(large.name(), small.name()))
	}
	r.keep(t)
	if err := s.measureScaleLog(ctx, o, r, small, large); err != nil {
		return err
	}
	r.note("what grows is the height of the index by a level or two, the misses of the processor's caches, and the log: " +
		"the first change of a page after a checkpoint logs the whole page, and random keys seldom meet a page twice")
	return noteSync(o, r)
}

// compareStep lets both sides take turns in an operation, and returns the microseconds of one.
func compareStep(ctx context.Context, o *options, step *scaleStep, small, large *scaleSide) (series, error) {
	micros, order, sides := make(series), o.order(), []*scaleSide{small, large}
	for range o.rounds {
		for _, i := range order.Perm(len(sides)) {
			if err := errors.Join(ctx.Err(), scaleTurn(ctx, step, sides[i], micros)); err != nil {
				return nil, fmt.Errorf("%s: %w", step.name, err)
			}
		}
	}
	return micros, nil
}

// scaleTurn does an operation on one side.
func scaleTurn(ctx context.Context, step *scaleStep, side *scaleSide, micros series) error {
	took, err := step.measure(side, ctx, step)
	micros.add(side.name(), float64(took.Nanoseconds())/1e3/float64(step.times))
	return err
}

// cloneStatement copies a completed record that the store has written: the copies differ in their names, which are
// random as those of the store are, and in when they expire.
const cloneStatement = `INSERT INTO onceward_record (id, attempt, due, retention, created_at, downstream_secret, state, version, status,
		resumable, not_replayable, not_stored, key_uuid, fingerprint, operation, scope, key, provider_id, trace_id, content_type, header, body)
	SELECT gen_random_uuid(), r.attempt, $2::bigint + number * $3::bigint, r.retention, r.created_at, r.downstream_secret, r.state,
		r.version, r.status, r.resumable, r.not_replayable, r.not_stored, r.key_uuid, r.fingerprint, r.operation, r.scope, r.key,
		r.provider_id, r.trace_id, r.content_type, r.header, r.body
	FROM (SELECT * FROM onceward_record WHERE state = 20 LIMIT 1) r, generate_series(1, $1::bigint) number`

// cloneRecords adds n completed records. They expire one after the other within a day that starts in an hour, or, if
// they are to be expired, did so within the hour before this one.
func cloneRecords(ctx context.Context, s *pgSite, n int, expired bool) error {
	if expired {
		return cloneExpiring(ctx, s, n, time.Now().Add(-2*time.Hour), time.Hour)
	}
	return cloneExpiring(ctx, s, n, time.Now().Add(time.Hour), 24*time.Hour)
}

// cloneExpiring adds n completed records that expire one after the other within some time from the first on.
func cloneExpiring(ctx context.Context, s *pgSite, n int, first time.Time, within time.Duration) error {
	if n == 0 {
		return nil
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
