// Package fair works through the due records of a store so that one operation that hangs, or one scope with very many
// records, delays only its own (B6).
//
// Records wait in lanes, one for each operation and scope. Each lane is served in order; which lane comes next is
// decided by shares: an operation has so many places, one scope at most half of them, and all operations together a
// total. Lanes that wait for a place get it in turn, and scopes that wait for a lane get it from those that had their
// turn. A lane holds few records. What does not fit is left in the store and read again from there, so that memory is
// bounded however much is due, and a look through the store never waits for a task.
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
	// State is that of the records to look for, which are those that are due.
	State store.State
	Bounds
	// Overdue is the time after which a task that has not returned hangs: it ignores the end of its context. It keeps
	// its place in its operation and its scope, so that only so many can hang, but not in the total, and no run waits
	// for it.
	Overdue time.Duration
	// Hangs is told of each task that hangs, and Returned of one that did and has returned after all.
	Hangs, Returned func(Item)
}

// Pool holds the places for tasks. It lives as long as the worker it belongs to, because a task can hang for longer
// than the run that began it.
type Pool struct {
	config Config
	total  chan struct{}

	mu      sync.Mutex
	shares  map[shareKey]*share
	held    map[store.ID]struct{} // those that wait in a lane or are under way: none is taken twice
	hanging int
}

// NewPool returns a pool. The bounds must have their defaults.
func NewPool(config Config) *Pool {
	return &Pool{
		config: config, total: make(chan struct{}, config.Total),
		shares: make(map[shareKey]*share), held: make(map[store.ID]struct{}),
	}
}

// Hanging counts the tasks that hang.
func (p *Pool) Hanging() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hanging
}

// hold notes that a record is in hand, unless it is already.
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

// task is a record that has its places.
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

// leave releases the places that are not of the total.
func (t *task) leave() {
	for _, s := range t.shares {
		<-s.places
		t.unuse(s)
	}
}

// do does the work. The run that it belongs to waits for it until it is dismissed: when it has ended, or when it hangs.
func (t *task) do(work func(), dismissed func()) {
	t.dismiss = sync.OnceFunc(func() {
		<-t.total
		dismissed()
	})
	t.overdue = time.AfterFunc(t.config.Overdue, t.hangs)
	defer t.end()
	work()
}

// hangs notes that a task has not returned in time.
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

// count counts it among those that hang. The pool is locked.
func (t *task) count(by int) {
	t.hanging += by
	for _, s := range t.shares {
		s.hang(by)
	}
}

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

// Found is what a look has found to work on: how many records, and when the oldest of them became due.
type Found struct {
	Count  int
	Oldest time.Time
}

func (f *Found) add(due time.Time) {
	if f.Count++; f.Oldest.IsZero() || due.Before(f.Oldest) {
		f.Oldest = due
	}
}

// Look looks once through all due records and begins to work on them. It does not wait for that. What it found counts
// also what an earlier look has found and is not done yet.
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
