// Package fair processes the due records of a store so that one operation that hangs, or one scope with very many
// records, delays only itself (rule B6).
//
// Records wait in lanes, one for each operation and scope. Each lane is served in order; the next lane is chosen by
// shares: an operation has a number of places, one scope at most half of them, and all operations together a total.
// Lanes that wait for a place get it in turn, and scopes that wait for a lane get it from scopes that had their turn. A
// lane holds few records. Records without room are left in the store and read later, so that memory is bounded however
// many are due, and a look through the store never waits for a task.
package fair

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// Item is a due record, as it was listed.
type Item struct {
	store.ID
	Operation string
	// Due is the record's [store.Record.Due].
	Due time.Time
}

// Config configures a [Pool].
type Config struct {
	// Lister is the store.
	Lister store.Lister
	// State is the state of the records to look for, which must be due.
	State store.State
	Bounds
	// Overdue is the time after which a task that has not returned counts as hanging: it ignores the end of its context.
	// It keeps its place in its operation and its scope, so that the number of hanging tasks is bounded, but not in the
	// total, and no run waits for it.
	Overdue time.Duration
	// Hangs is called for each task that hangs, and Returned for each such task that returns later.
	Hangs, Returned func(Item)
}

// Pool holds the places for tasks. It lives as long as its worker, because a task can hang for longer than the run that
// began it.
type Pool struct {
	config Config
	total  chan struct{}

	mu      sync.Mutex
	shares  map[shareKey]*share
	held    map[store.ID]struct{} // waiting in a lane or in progress: no record is taken twice
	hanging int
}

// NewPool returns a pool. The bounds must have their defaults.
func NewPool(config Config) *Pool {
	return &Pool{
		config: config, total: make(chan struct{}, config.Total),
		shares: make(map[shareKey]*share), held: make(map[store.ID]struct{}),
	}
}

// Hanging returns the number of tasks that hang.
func (p *Pool) Hanging() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hanging
}

// hold marks a record as taken, and reports false if it is already.
func (p *Pool) hold(id store.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.held[id]; ok {
		return false
	}
	p.held[id] = struct{}{}
	return true
}

func (p *Pool) letGo(id store.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, id)
}

// task is a record with its places.
type task struct {
	*Pool
	item    Item
	shares  []*share
	dismiss func() // frees its place in the total and lets its run end without it; once
	overdue *time.Timer

	ended, hung bool // the pool's lock guards them
}

// enter waits for room for a record. It returns nil if there will be none, or if the context has ended.
func (p *Pool) enter(ctx context.Context, item Item) *task {
	t := &task{Pool: p, item: item}
	for _, key := range []shareKey{
		{operation: item.Operation, scope: item.Scope, ofScope: true},
		{operation: item.Operation},
	} {
		s := p.use(key)
		if !p.take(ctx, s) {
			p.unuse(s)
			t.leave()
			return nil
		}
		t.shares = append(t.shares, s)
	}
	select {
	case p.total <- struct{}{}:
		if ctx.Err() == nil {
			return t
		}
		<-p.total
	case <-ctx.Done():
	}
	t.leave()
	return nil
}

// leave releases the places outside the total.
func (t *task) leave() {
	for _, s := range t.shares {
		<-s.places
		t.unuse(s)
	}
}

// do does the work. Its run waits for it until it is dismissed: when it has ended, or when it hangs.
func (t *task) do(work func(), dismissed func()) {
	t.dismiss = sync.OnceFunc(func() {
		<-t.total
		dismissed()
	})
	t.overdue = time.AfterFunc(t.config.Overdue, t.hangs)
	defer t.end()
	work()
}

// hangs marks a task that has not returned in time.
func (t *task) hangs() {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.hung = true
	t.count(1)
	t.mu.Unlock()
	t.config.Hangs(t.item)
	t.dismiss()
}

// end releases all places of a task.
func (t *task) end() {
	t.overdue.Stop()
	t.mu.Lock()
	t.ended = true
	if t.hung {
		t.count(-1)
	}
	delete(t.held, t.item.ID)
	t.mu.Unlock()
	t.leave()
	t.dismiss()
	if t.hung {
		t.config.Returned(t.item)
	}
}

// count adds to the number of hanging tasks. The caller holds the lock.
func (t *task) count(by int) {
	t.hanging += by
	for _, s := range t.shares {
		s.hang(by)
	}
}

// Work is what a run does with the records that it finds.
type Work struct {
	// Wants reports whether to work on a record.
	Wants func(rec *store.Record) bool
	// Do works on one of them.
	Do func(ctx context.Context, item Item)
	// Failed is called with the error if records left in the store could not be read later: the next look finds them.
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

// NewRun returns a run over the pool's store. It ends with the context: waiting records are dropped, and running tasks
// see the end of the context.
func (p *Pool) NewRun(ctx context.Context, work Work) *Run {
	return &Run{pool: p, ctx: ctx, work: work, operations: make(map[string]*operation)}
}

// Found is the result of a look: how many records were found, and when the oldest of them became due.
type Found struct {
	Count  int
	Oldest time.Time
}

func (f *Found) add(due time.Time) {
	if f.Count++; f.Oldest.IsZero() || due.Before(f.Oldest) {
		f.Oldest = due
	}
}

// Look scans all due records once and begins to work on them. It does not wait for the work. Its result includes
// records that an earlier look has found and that are not done yet.
func (r *Run) Look() (found Found, err error) {
	err = r.walk(store.Filter{}, func(rec *store.Record, before store.ID) bool {
		if r.work.Wants(rec) {
			found.add(rec.Due())
			r.offer(rec, before)
		}
		return true
	})
	return found, err
}

// Wait returns when all found records are done, or hang, or cannot be done because hanging tasks take all places of
// their operation or scope. There must be no look at the same time.
func (r *Run) Wait() { r.wg.Wait() }

// walk calls each for the due records of the filter until it returns false. before is the place from which a later walk
// finds the record again.
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

// storeTimeout bounds one look at a page: a store's machine may vanish without closing its connections, and the run
// must survive this.
const storeTimeout = time.Minute

func (r *Run) list(filter store.Filter) ([]store.Record, error) {
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	return r.pool.config.Lister.List(ctx, filter)
}
