package payments_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/storeurl"
)

// wire stands between the system and the provider, and notes the keys that are sent along.
type wire struct {
	mu   sync.Mutex
	keys map[string][]string
}

// between implements settings.between.
func (wi *wire) between(t *testing.T, provider string) string {
	target, err := url.Parse(provider)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wi.note(r)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// note keeps the key of an order under its path and reference.
func (wi *wire) note(r *http.Request) {
	if r.Method != http.MethodPost {
		return
	}
	body, _ := io.ReadAll(r.Body) // what is cut off the provider does not understand either
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	var order struct{ Reference string }
	_ = json.Unmarshal(body, &order) // as above
	wi.mu.Lock()
	defer wi.mu.Unlock()
	about := r.URL.Path + " " + order.Reference
	wi.keys[about] = append(wi.keys[about], r.Header.Get("Idempotency-Key"))
}

func (wi *wire) sent(about string) []string {
	wi.mu.Lock()
	defer wi.mu.Unlock()
	return append([]string(nil), wi.keys[about]...)
}

// wantTwice checks that the provider was asked twice for the same thing, with the same key.
func (wi *wire) wantTwice(w *world, about string) {
	w.Helper()
	w.eventually("a second "+about, func() bool { return len(wi.sent(about)) >= 2 })
	if keys := wi.sent(about); len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		w.Errorf("%s was sent with the keys %q, want one key twice", about, keys)
	}
}

// storeClock is how far the store's clock is ahead. SQLite takes its time from the process, PostgreSQL from a function.
type storeClock struct{ ahead atomic.Int64 }

func (c *storeClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *storeClock) move(w *world, by time.Duration) {
	w.Helper()
	c.ahead.Add(int64(by))
	if !strings.HasPrefix(w.url, "postgres") {
		return
	}
	db := w.db.Reads()
	_, err := db.ExecContext(w.Context(), `CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS
		'SELECT (extract(epoch FROM clock_timestamp() + interval ''`+fmt.Sprint(by.Seconds())+` seconds'') * 1000000)::bigint'`)
	must(w, err)
}

// retention is longer than answers are kept.
const retention = 25 * time.Hour

// TestRetryAfterExpiry: the answers have expired and their records are gone, so the same requests run again. The
// provider recognises the keys, which are the same for ever, and the rows are named after them: nothing is done twice.
func TestRetryAfterExpiry(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			clock, wi := new(storeClock), &wire{keys: make(map[string][]string)}
			w := newWorld(t, storeOf(t, kind), func(s *settings) {
				s.store = append(s.store, storeurl.WithClock(clock.now))
				s.between = func(url string) string { return wi.between(t, url) }
			})
			retryAfterExpiry(w, clock, wi)
		})
	}
}

func retryAfterExpiry(w *world, clock *storeClock, wi *wire) {
	w.Helper()
	p := w.payment(1900, "r")
	refund := w.refund(p, 500).want(http.StatusCreated, "")
	booking := w.post("/bookings", "b", place("concert", 4500, "b")).want(http.StatusCreated, "")
	places := w.places("concert")

	clock.move(w, retention)
	w.reap(3)

	again := w.post("/payments", "pay r", order(1900, "r")).want(http.StatusCreated, p.ID).wantFresh()
	if now := decode[payments.Payment](again); now != p {
		w.Errorf("the payment is now %+v, want %+v", now, p)
	}
	wi.wantTwice(w, "/charges r")
	w.wantCharges("r", 1)

	w.refund(p, 500).want(http.StatusCreated, refund.body).wantFresh()
	wi.wantTwice(w, "/refunds back")
	w.wantOneRefund(p, refund)

	w.post("/bookings", "b", place("concert", 4500, "b")).want(http.StatusCreated, booking.body).wantFresh()
	w.wantCharges("b", 1)
	if n := w.places("concert"); n != places {
		w.Errorf("there are %d places, and were %d before the retry", n, places)
	}

	clock.move(w, 2*retention)
	w.reap(3)
	w.post("/payments", "pay r", order(2900, "r")).want(http.StatusUnprocessableEntity, "something else")
	w.refund(p, 600).want(http.StatusUnprocessableEntity, "")
	w.post("/bookings", "b", place("concert", 5500, "b")).want(http.StatusUnprocessableEntity, "something else")
	w.wantCharges("r", 1)
	w.wantOneRefund(p, refund)
}

// wantFresh checks that an answer is not a replay.
func (r reply) wantFresh() reply {
	r.Helper()
	if r.header.Get("Idempotent-Replayed") != "" {
		r.Errorf("the answer %s is a replay", r.body)
	}
	return r
}

// reap removes what has expired.
func (w *world) reap(want int) {
	w.Helper()
	reaper, err := janitor.NewReaper(w.db.Store, janitor.Config{Logger: slog.New(slog.DiscardHandler)})
	must(w, err)
	if report, err := reaper.RunOnce(w.Context()); err != nil || report.Count != want {
		w.Fatalf("reaped %d (%v), want %d", report.Count, err, want)
	}
}
