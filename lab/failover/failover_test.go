package failover

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

// roundsVariable is how many fail-overs of each kind are made; without it, one.
const roundsVariable = "ONCEWARD_FAILOVERS"

const (
	callers = 8
	// before is how many answers are sent before the link is cut, and alone how long the primary is on its own then at
	// least.
	before = 200
	alone  = 300 * time.Millisecond
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair is a primary, a standby, the link between them, and a guard whose store knows both.
type pair struct {
	*testing.T
	primary, standby *servers.PostgresServer
	link             *servers.Proxy
	routes           []http.Handler
	// runs is how often a handler was run.
	runs atomic.Int64
}

func newPair(t *testing.T, synchronous bool) *pair {
	t.Helper()
	p := &pair{T: t, primary: servers.NewPostgres(t)}
	p.link = servers.NewProxy(t, p.primary.URL())
	p.standby = p.primary.NewStandbyBehind(t, p.link)
	must(t, p.primary.Exec(t.Context(), `CREATE TABLE payment (key text PRIMARY KEY)`))
	if synchronous {
		must(t, p.primary.Exec(t.Context(), `ALTER SYSTEM SET synchronous_standby_names = '*'`))
		must(t, p.primary.Exec(t.Context(), `SELECT pg_reload_conf()`))
	}
	want := map[bool]string{true: "sync", false: "async"}[synchronous]
	await.That(t, "the standby follows", func() bool {
		state, err := p.primary.Query(t.Context(), `SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'`)
		return err == nil && state == want
	})
	p.serve()
	return p
}

// serve opens a store that knows both servers, and makes a route in each mode.
func (p *pair) serve() {
	p.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	first, err := url.Parse(p.primary.URL())
	must(p, err)
	second, err := url.Parse(p.standby.URL())
	must(p, err)
	both := strings.Replace(p.primary.URL(), first.Host, first.Host+","+second.Host, 1) + "&pool_max_conns=8"
	s, err := postgres.Open(p.Context(), both, postgres.WithLogger(quiet))
	must(p, err)
	p.Cleanup(func() { _ = s.Close() }) // what waits for a server that is gone is cut off
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the test"), Logger: quiet,
		StoreTimeout: 3 * time.Second, SettleTimeout: 5 * time.Second,
	})
	must(p, err)
	p.routes = []http.Handler{
		guard.Handler(http.HandlerFunc(p.pay), onceward.Transactional()),
		guard.Handler(http.HandlerFunc(p.call), onceward.Reserved(onceward.FailureUnknown)),
	}
}

// pay writes a payment in the transaction of its answer.
func (p *pair) pay(w http.ResponseWriter, r *http.Request) {
	tx := postgres.Tx(r.Context())
	if _, err := tx.Exec(r.Context(), `INSERT INTO payment (key) VALUES ($1)`, r.Header.Get("Idempotency-Key")); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	p.call(w, r)
}

// call answers what no other run answers.
func (p *pair) call(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "receipt %d", p.runs.Add(1))
}

// sent is an answer that a caller got.
type sent struct {
	key, body string
	route     int
}

func (p *pair) post(route int, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Pattern = "POST /payments/" + strconv.Itoa(route)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	p.routes[route].ServeHTTP(w, r)
	return w
}

// retry sends a request that was answered once more, until the answer is definitive.
func (p *pair) retry(each sent) (w *httptest.ResponseRecorder) {
	p.Helper()
	await.That(p, "a retry has a definitive answer", func() bool {
		w = p.post(each.route, each.key)
		return w.Code != http.StatusServiceUnavailable && !strings.Contains(w.Body.String(), "in-progress")
	})
	return w
}

// traffic is what callers do all the time.
type traffic struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	refused atomic.Int64

	mu   sync.Mutex
	sent []sent
}

func (p *pair) startTraffic() *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	busy := &traffic{stop: cancel}
	for caller := range callers {
		busy.running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("payment-%d-%d", caller, i)
				if w := p.post(caller%2, key); w.Code == http.StatusCreated {
					busy.mu.Lock()
					busy.sent = append(busy.sent, sent{key, w.Body.String(), caller % 2})
					busy.mu.Unlock()
				} else {
					busy.refused.Add(1)
					time.Sleep(5 * time.Millisecond) // two cores for two servers and this
				}
			}
		})
	}
	return busy
}

