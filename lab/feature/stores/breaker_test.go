package stores_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/storetest"
)

func openPostgres(t testing.TB, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() }) // the server may be gone
	return s
}

// TestBreakerConforms: with a breaker around it PostgreSQL is as good as before. A machine that is busy does not open
// it.
func TestBreakerConforms(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Open: func(t testing.TB) storetest.Instance {
			url := servers.Postgres(t).SchemaURL(t)
			conn, err := pgx.Connect(t.Context(), url)
			must(t, err)
			t.Cleanup(func() { must(t, conn.Close(context.Background())) })
			_, err = conn.Exec(t.Context(), `CREATE TABLE business (value text)`)
			must(t, err)
			s, err := breaker.New(openPostgres(t, url), breaker.Config{SlowCall: time.Minute, Logger: quiet})
			must(t, err)
			var mu sync.Mutex
			return storetest.Instance{Store: s, Business: &storetest.Business{
				Insert: func(ctx context.Context, value string) error {
					_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
					return err
				},
				Count: func(value string) (n int) {
					mu.Lock()
					defer mu.Unlock()
					row := conn.QueryRow(context.Background(), `SELECT count(*) FROM business WHERE value = $1`, value)
					must(t, row.Scan(&n))
					return n
				},
			}}
		},
	})
}

// asked counts the calls for new work that reach a store.
type asked struct {
	calls, running, most atomic.Int64
}

func (a *asked) around(ctx context.Context, name wrap.Call, next func(ctx context.Context) error) error {
	if name != "reserve" && name != "transact" {
		return next(ctx)
	}
	a.calls.Add(1)
	now := a.running.Add(1)
	for most := a.most.Load(); now > most && !a.most.CompareAndSwap(most, now); most = a.most.Load() {
	}
	defer a.running.Add(-1)
	return next(ctx)
}

// sickness is what happens to a server, and how it ends.
type sickness struct {
	begin, end func(s *servers.PostgresServer) error
	mode       onceward.Option
	// hangs reports whether calls hang. Then the breaker and the guard give them up after seconds.
	hangs bool
}

var sicknesses = map[string]sickness{
	"dead, reserved": {
		(*servers.PostgresServer).Kill, (*servers.PostgresServer).Restart, onceward.Reserved(onceward.FailureUnknown), false,
	},
	"hanging, reserved": {
		(*servers.PostgresServer).Pause, (*servers.PostgresServer).Resume, onceward.Reserved(onceward.FailureUnknown), true,
	},
	"hanging, transactional": {
		(*servers.PostgresServer).Pause, (*servers.PostgresServer).Resume, onceward.Transactional(), true,
	},
}

// times returns the times of the breaker and the guard. No call to a dead server takes long. A call that hangs counts
// as failed after slowCall, the guard gives it up after storeTimeout, and a probe that hangs has a second one beside it
// after slowCall and openFor: the time between the two is longer than a machine stands still.
func (s sickness) times() (slowCall, storeTimeout, openFor time.Duration) {
	if s.hangs {
		return 2 * time.Second, 10 * time.Second, 30 * time.Second
	}
	return await.Limit, await.Limit, 700 * time.Millisecond
}

// breakerService is a guarded route over PostgreSQL with a breaker around it.
type breakerService struct {
	http.Handler
	breaker *breaker.Store
	asked   asked
	runs    atomic.Int64
	started chan struct{} // gets a value when the request "slow" runs
	goOn    chan struct{} // lets it end
}

// newBreakerService returns a service whose breaker opens by calls that fail. [TestStalledWrites] has slow calls.
func newBreakerService(t *testing.T, url string, sick sickness) *breakerService {
	t.Helper()
	x := &breakerService{started: make(chan struct{}, 1), goOn: make(chan struct{})}
	slowCall, storeTimeout, openFor := sick.times()
	var err error
	x.breaker, err = breaker.New(wrap.New(openPostgres(t, url), x.asked.around), breaker.Config{
		ConsecutiveFailures: 3, SlowCall: slowCall, OpenFor: openFor, Logger: quiet,
	})
	must(t, err)
	guard, err := onceward.New(x.breaker, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"), Logger: quiet,
		StoreTimeout: storeTimeout, SettleTimeout: await.Limit, Defaults: []onceward.Option{onceward.Lease(time.Hour)},
	})
	must(t, err)
	x.Handler = guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.runs.Add(1)
		if r.Header.Get("Idempotency-Key") == "slow" {
			x.started <- struct{}{}
			<-x.goOn
		}
		w.WriteHeader(http.StatusCreated)
	}, sick.mode, onceward.OperationName("pay"))
	return x
}

