package fair

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// Work says what a run does with the records that it finds.
type Work struct {
	// Wants chooses the records to work on.
	Wants func(rec *store.Record) bool
	// Do works on one of them.
	Do func(ctx context.Context, item Item)
	// Failed is told of what was left in the store and could not be read later: the next look finds it.
	Failed func(err error)
}

// Run is the work of one caller.
type Run struct {
	pool *Pool
	ctx  context.Context
	work Work
	wg   sync.WaitGroup // lanes, and the tasks that have not been dismissed

	mu         sync.Mutex
	operations map[string]*operation
}

// NewRun returns a run over the pool's store. It ends with the context: what waits is let go then, and what is under
// way is told.
func (p *Pool) NewRun(ctx context.Context, work Work) *Run {
	return &Run{pool: p, ctx: ctx, work: work, operations: make(map[string]*operation)}
}

// Look looks once through all due records and begins to work on them. It does not wait for that.
func (r *Run) Look() error {
	return r.walk(store.Filter{}, func(rec *store.Record, before store.ID) bool {
		if r.work.Wants(rec) {
			r.offer(rec, before)
		}
		return true
	})
}

// Wait returns when all that was found is done, or hangs, or cannot be done because all places of its operation or its
// scope are taken by what hangs. There must be no look at the same time.
func (r *Run) Wait() { r.wg.Wait() }

// walk calls each for the due records of the filter, with the place before it from which a later walk finds it again,
// until it returns false.
func (r *Run) walk(filter store.Filter, each func(rec *store.Record, before store.ID) bool) error {
	filter.State, filter.Due = r.pool.config.State, true
	for {
		page, err := r.list(filter)
		if err != nil {
			return err
		}
		for i := range page {
			if r.ctx.Err() != nil || !each(&page[i], filter.After) {
				return nil
			}
			filter.After = page[i].ID
		}
		if len(page) < store.MaxPage {
			return nil
		}
	}
}

// storeTimeout bounds one look at a page: the store's machine may vanish without a word, and the run must outlive that.
const storeTimeout = time.Minute

func (r *Run) list(filter store.Filter) ([]store.Record, error) {
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	return r.pool.config.Lister.List(ctx, filter)
}
