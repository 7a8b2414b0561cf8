package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// logbook keeps what a store logs.
type logbook struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

// newLogbook returns a logbook and the option that makes a store write into it.
func newLogbook() (*logbook, postgres.Option) {
	book := &logbook{Handler: slog.DiscardHandler}
	return book, postgres.WithLogger(slog.New(book))
}

// Enabled says that everything is kept.
func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }

// Handle keeps a line.
func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	line.WriteString(r.Level.String() + " " + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		line.WriteString(" " + a.String())
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line.String())
	return nil
}

// find returns the lines that hold a text.
func (b *logbook) find(text string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// completed ends a wait by a completion.
func (c *couple) completed() func() (store.ID, int64, func()) {
	return c.owned(func(o store.Claim) error {
		_, err := c.owner.Complete(c.Context(), o, answer("done"))
		return err
	})
}

// wantLooking checks that a store that hears nothing looks often enough.
func (c *couple) wantLooking(what string, begin func() (id store.ID, attempt int64, end func())) {
	c.Helper()
	fastest := time.Hour
	for range 3 {
		if fastest = min(fastest, c.wakes(nil, begin)); fastest < calm/2 {
			return
		}
	}
	c.Errorf("%s: at best it took %s to learn of the end, want looks that come sooner than after %s", what, fastest, calm)
}

// TestListenerLost: while the connection is gone on which it would be told, a store looks for itself; and then it is told
// again.
func TestListenerLost(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	c.wantTold("before", c.completed())
	first := c.listeners()
	c.proxy.Refuse(true)
	exec(t, c.admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY ($1)`, first)
	eventually(t, "nobody listens", 10*time.Second, func() bool { return len(c.listeners()) == 0 })
	c.wantLooking("without a listener", c.completed())
	if again := c.listeners(); len(again) != 0 {
		t.Fatalf("%v listens although it cannot connect", again)
	}
	c.proxy.Refuse(false)
	eventually(t, "somebody listens again", 20*time.Second, func() bool { return len(c.listeners()) == 1 })
	c.wantTold("after it has come back", c.completed())
	c.wantTold("a transaction after it has come back", c.inFlight(store.TxRollback))
}

// TestPoolerLosesNotifications: a connection on which nothing is ever heard, as through a pooler that shares them, is found
// out, and the store looks for itself. A database of its own stands for the pooler: notifications do not leave theirs.
func TestPoolerLosesNotifications(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	database := server.Schema(t) // a name that nobody has
	must(t, server.Exec(t.Context(), `CREATE DATABASE `+database))
	t.Cleanup(func() {
		must(t, server.Exec(context.Background(), `DROP DATABASE `+database+` WITH (FORCE)`))
	})
	deaf, err := url.Parse(server.URL())
	must(t, err)
	deaf.Path = "/" + database
	book, logging := newLogbook()
	c := newCouple(t, postgres.WithListenURL(deaf.String()), logging)
	c.wantLooking("before it is found out", c.completed())
	eventually(t, "the store has warned", 20*time.Second, func() bool { return len(book.find("cannot listen for notifications")) > 0 })
	c.wantLooking("after it was found out", c.completed())
}

// TestListenURL: listening past the pooler works as listening does.
func TestListenURL(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	book, logging := newLogbook()
	name := "listens " + rand.Text()
	c := newCouple(t, postgres.WithListenURL(server.URL()+"&application_name="+url.PathEscape(name)), logging)
	began := time.Now()
	c.wakes(nil, c.completed())
	if lines := book.find("cannot listen"); len(lines) > 0 {
		t.Errorf("after %s it said %q", time.Since(began), lines)
	}
	if n := number(t, c.admin, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN %'`, name); n != 1 {
		t.Errorf("%d sessions listen where they were told to, want 1", n)
	}
	if listeners := c.listeners(); len(listeners) != 0 {
		t.Errorf("%v listens elsewhere", listeners)
	}
}

// TestClosingEndsWaits: whoever waits when the store is closed is not left alone.
func TestClosingEndsWaits(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	ended := c.waits(claim.ID, claim.Attempt)
	must(t, c.waiter.Close())
	if err := await(t, "the end of the wait", ended); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a wait on a store that was closed got %v, want ErrUnavailable", err)
	}
}
