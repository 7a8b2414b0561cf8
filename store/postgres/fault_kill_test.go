package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// clients are a crowd that pays without a pause, each payment under its own key, and retries until it is told a definitive
// answer.
type clients struct {
	store   *postgres.Store
	stop    chan struct{}
	running sync.WaitGroup

	// committing counts the calls whose work is done and which have no answer yet.
	committing   atomic.Int64
	acknowledged atomic.Int64
	retried      atomic.Int64

	mu      sync.Mutex
	answers map[string]string
	wrong   []string
}

func (c *clients) start(n int) {
	for i := range n {
		c.running.Go(func() { c.pay(i) })
	}
}

func (c *clients) pay(client int) {
	for n := 0; ; n++ {
		select {
		case <-c.stop:
			return
		default:
			c.insist(fmt.Sprintf("client %d, payment %d", client, n))
		}
	}
}

// insist sends one payment until it is answered for good.
func (c *clients) insist(key string) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		v, err := c.once(key)
		switch {
		case err == nil && (v.Decision == store.DecisionExecute || v.Decision == store.DecisionReplay):
			c.acknowledged.Add(1)
			c.note(key, string(v.Record.Response.Body))
			return
		case err == nil && v.Decision == store.DecisionInProgress:
		case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrOutcomeUnknown):
		default:
			c.complain("%s: got (%s, %v)", key, v.Decision, err)
			return
		}
		c.retried.Add(1)
		time.Sleep(10 * time.Millisecond) // as clients do that are told to come again
	}
	c.complain("%s: no definitive answer", key)
}

// once is one try. Its answer names the time, so that two executions do not answer alike.
func (c *clients) once(key string) (store.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	committing := false
	over := func() {
		if committing {
			c.committing.Add(-1)
			committing = false
		}
	}
	defer over()
	return c.store.Transact(ctx, booking(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
		over() // the store undid the first run
		if err := insertPgx(ctx, key); err != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		committing = true
		c.committing.Add(1)
		return store.Settlement{Action: store.TxCommit, Completion: store.Completion{
			Response: store.Response{Status: http.StatusCreated, Body: fmt.Append(nil, key, time.Now().UnixNano())},
		}}
	})
}

func (c *clients) note(key, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[key] = answer
}

func (c *clients) complain(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// more waits for so many further payments.
func (c *clients) more(t *testing.T, n int64) {
	t.Helper()
	target := c.acknowledged.Load() + n
	eventually(t, "the clients are served", 30*time.Second, func() bool { return c.acknowledged.Load() >= target })
}

// TestServerKilledDuringCommit kills PostgreSQL at once with all of its processes, while 64 clients pay: everything that was
// acknowledged is there, and nothing twice.
func TestServerKilledDuringCommit(t *testing.T) {
	t.Parallel()
	server := servers.NewPostgres(t)
	s := newSite(t, server)
	c := &clients{store: s.store(t, pgxHandle, s.url), stop: make(chan struct{}), answers: make(map[string]string)}
	stop := sync.OnceFunc(func() {
		close(c.stop)
		c.running.Wait()
	})
	defer stop()
	c.start(64)
	const kills = 3
	for range kills {
		c.more(t, 100)
		killInFlight(t, server, c)
		must(t, server.Restart())
	}
	c.more(t, 100)
	stop()
	for _, wrong := range c.wrong {
		t.Error(wrong)
	}
	checkPayments(t, s, c)
	t.Logf("%d payments, %d tries were in vain", len(c.answers), c.retried.Load())
}

// killInFlight kills the server while commits are on their way, and sees to it that the kill was felt. The server is frozen
// first, because a commit is over too soon to aim at.
func killInFlight(t *testing.T, server *servers.PostgresServer, c *clients) {
	t.Helper()
	eventually(t, "a commit was caught in flight", 30*time.Second, func() bool {
		must(t, server.Pause())
		settled := c.acknowledged.Load()
		time.Sleep(20 * time.Millisecond) // what the server has answered arrives
		if c.committing.Load() > 0 && c.acknowledged.Load() == settled {
			return true
		}
		must(t, server.Resume())
		return false
	})
	caught, before := c.committing.Load(), c.retried.Load()
	must(t, server.Kill())
	t.Logf("killed with %d commits in flight", caught)
	// A commit that was cut off is asked after once the server is back; the other calls fail at once.
	eventually(t, "clients noticed the kill", 10*time.Second, func() bool { return c.retried.Load() > before })
}

// checkPayments compares what the clients know with the rows and the records.
func checkPayments(t *testing.T, s *site, c *clients) {
	t.Helper()
	paid := map[string]int{}
	rows, err := s.admin.Query(t.Context(), `SELECT value, count(*) FROM business GROUP BY value`)
	must(t, err)
	for rows.Next() {
		var key string
		var n int
		must(t, rows.Scan(&key, &n))
		paid[key] = n
		if _, known := c.answers[key]; !known {
			t.Errorf("I5: %s is there, and nobody was told", key)
		}
	}
	must(t, rows.Err())
	for key, answer := range c.answers {
		if paid[key] != 1 {
			t.Errorf("I1, I2: %s was acknowledged and is there %d times", key, paid[key])
		}
		rec, err := c.store.Get(t.Context(), accountID(key))
		if err != nil || rec.State != store.StateCompleted || string(rec.Response.Body) != answer {
			t.Errorf("I3: %s was told %q, and the record is %s with %q (%v)", key, answer, rec.State, rec.Response.Body, err)
		}
	}
}
