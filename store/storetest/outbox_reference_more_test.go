package storetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// fakeTx is a transaction of the reference: what it writes happens at its commit, and what it locks is free after its
// end.
type fakeTx struct {
	onCommit []func()
	// noted holds the events that it has noted.
	noted map[[2]string]bool
	// verdict is what InTx returns after the commit.
	verdict error
}

// handles is a database without a server, whose transactions are no more than names for those of the reference.
type handles struct{ driver.Conn }

// Connect implements [driver.Connector].
func (handles) Connect(context.Context) (driver.Conn, error) { return handles{}, nil }

// Driver implements [driver.Connector].
func (handles) Driver() driver.Driver { return nil }

// Begin implements [driver.Conn].
func (handles) Begin() (driver.Tx, error) { return handles{}, nil }

// Close implements [driver.Conn].
func (handles) Close() error { return nil }

// Commit implements [driver.Tx].
func (handles) Commit() error { return nil }

// Rollback implements [driver.Tx].
func (handles) Rollback() error { return nil }

// InTx implements [inbox.Store].
func (r *reference) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	db := sql.OpenDB(handles{})
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	t := &fakeTx{noted: make(map[[2]string]bool)}
	r.mu.Lock()
	r.open[tx] = t
	r.mu.Unlock()
	committed := false
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, tx)
		if committed {
			for _, write := range t.onCommit {
				write()
			}
			r.wake()
		}
		maps.DeleteFunc(r.locks, func(_ string, owner *fakeTx) bool { return owner == t })
		r.unlocked.Broadcast()
	}()
	if err := work(store.ContextWithTx(ctx, tx)); err != nil {
		return err
	}
	committed = true
	return t.verdict
}

// lock waits until no other has a lock, and takes it for the rest of the transaction.
func (r *reference) lock(t *fakeTx, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.locks[name] != nil && r.locks[name] != t {
		r.unlocked.Wait()
	}
	r.locks[name] = t
}

// wake tells watchers. The caller holds mu.
func (r *reference) wake() {
	if r.broken == "nobody is woken" {
		return
	}
	for hints := range r.watchers {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
}

// WatchMessages implements [outbox.Store].
func (r *reference) WatchMessages() (<-chan struct{}, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hints := make(chan struct{}, 1)
	r.watchers[hints] = true
	return hints, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, hints)
	}
}

// HearsMessages implements [outbox.Store].
func (r *reference) HearsMessages() bool { return false }

// PurgeMessages implements [outbox.Store].
func (r *reference) PurgeMessages(_ context.Context, age time.Duration, limit int) (purged int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.clock().Add(-age)
	r.messages = slices.DeleteFunc(r.messages, func(m *storedMessage) bool {
		over := m.State == outbox.StateDone || m.State == outbox.StateCaptured || r.broken == "the purge removes open ones"
		gone := over && m.Due.Before(before) && purged < limit
		if gone {
			purged++
		}
		return gone
	})
	return purged, nil
}

// Messages implements [outbox.Store].
func (r *reference) Messages(_ context.Context, f outbox.Filter) (found []outbox.Entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.Limit == 0 {
		f.Limit = 100
	}
	behind := f.After == ""
	for _, m := range r.messages {
		if behind && fits(&m.Entry, f) && !(f.Undropped && m.token == dropped) && len(found) < f.Limit {
			found = append(found, m.Entry)
		}
		behind = behind || m.ID == f.After
	}
	return found, nil
}

// fits reports whether a filter chooses a message.
func fits(m *outbox.Entry, f outbox.Filter) bool {
	return m.ID >= f.FirstID() && (f.ID == "" || m.ID == f.ID) && (f.Origin == store.ID{} || m.Origin == f.Origin) &&
		(f.DownstreamKey == "" || m.DownstreamKey == f.DownstreamKey) &&
		(f.ProviderID == "" || m.ProviderID == f.ProviderID) && (f.Topic == "" || m.Topic == f.Topic) &&
		(len(f.States) == 0 || slices.Contains(f.States, m.State))
}

// ReplayMessage implements [outbox.Store].
func (r *reference) ReplayMessage(_ context.Context, id string, answer []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.deadLetter(id)
	if err != nil {
		return err
	}
	m.State, m.Due, m.token = outbox.StateReady, r.clock(), 0
	if r.broken != "a replay drops the answer of a person" {
		r.keepAnswer(m, answer)
	}
	if r.broken != "a replay keeps the attempts" {
		m.Attempts = 0
	}
	return nil
}

// dropped is the token of a dead letter that was dropped: no lease has it.
const dropped = -1

// DropMessage implements [outbox.Store].
func (r *reference) DropMessage(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.deadLetter(id)
	if err != nil {
		return err
	}
	m.State, m.token = outbox.StateDead, dropped
	if r.broken == "a dropped dead letter is counted" {
		m.token = 0
	}
	r.free()
	return nil
}

// MessageStats implements [outbox.Store].
func (r *reference) MessageStats(context.Context) (s outbox.Stats, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		switch m.State {
		case outbox.StateReady, outbox.StateLeased, outbox.StateBehind:
			s.Waiting++
			if s.Oldest.IsZero() || m.CreatedAt.Before(s.Oldest) {
				s.Oldest = m.CreatedAt
			}
		case outbox.StateDead, outbox.StateHolding:
			if m.token != dropped {
				s.DeadLetters++
			}
		}
	}
	return s, nil
}

// RememberEvent implements [inbox.Store].
func (r *reference) RememberEvent(_ context.Context, tx *sql.Tx, consumer, eventID string) (bool, error) {
	t, err := r.join(tx)
	if err != nil {
		return false, err
	}
	name := [2]string{consumer, eventID}
	if r.broken != "the same event is noted twice at once" {
		r.lock(t, "event "+strings.Join(name[:], "\x00"))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.events[name]; known || t.noted[name] {
		return false, nil
	}
	t.noted[name] = true
	at := r.clock()
	note := func() { r.events[name] = at }
	if r.broken == "an event is remembered in spite of a rollback" {
		note()
	}
	t.onCommit = append(t.onCommit, note)
	return true, nil
}

// PurgeEvents implements [inbox.Store].
func (r *reference) PurgeEvents(_ context.Context, age time.Duration, limit int) (purged int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.clock().Add(-age)
	for _, name := range slices.SortedFunc(maps.Keys(r.events), func(a, b [2]string) int { return r.events[a].Compare(r.events[b]) }) {
		if purged < limit && r.events[name].Before(before) {
			delete(r.events, name)
			purged++
		}
	}
	return purged, nil
}

// ConsumedEvents implements [inbox.Store].
func (r *reference) ConsumedEvents(_ context.Context, eventID string) (found []inbox.Consumption, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.events {
		if name[1] == eventID {
			found = append(found, inbox.Consumption{Consumer: name[0], EventID: name[1], At: at})
		}
	}
	slices.SortFunc(found, func(a, b inbox.Consumption) int { return strings.Compare(a.Consumer, b.Consumer) })
	return found, nil
}

// errNotTx is returned for what is no transaction, or one that is over.
var errNotTx = errors.New("reference: not an open transaction")
