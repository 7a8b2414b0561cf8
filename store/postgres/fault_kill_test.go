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

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// clients are a crowd that pays without a pause, each payment under its own key, and retries until it is told a
// definitive answer.
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
			time.Sleep(100 * time.Millisecond) // there is always a commit in flight among 64 all the same
		}
	}
}

// insist sends one payment until it is answered for good.
func (c *clients) insist(key string) {
	for end := time.Now().Add(await.Limit); time.Now().Before(end); {
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
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // then it is tried again
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
	await.That(t, "the clients are served", func() bool { return c.acknowledged.Load() >= target })
}

// TestServerKilledDuringCommit kills PostgreSQL at once with all of its processes, while 64 clients pay: everything
// that was acknowledged is there, and nothing twice.
func TestServerKilledDuringCommit(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it kills a server of its own; TestReplyToCommitLost loses the reply alone")
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

// killInFlight kills the server while commits are on their way, and sees to it that the kill was felt. The server is
// frozen first, because a commit is over too soon to aim at.
func killInFlight(t *testing.T, server *servers.PostgresServer, c *clients) {
	t.Helper()
	await.That(t, "a commit was caught in flight", func() bool {
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
	await.That(t, "clients noticed the kill", func() bool { return c.retried.Load() > before })
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
			t.Errorf("I5: %s is there, and no client was told", key)
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

// pair is two processes that are asked for the same at the same time.
type pair struct {
	urls   [2]string
	client *http.Client
	// executed counts the first answers of each process, conflicts the requests that met another in flight.
	executed  [2]atomic.Int64
	conflicts atomic.Int64
}

// insist retries at one process until the answer is definitive.
func (p *pair) insist(ctx context.Context, which int, key string) (httpReply, error) {
	for end := time.Now().Add(await.Limit); ; {
		r, err := send(ctx, p.client, p.urls[which]+"/transactional", key)
		if err != nil || r.code() != "in-progress" || time.Now().After(end) {
			return r, err
		}
		p.conflicts.Add(1)
		time.Sleep(time.Millisecond)
	}
}

// round sends one key to both, and returns what is wrong with the answers.
func (p *pair) round(ctx context.Context, key string) error {
	var replies [2]httpReply
	var errs [2]error
	var both sync.WaitGroup
	for i := range p.urls {
		both.Go(func() { replies[i], errs[i] = p.insist(ctx, i, key) })
	}
	both.Wait()
	fresh := 0
	for i, r := range replies {
		if errs[i] != nil || r.status != http.StatusCreated {
			return fmt.Errorf("%s at process %d: got %d %q (%v)", key, i, r.status, r.body, errs[i])
		}
		if !r.replayed() {
			fresh++
			p.executed[i].Add(1)
		}
	}
	if fresh != 1 || replies[0].body != replies[1].body {
		return fmt.Errorf("%s: %d answers were fresh, and they are %q and %q", key, fresh, replies[0].body, replies[1].body)
	}
	return nil
}

// TestTwoProcessesOneKey has two processes fight for one key, again and again, until each has won and one has met the
// other in flight.
func TestTwoProcessesOneKey(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	first, second := startTeller(t, s, time.Hour), startTeller(t, s, time.Hour)
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	p := &pair{urls: [2]string{first.url, second.url}, client: &http.Client{Transport: transport}}
	const atOnce = 4
	rounds := nightly.Either(400, 40)
	keys := make(chan string)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for key := range keys {
				if err := p.round(t.Context(), key); err != nil {
					t.Errorf("I3: %v", err)
				}
			}
		})
	}
	sent := 0
	await.That(t, "the processes have competed", func() bool {
		for range rounds {
			keys <- fmt.Sprint("round-", sent)
			sent++
		}
		return p.executed[0].Load() > 0 && p.executed[1].Load() > 0 && p.conflicts.Load() > 0 || t.Failed()
	})
	close(keys)
	workers.Wait()
	wantOneRowEach(t, s, sent)
	t.Logf("the processes executed %d and %d, and met in flight %d times",
		p.executed[0].Load(), p.executed[1].Load(), p.conflicts.Load())
}

// wantOneRowEach checks that there is one row for each of so many values.
func wantOneRowEach(t *testing.T, s *site, want int) {
	t.Helper()
	var rows, values int
	must(t, s.admin.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT value) FROM business`).Scan(&rows, &values))
	if rows != want || values != want {
		t.Errorf("I1: there are %d rows of %d values, want %d of each", rows, values, want)
	}
}
