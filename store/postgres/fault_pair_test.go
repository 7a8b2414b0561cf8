package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

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
	for end := time.Now().Add(30 * time.Second); ; {
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

// TestTwoProcessesOneKey has two processes fight for one key, a thousand times.
func TestTwoProcessesOneKey(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	first, second := startTeller(t, s), startTeller(t, s)
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	p := &pair{urls: [2]string{first.url, second.url}, client: &http.Client{Transport: transport}}
	const rounds, atOnce = 1000, 4
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
	for i := range rounds {
		keys <- fmt.Sprint("round-", i)
	}
	close(keys)
	workers.Wait()
	wantOneRowEach(t, s, rounds)
	if p.executed[0].Load() == 0 || p.executed[1].Load() == 0 || p.conflicts.Load() == 0 {
		t.Errorf("the processes executed %d and %d and met in flight %d times: they did not compete",
			p.executed[0].Load(), p.executed[1].Load(), p.conflicts.Load())
	}
	t.Logf("the processes executed %d and %d, and met in flight %d times", p.executed[0].Load(), p.executed[1].Load(), p.conflicts.Load())
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
