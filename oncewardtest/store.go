package oncewardtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3/vfs/mvcc"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// Advancer is a clock that a test moves: a [Clock], or a clock from the module of a store, such as
// postgres.NewTestClock.
type Advancer interface {
	// Advance moves the clock.
	Advance(d time.Duration)
}

// Clock is a clock that stands still until a test moves it. Pass its Now method to memory.WithClock or
// sqlite.WithClock.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows the current time, with the precision of stores.
func NewClock() *Clock { return &Clock{now: time.Now().UTC().Truncate(store.ClockStep)} }

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance implements [Advancer].
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// emptyStore returns a snapshot of a store that has its tables and is otherwise empty. It is made once, because
// creating the tables takes most of the time of opening a store.
var emptyStore = sync.OnceValues(func() (mvcc.Snapshot, error) {
	name := rand.Text()
	s, err := sqlite.Open(context.Background(), "/"+name, sqlite.WithVFS("mvcc"))
	if err != nil {
		return mvcc.Snapshot{}, err
	}
	snapshot := mvcc.TakeSnapshot(name)
	return snapshot, s.Close()
})

// NewStore returns a SQLite store in memory, with transactions and everything else that a store on disk has, and the
// clock that it uses. The statements create the tables of the handlers. The store is closed and deleted at the end of
// the test.
func NewStore(t TestingT, statements ...string) (*sqlite.Store, *Clock) {
	t.Helper()
	clock := NewClock()
	name := rand.Text()
	if empty, err := emptyStore(); err == nil { // an error is reported by the Open that follows
		mvcc.Create(name, empty)
		t.Cleanup(func() { mvcc.Delete(name) })
	}
	s, err := sqlite.Open(t.Context(), "/"+name, sqlite.WithVFS("mvcc"), sqlite.WithClock(clock.Now))
	if err != nil {
		t.Fatalf("oncewardtest: open a store in memory: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() }) // its content is deleted with it
	err = s.Update(t.Context(), func(tx *sql.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				return fmt.Errorf("%w: %s", err, statement)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("oncewardtest: make the tables: %v", err)
	}
	return s, clock
}

// InTx calls a function with the context of a handler in a transaction, without a guard, and then undoes its writes. It
// is for testing a handler alone: onceward.Tx works with the context, and on PostgreSQL postgres.Tx does, too.
func InTx(t TestingT, s store.Store, f func(ctx context.Context)) {
	t.Helper()
	able, ok := store.As[inbox.Store](s)
	if !ok {
		t.Fatalf("oncewardtest: a %T has no transactions: use NewStore, or a store of a database", s)
	}
	undo := errors.New("oncewardtest: undone")
	err := able.InTx(t.Context(), func(ctx context.Context) error {
		f(ctx)
		return undo
	})
	if !errors.Is(err, undo) {
		t.Fatalf("oncewardtest: run in a transaction: %v", err)
	}
}