func (b *traffic) answers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

// fault is how the primary goes.
type fault struct {
	name string
	// gone takes the primary away, and returns what happens to it when the standby was promoted.
	gone func(p *pair) (afterwards func() error)
}

var faults = []fault{
	{"killed", func(p *pair) func() error {
		must(p, p.primary.Kill())
		return func() error { return nil }
	}},
	// It comes back and does not know that it is not the primary any more, until it is fenced.
	{"paused", func(p *pair) func() error {
		must(p, p.primary.Pause())
		return func() error {
			if err := p.primary.Resume(); err != nil {
				return err
			}
			time.Sleep(alone)
			return p.primary.Kill()
		}
	}},
}

// outcome is what became of the answers.
type outcome struct{ sent, lost, refused int }

// failOver lets one fault happen under traffic, and sends every request that was answered once more.
func failOver(t *testing.T, f fault, synchronous bool) (o outcome) {
	t.Helper()
	p := newPair(t, synchronous)
	busy := p.startTraffic()
	await.That(t, "answers are sent", func() bool { return busy.answers() >= before })
	p.link.Refuse(true)
	p.link.DropAll()
	cut := busy.answers()
	time.Sleep(alone) // so that a primary that waits for no standby is seen to
	if !synchronous {
		await.That(t, "the primary sends answers on its own", func() bool { return busy.answers() >= cut+callers })
	}
	afterwards := f.gone(p)
	must(t, p.standby.Promote(t.Context()))
	must(t, afterwards())
	from := busy.answers()
	await.That(t, "the server that was promoted sends answers", func() bool { return busy.answers() >= from+before/4 })
	busy.stop()
	busy.running.Wait()
	o.sent, o.refused = len(busy.sent), int(busy.refused.Load())
	for _, each := range busy.sent {
		w := p.retry(each)
		if w.Code != http.StatusCreated || w.Body.String() != each.body {
			o.lost++
		}
	}
	return o
}

// count makes fail-overs of each kind, and tells what became of the answers.
func count(t *testing.T, synchronous bool) (all outcome) {
	t.Helper()
	rounds, kinds := 1, faults
	text := os.Getenv(roundsVariable)
	if text == "" {
		nightly.Only(t, "each fail-over starts two servers; make test has TestStandby of store/postgres")
	}
	if text != "" {
		n, err := strconv.Atoi(text)
		if must(t, err); n < 1 {
			t.Fatalf("%s is %d", roundsVariable, n)
		}
		rounds = n
	} else if !synchronous {
		kinds = faults[:1] // enough to see that the check has teeth
	}
	for _, f := range kinds {
		var sum outcome
		for round := range rounds {
			t.Run(fmt.Sprintf("%s %d", f.name, round), func(t *testing.T) {
				o := failOver(t, f, synchronous)
				sum.sent, sum.lost, sum.refused = sum.sent+o.sent, sum.lost+o.lost, sum.refused+o.refused
			})
		}
		t.Logf("synchronous=%t primary %s: %d fail-overs, %d answers sent, %d lost, %d requests refused", synchronous, f.name,
			rounds, sum.sent, sum.lost, sum.refused)
		all.sent, all.lost = all.sent+sum.sent, all.lost+sum.lost
	}
	return all
}

// TestSynchronous: with synchronous replication no answer that was sent is lost.
func TestSynchronous(t *testing.T) {
	t.Parallel()
	if all := count(t, true); all.lost != 0 || all.sent == 0 {
		t.Errorf("I2: %d of %d answers were lost in fail-overs with synchronous replication", all.lost, all.sent)
	}
}

// TestAsynchronous: without it some are, which shows that the other test would see it.
func TestAsynchronous(t *testing.T) {
	t.Parallel()
	if all := count(t, false); all.lost == 0 {
		t.Errorf("none of %d answers was lost in fail-overs with asynchronous replication: the test has no teeth", all.sent)
	}
}
