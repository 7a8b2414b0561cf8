package fair

import (
	"fmt"
	"runtime/debug"

	"github.com/onceward/onceward/store"
)

// These are the bounds of the records that wait in memory, for each operation: the number of scopes, and of records of
// each.
const (
	maxLanes  = 64
	maxInLane = 64
)

// operation is an operation with waiting records. The lock of the run guards it, and its lanes.
type operation struct {
	name    string
	lanes   map[string]*lane // by scope
	rest                     // of scopes without a lane
	reading bool             // the rest is being read
	// parked are scopes that gave up their lanes to other scopes after their turn, with the rest of their records.
	parked map[string]rest
}

// lane holds records of one operation and scope.
type lane struct {
	scope string
	items []Item
	rest
}

// rest marks records that were left in the store because there was no room: they come after the record after.
type rest struct {
	left  bool
	after store.ID
}

// maxParked is the largest number of parked scopes: further lanes continue instead.
const maxParked = 1024

// offer puts a record into its lane, or leaves it in the store. If earlier records were left in the store, it is left
// too, to keep the order.
func (r *Run) offer(rec *store.Record, before store.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.operations[rec.Operation]
	if o == nil {
		o = &operation{name: rec.Operation, lanes: make(map[string]*lane), parked: make(map[string]rest)}
		r.operations[o.name] = o
	}
	l := o.lanes[rec.Scope]
	switch {
	case o.parked[rec.Scope].left:
	case l != nil && !l.left && !r.add(o, rec):
		l.rest = rest{true, before}
	case l == nil && !o.left && !r.add(o, rec):
		o.rest = rest{true, before}
	}
	r.tidy(o)
}

// add puts a record into its lane, and reports false if there is no room. A record that is already held is not added
// twice.
func (r *Run) add(o *operation, rec *store.Record) bool {
	l := o.lanes[rec.Scope]
	if l == nil && len(o.lanes) >= maxLanes || l != nil && len(l.items) >= maxInLane {
		return false
	}
	if !r.pool.hold(rec.ID) {
		return true
	}
	item := Item{ID: rec.ID, Operation: rec.Operation, Due: rec.Due()}
	if l != nil {
		l.items = append(l.items, item)
		return true
	}
	l = &lane{scope: rec.Scope, items: []Item{item}}
	o.lanes[l.scope] = l
	r.wg.Go(func() { r.serve(o, l) })
	return true
}

// serve begins the tasks of a lane one after the other, each when there is room for it.
func (r *Run) serve(o *operation, l *lane) {
	for {
		item, ok := r.next(o, l)
		if !ok {
			break
		}
		t := r.pool.enter(r.ctx, item)
		if t == nil {
			r.pool.letGo(item.ID)
			r.drop(o, l)
			break
		}
		r.wg.Add(1)
		go t.do(func() { r.do(item) }, r.wg.Done)
	}
	r.readOperation(o)
}

// do works on one record. A panic, such as of an observer, is a failure of that record, not the end of the process.
func (r *Run) do(item Item) {
	defer func() {
		if p := recover(); p != nil {
			r.failed(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	r.work.Do(r.ctx, item)
}

// next takes the first record of a lane. A lane without records is closed. A lane with more records in the store is
// parked if other scopes wait for a lane.
func (r *Run) next(o *operation, l *lane) (item Item, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(l.items) > 0 || !l.left:
	case o.left && len(o.parked) < maxParked:
		o.parked[l.scope] = l.rest
	default:
		r.mu.Unlock()
		r.readLane(o, l)
		r.mu.Lock()
	}
	if len(l.items) == 0 {
		delete(o.lanes, l.scope)
		return item, false
	}
	item, l.items = l.items[0], l.items[1:]
	return item, true
}

// drop closes a lane that cannot continue. The next look finds its records again.
func (r *Run) drop(o *operation, l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range l.items {
		r.pool.letGo(item.ID)
	}
	delete(o.lanes, l.scope)
}

// readLane reads more records for a lane that was full.
func (r *Run) readLane(o *operation, l *lane) {
	full := false
	rest := store.Filter{Scope: l.scope, After: l.after}
	err := r.walk(rest, func(rec *store.Record, before store.ID) bool {
		if rec.Operation != o.name || rec.Scope != l.scope || !r.work.Wants(rec) {
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if full = !r.add(o, rec); full {
			l.after = before
		}
		return !full
	})
	r.mu.Lock()
	l.left = full
	r.mu.Unlock()
	r.failed(err)
}

// unpark gives lanes to parked scopes if no other scope waits for a lane.
func (r *Run) unpark(o *operation) {
	for scope, left := range o.parked {
		if o.left || len(o.lanes) >= maxLanes {
			return
		}
		l := &lane{scope: scope, rest: left}
		delete(o.parked, scope)
		o.lanes[scope] = l
		r.wg.Go(func() { r.serve(o, l) })
	}
}

// readOperation reads more records for an operation that had too many lanes, when half of them are closed.
func (r *Run) readOperation(o *operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.tidy(o)
	defer r.unpark(o)
	if !o.left || o.reading || len(o.lanes) > maxLanes/2 {
		return
	}
	o.reading = true
	r.mu.Unlock()
	full := false
	err := r.walk(store.Filter{After: o.after}, func(rec *store.Record, before store.ID) bool {
		if rec.Operation != o.name || !r.work.Wants(rec) {
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		l := o.lanes[rec.Scope]
		switch {
		case o.parked[rec.Scope].left || l != nil && l.left || r.add(o, rec):
		case l != nil:
			l.rest = rest{true, before}
		default:
			full = true
			o.after, o.reading = before, false // from now on the next lane that is closed reads more
		}
		return !full
	})
	r.failed(err)
	r.mu.Lock()
	if !full {
		o.left, o.reading = false, false
	}
}

// tidy removes an operation without waiting records.
func (r *Run) tidy(o *operation) {
	if len(o.lanes)+len(o.parked) == 0 && !o.left && r.operations[o.name] == o {
		delete(r.operations, o.name)
	}
}

func (r *Run) failed(err error) {
	if err != nil {
		r.work.Failed(err)
	}
}
