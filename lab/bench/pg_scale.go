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
	name    string
	title   string
	callers int
	// times is how often it is done in a turn: so seldom that the small table stays small.
	times int
	// prepare makes what the operation needs; it may be nil.
	prepare func(s *scaleSide, ctx context.Context, times int) error
	operate func(s *scaleSide, ctx context.Context) error
}

var scaleSteps = []scaleStep{
	{"postgres-scale-reserve", "reservation of a new key, 16 callers", scaleCallers, 4_000, nil, (*scaleSide).reserve},
	{"postgres-scale-replay", "replay, 16 callers", scaleCallers, 20_000, nil, (*scaleSide).replay},
	{"postgres-scale-reap", "reaper batch of 1,000 records, one caller", 1, 16, (*scaleSide).expire, (*scaleSide).reap},
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

func (s *scaleSide) reserve(ctx context.Context) error {
	v, err := s.store.Reserve(ctx, reservation(newKey()))
	return decided(v, err, store.DecisionExecute)
}

func (s *scaleSide) replay(ctx context.Context) error {
	return replayByReserve(ctx, s.store, reservation(s.keys[rand.N(len(s.keys))]))
}

// reapBatch is how many records one call of the reaper removes.
const reapBatch = 1000

func (s *scaleSide) expire(ctx context.Context, batches int) error {
	return cloneRecords(ctx, s.site, batches*reapBatch, true)
}

func (s *scaleSide) reap(ctx context.Context) error {
	n, err := s.store.Reap(ctx, reapBatch, false)
	if err == nil && n != reapBatch {
		err = fmt.Errorf("the reaper removed %d records, want %d", n, reapBatch)
	}
	return err
}

// measureScale compares the cost of operations in a large table with that in a small one.
func measureScale(ctx context.Context, o *options, r *report) (err error) {
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

// compareSides lets both sides take turns in each operation.
func (s *pgServer) compareSides(ctx context.Context, o *options, r *report, small, large *scaleSide) error {
	// The one checkpoint that is asked for: from here on they come as the server is set up.
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	t := &table{title: "Microseconds an operation on " + s.about, head: []string{"operation", small.name(), large.name(), "ratio"}}
	log := &table{title: "Bytes of write-ahead log an operation", head: []string{"operation", small.name(), large.name()}}
	for i := range scaleSteps {
		step := &scaleSteps[i]
		if !o.wants(step.name) {
			continue
		}
		micros, bytes := make(series), make(series)
		for range o.rounds {
			for _, side := range []*scaleSide{small, large} {
				if err := errors.Join(ctx.Err(), s.scaleTurn(ctx, step, side, micros, bytes)); err != nil {
					return fmt.Errorf("%s: %w", step.name, err)
				}
			}
		}
		ratio := micros.ratio(large.name(), small.name())
		t.add(step.title, fmt.Sprintf("%.1f", micros.median(small.name())), fmt.Sprintf("%.1f", micros.median(large.name())),
			fmt.Sprintf("%.2f", ratio))
		log.add(step.title, grouped(bytes.median(small.name())), grouped(bytes.median(large.name())))
		r.judge(step.name, ratio)
	}
	r.keep(t)
	r.keep(log)
	r.note("what grows is the height of the index by a level or two, the misses of the processor's caches, and the log: the " +
		"first change of a page after a checkpoint logs the whole page, and random keys seldom meet a page twice in a large index")
	return noteSync(o, r)
}

// scaleTurn does an operation on one side, a few times more before it counts.
func (s *pgServer) scaleTurn(ctx context.Context, step *scaleStep, side *scaleSide, micros, bytes series) error {
	before := step.times / warmUpPart
	if step.prepare != nil {
		if err := step.prepare(side, ctx, before+step.times); err != nil {
			return err
		}
	}
	operate := func(ctx context.Context) error { return step.operate(side, ctx) }
	if _, err := repeatTimes(step.callers, before, operate); err != nil {
		return err
	}
	var took time.Duration
	logged, err := s.logged(ctx, func() (err error) {
		took, err = repeatTimes(step.callers, step.times, operate)
		return err
	})
	times := float64(step.times)
	micros.add(side.name(), float64(took.Nanoseconds())/1e3/times)
	bytes.add(side.name(), logged/times)
	return err
}
