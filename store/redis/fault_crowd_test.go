package redis_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// crowd is clients that pay without a pause, each payment under its own key, and retry until they get its result. It
// knows what was really done, so that it detects an answer that was invented and work that was done twice.
type crowd struct {
	handler http.Handler
	stop    chan struct{}
	running sync.WaitGroup
	// served counts payments that were answered, retried the tries that were to be repeated.
	served, retried atomic.Int64

	mu       sync.Mutex
	payments map[string]*payment
	wrong    []string
}

// payment is what is known of one key.
type payment struct {
	// runs are the answers that the handler has given.
	runs []string
	// answer is the client's answer; empty if the outcome is unknown.
	answer string
	// tries are when the client waited for an answer, which may have been written at any time of them.
	tries []span
}

// span is a time in which servers may have forgotten what they acknowledged. It begins before the replicas were last
// seen to have everything: what they lacked later goes with their primary.
type span struct{ from, to time.Time }

// met reports whether anything of a payment may have been written in one of the spans.
func (p *payment) met(spans []span) bool {
	for _, try := range p.tries {
		for _, s := range spans {
			if try.to.After(s.from) && try.from.Before(s.to) {
				return true
			}
		}
	}
	return false
}

// newCrowd makes a service with a store.
func newCrowd(t testing.TB, s store.Store) *crowd {
	t.Helper()
	c := &crowd{stop: make(chan struct{}), payments: make(map[string]*payment)}
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"),
		Logger: slog.New(slog.DiscardHandler), StoreTimeout: 2 * time.Second, SettleTimeout: await.Limit,
	})
	must(t, err)
	c.handler = guard.HandlerFunc(c.pay, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(3*time.Second))
	t.Cleanup(c.end)
	return c
}

// pay is the work: what must not happen twice.
func (c *crowd) pay(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	p := c.payments[r.Header.Get("Idempotency-Key")]
	answer := fmt.Sprintf("%s, run %d", r.Header.Get("Idempotency-Key"), len(p.runs)+1)
	p.runs = append(p.runs, answer)
	c.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, answer)
}

// pause is what a client waits between two payments, so that a crowd leaves other tests their share of the machine.
const pause = 10 * time.Millisecond

// start lets so many clients pay until the crowd ends.
func (c *crowd) start(clients int) {
	for i := range clients {
		c.running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-c.stop:
					return
				case <-time.After(pause):
					c.insist(fmt.Sprintf("client-%d-payment-%d", i, n))
				}
			}
		})
	}
}

// end waits until all clients have their last answer.
func (c *crowd) end() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.running.Wait()
}

// insist sends one payment until it is answered for good.
func (c *crowd) insist(key string) {
	c.mu.Lock()
	c.payments[key] = new(payment)
	c.mu.Unlock()
	for end := (time.Time{}); end.IsZero() || time.Now().Before(end); {
		if c.try(key) {
			c.served.Add(1)
			return
		}
		c.retried.Add(1)
		time.Sleep(2 * pause)
		select {
		case <-c.stop:
			if end.IsZero() {
				end = time.Now().Add(await.Limit)
			}
		default:
		}
	}
	c.complain("%s: no definitive answer", key)
}

// try sends a payment once, and returns whether its outcome is known now, or known to be unknown.
func (c *crowd) try(key string) bool {
	before, began := c.runsOf(key), time.Now()
	status, code, body := c.post(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.payments[key]
	p.tries = append(p.tries, span{began, time.Now()})
	switch {
	case status == http.StatusCreated:
		p.answer = body
		return true
	case code == "not-executed", code == "store-unavailable":
		if len(p.runs) != before {
			c.wrong = append(c.wrong, fmt.Sprintf("S9: %s was executed, and its client was told that it was not", key))
		}
		return false
	case code == "in-progress":
		return false
	case code == "outcome-unknown":
		return true
	default:
		c.wrong = append(c.wrong, fmt.Sprintf("%s: got %d %q", key, status, body))
		return true
	}
}

func (c *crowd) runsOf(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.payments[key].runs)
}

// post sends a payment to the handler.
func (c *crowd) post(key string) (status int, code, body string) {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Pattern = "POST /payments" // as a router sets it
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	var problem onceward.Problem
	_ = json.Unmarshal(w.Body.Bytes(), &problem) // an answer of the handler is no problem
	return w.Code, problem.Code, w.Body.String()
}

func (c *crowd) complain(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// answered is at most so many payments that were answered, with their answers.
func (c *crowd) answered(most int) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[string]string)
	for key, p := range c.payments {
		if p.answer != "" && len(found) < most {
			found[key] = p.answer
		}
	}
	return found
}

// more waits for so many further payments.
func (c *crowd) more(t testing.TB, n int64) {
	t.Helper()
	target := c.served.Load() + n
	await.Success(t, "clients are served", func() error {
		if served := c.served.Load(); served < target {
			return fmt.Errorf("%d of %d", served, target)
		}
		return nil
	})
}

// check ends the crowd and compares the clients' answers with what was done, and with the answers to a retry. A loss on
// servers that had acknowledged a write is not the store's fault: it is counted.
func (c *crowd) check(t testing.TB, forgetful ...span) (lost int) {
	t.Helper()
	c.end()
	for _, wrong := range c.wrong {
		t.Error(wrong)
	}
	unknown := 0
	for key, p := range c.payments {
		if p.answer == "" {
			unknown++
		}
		traced := p.met(forgetful)
		wrong := c.audit(key, p)
		switch {
		case wrong == "":
		case traced:
			lost++
		default:
			t.Error(wrong)
		}
	}
	t.Logf("%d payments, %d of them of unknown outcome, %d forgotten; %d tries were in vain",
		len(c.payments), unknown, lost, c.retried.Load())
	return lost
}

// audit returns what is wrong with a payment.
func (c *crowd) audit(key string, p *payment) string {
	told, runs := p.answer, len(p.runs)
	switch {
	case runs > 1:
		return fmt.Sprintf("I1: %s was executed %d times", key, runs)
	case told != "" && (runs == 0 || p.runs[0] != told):
		return fmt.Sprintf("I3: the client of %s was told %q, and the runs answered %q", key, told, p.runs)
	case told == "":
		return ""
	}
	if status, code, body := c.post(key); status != http.StatusCreated || body != told {
		return fmt.Sprintf("I3: the client of %s was told %q, and is now told %d %s %q", key, told, status, code, body)
	}
	return ""
}