func (x *breakerService) post(key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	x.ServeHTTP(w, r)
	return w
}

// TestSickServer: a server that is dead or hangs costs a few requests some time, and then none. It is probed by one
// call at a time; what was in flight settles, and when the server is back so is the service.
func TestSickServer(t *testing.T) {
	t.Parallel()
	for name, sick := range sicknesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sick.hangs {
				nightly.Only(t, "calls hang, and the breaker is open, for half a minute")
			}
			server := servers.NewPostgres(t)
			x := newBreakerService(t, server.URL(), sick)
			if w := x.post("first"); w.Code != http.StatusCreated {
				t.Fatalf("before: %d %s", w.Code, w.Body)
			}
			slow := make(chan *httptest.ResponseRecorder, 1)
			go func() { slow <- x.post("slow") }()
			<-x.started
			inFlight := x.asked.running.Load() // a transaction stays under way

			must(t, sick.begin(server))
			var crowd sync.WaitGroup
			for i := range 5 {
				crowd.Go(func() {
					if w := x.post(fmt.Sprint("early", i)); w.Code != http.StatusServiceUnavailable {
						t.Errorf("L2: %d from a server that is %s", w.Code, name)
					}
				})
			}
			crowd.Wait()
			await.That(t, "an open breaker", func() bool {
				x.post("opening")
				return x.breaker.State() == breaker.StateOpen && x.asked.running.Load() == inFlight
			})

			x.refuses(t, sick, inFlight)
			runs := x.runs.Load()
			if runs != 2 {
				t.Errorf("L2: %d executions while the server was %s, want the two before", runs, name)
			}

			must(t, sick.end(server))
			close(x.goOn)
			if w := <-slow; w.Code != http.StatusCreated {
				t.Errorf("L2: what was in flight ended with %d %s", w.Code, w.Body)
			}
			await.That(t, "a closed breaker", func() bool { return x.post("after").Code == http.StatusCreated })
			if state := x.breaker.State(); state != breaker.StateClosed {
				t.Errorf("L2: the breaker is %s with a server that is back", state)
			}
			for _, key := range []string{"first", "slow", "after"} {
				if w := x.post(key); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
					t.Errorf("L2: %s is answered with %d afterwards", key, w.Code)
				}
			}
		})
	}
}

// refuses sends requests by many until the breaker has let probes through: they alone reach the store.
func (x *breakerService) refuses(t *testing.T, sick sickness, inFlight int64) {
	t.Helper()
	_, _, openFor := sick.times()
	probes := int64(2)
	if sick.hangs {
		probes = 1
	}
	x.asked.calls.Store(0)
	x.asked.most.Store(0)
	started := time.Now()
	var refused atomic.Int64
	var crowd sync.WaitGroup
	for i := range 8 {
		crowd.Go(func() {
			for n := 0; !t.Failed() && x.asked.calls.Load() < probes && time.Since(started) < await.Limit; n++ {
				w := x.post(fmt.Sprintf("refused%d-%d", i, n))
				after, err := strconv.Atoi(w.Header().Get("Retry-After"))
				if w.Code != http.StatusServiceUnavailable || err != nil || after < 1 || after > int(openFor/time.Second)+1 {
					t.Errorf("L2: %d, Retry-After %d, %v, from a breaker that is open for %s", w.Code, after, err, openFor)
				}
				refused.Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	crowd.Wait()
	calls, most := x.asked.calls.Load(), x.asked.most.Load()-inFlight
	t.Logf("%d requests refused in %s; %d probes", refused.Load(), time.Since(started), calls)
	if calls < probes || most != 1 {
		t.Errorf("L2: %d probes, %d at once; want %d, one at a time", calls, most, probes)
	}
	if most := int64(time.Since(started)/openFor) + 2; calls > most {
		t.Errorf("L2: %d probes in %s, want one in %s", calls, time.Since(started), openFor)
	}
}
