package oncewardtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/storetest"
)

// recorder is a test of a user's, whose failures are looked at here.
type recorder struct {
	ctx      context.Context
	cleanups []func()
	failures []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// recorded runs a user's test to its end, and returns how it failed.
func recorded(t *testing.T, test func(t oncewardtest.TestingT)) []string {
	t.Helper()
	r := &recorder{ctx: t.Context()}
	run := func(f func()) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f()
		}()
		<-ended
	}
	run(func() { test(r) })
	for _, cleanup := range slices.Backward(r.cleanups) {
		run(cleanup)
	}
	return r.failures
}

// wantFailure wants one failure that has all of the parts in it.
func wantFailure(t *testing.T, failures []string, parts ...string) {
	t.Helper()
	if len(failures) != 1 {
		t.Fatalf("%d failures, want 1: %q", len(failures), failures)
	}
	for _, part := range parts {
		if !strings.Contains(failures[0], part) {
			t.Errorf("the failure does not say %q:\n%s", part, failures[0])
		}
	}
}

var (
	paying   = setup(transactional(func(w http.ResponseWriter, r *http.Request) { answer(w, insert(r.Context())) }), false)
	charging = setup(reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
		}
	}), true)
)

const (
	key  = "key-1"
	body = `{"amount": 1200}`
)

// TestStoreFaults: what a client gets for a fault, what it gets for its retry, and that there is one effect at the end.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		world        func(t oncewardtest.TestingT) oncewardtest.Config
		fault        func(f *oncewardtest.Faults)
		restart      bool
		first, retry string
	}{
		{
			"a crash before the commit", paying,
			func(f *oncewardtest.Faults) { f.CrashAt(oncewardtest.Before("commit")) }, true, "no answer", "201",
		},
		{
			"a crash after the commit", paying,
			func(f *oncewardtest.Faults) { f.CrashAt(oncewardtest.After("commit")) }, true, "no answer", "201, replayed",
		},
		{
			"a transaction that cannot begin", paying,
			func(f *oncewardtest.Faults) { f.LoseReplyAt(oncewardtest.Before("transact")) }, false,
			"503 store-unavailable", "201",
		},
		{
			"a transaction whose beginning is not heard of", paying,
			func(f *oncewardtest.Faults) { f.LoseReply("transact") }, false, "503 store-unavailable", "201",
		},
		{
			"a commit that is not heard of", paying,
			func(f *oncewardtest.Faults) { f.LoseReply("commit") }, false, "500 outcome-unknown", "201, replayed",
		},
		{
			"an owner that is lost before the commit", paying,
			func(f *oncewardtest.Faults) { f.LoseOwnerAt(oncewardtest.Before("commit")) }, true, "503 store-unavailable", "201",
		},
		{
			"an owner that is lost after its reservation", charging,
			func(f *oncewardtest.Faults) { f.LoseOwnerAt(oncewardtest.Before("complete")) }, true, "500 outcome-unknown",
			"409 outcome-unknown",
		},
		{
			"a crash with the answer at hand", charging,
			func(f *oncewardtest.Faults) { f.CrashAt(oncewardtest.Before("complete")) }, true,
			"no answer", "409 outcome-unknown",
		},
		{
			"a crash with the answer stored", charging,
			func(f *oncewardtest.Faults) { f.CrashAt(oncewardtest.After("complete")) }, true, "no answer", "201, replayed",
		},
		{
			"a reservation whose reply is lost", charging,
			func(f *oncewardtest.Faults) { f.LoseReply("reserve") }, false, "201", "201, replayed",
		},
		{
			"the second attempt to complete is lost too", charging,
			func(f *oncewardtest.Faults) {
				f.LoseReply("complete")
				f.LoseReplyAt(oncewardtest.After("complete").Nth(2))
			}, false, "201, replayed", "201, replayed", // that it was stored is found when it is given up
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			kit := oncewardtest.New(t, test.world(t))
			test.fault(kit.Faults())
			first := kit.Post("/payments", key, body)
			if test.restart {
				kit.Restart()
			}
			kit.Advance(time.Minute) // past the lease
			retry := kit.Post("/payments", key, body)
			if first.String() != test.first || retry.String() != test.retry {
				t.Errorf("got %q and then %q, want %q and then %q", first, retry, test.first, test.retry)
			}
			kit.ExecutedOnce()
		})
	}
}

func TestStoreIsDown(t *testing.T) {
	t.Parallel()
	kit := oncewardtest.New(t, charging(t))
	kit.Faults().Down()
	kit.Post("/payments", key, body).Refused("store-unavailable")
	kit.Faults().Up()
	first := kit.Post("/payments", key, body).Executed(http.StatusCreated)
	kit.Post("/payments", key, body).Replayed(first)
	kit.Advance(25 * time.Hour)
	kit.Post("/payments", key, body).Executed(http.StatusCreated) // the provider recognises its key
	kit.ExecutedOnce()
}

// TestDuplicateInFlight sends a request while the first one is at the provider.
func TestDuplicateInFlight(t *testing.T) {
	t.Parallel()
	config := charging(t)
	kit := oncewardtest.New(t, config)
	config.Providers[0].AtCall(func(int, oncewardtest.ProviderCall) {
		kit.Post("/payments", key, body).Refused("in-progress")
	})
	kit.Post("/payments", key, body).Executed(http.StatusCreated)
	kit.ExecutedOnce()
}

// TestFaultThatNeverComes: a name that no call has fails the test, and tells those that there were.
func TestFaultThatNeverComes(t *testing.T) {
	t.Parallel()
	failures := recorded(t, func(t oncewardtest.TestingT) {
		kit := oncewardtest.New(t, charging(t))
		kit.Faults().LoseReply("compleat")
		kit.Post("/payments", key, body)
	})
	wantFailure(t, failures, "LoseReplyAt(after compleat 1)", "reserve 1, complete 1")
}

// TestAssertions: each assertion fails where it should, and says what was expected, what came and what led to it.
func TestAssertions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		test func(kit *oncewardtest.Kit)
		says []string
	}{
		{"another status", func(kit *oncewardtest.Kit) {
			kit.Post("/payments", key, body).Executed(http.StatusOK)
		}, []string{"POST /payments, key key-1: got 201", "want 200 from the handler", "store     transact"}},
		{"a replay is no execution", func(kit *oncewardtest.Kit) {
			kit.Post("/payments", key, body)
			kit.Post("/payments", key, body).Executed(http.StatusCreated)
		}, []string{"got 201, replayed"}},
		{"an execution is no replay", func(kit *oncewardtest.Kit) {
			first := kit.Post("/payments", key, body)
			kit.Post("/payments", "key-2", body).Replayed(first)
		}, []string{"key key-2: got 201", "want a replay of the first answer"}},
		{"a replay of something else", func(kit *oncewardtest.Kit) {
			first := kit.Post("/payments", key, body)
			first.Body = `{"paid":false}`
			kit.Post("/payments", key, body).Replayed(first)
		}, []string{`{"paid":false}`}},
		{"not refused", func(kit *oncewardtest.Kit) {
			kit.Post("/payments", key, body).Refused("mismatch")
		}, []string{"got 201", "want the problem mismatch"}},
		{"refused otherwise", func(kit *oncewardtest.Kit) {
			kit.Post("/payments", key, body)
			kit.Post("/payments", key, `{}`).Refused("in-progress")
		}, []string{"got 422 mismatch"}},
		{"nothing was executed", func(kit *oncewardtest.Kit) { kit.ExecutedOnce() }, []string{"nothing was executed"}},
		{"executed twice", func(kit *oncewardtest.Kit) {
			kit.Post("/payments", key, body)
			kit.Post("/payments", "key-2", body)
			kit.ExecutedOnce()
		}, []string{"ran 2 times: rows of payment: want 1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			failures := recorded(t, func(t oncewardtest.TestingT) { test.test(oncewardtest.New(t, paying(t))) })
			wantFailure(t, failures, test.says...)
		})
	}
}

// TestReport: a check reports what it found with the history that shows it, and the same each time.
func TestReport(t *testing.T) {
	t.Parallel()
	check := func() []string {
		return recorded(t, func(t oncewardtest.TestingT) {
			oncewardtest.Check(t, setup(reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
				return func(rw http.ResponseWriter, r *http.Request) {
					answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
				}
			}), false), payment)
		})
	}
	failures := check()
	wantFailure(t, failures, "POST /payments: ran twice: effects at the provider: 2, want 1",
		"when: the provider's answer is lost at call 1 to the provider (and in 1 other runs)",
		"what to do: ", "4  store     release\n", "8  provider  POST /charges, key B\n", "got 201")
	if again := check(); !slices.Equal(again, failures) {
		t.Errorf("the second report is another one:\n%s\n%s", failures, again)
	}
}

// TestCheckIsMisused: what makes a check see nothing is a finding.
func TestCheckIsMisused(t *testing.T) {
	t.Parallel()
	uncounted := func(t oncewardtest.TestingT) oncewardtest.Config {
		config := paying(t)
		config.Effects = nil
		return config
	}
	wantKinds(t, oncewardtest.Find(t, uncounted, payment), oncewardtest.KindUncounted)
	wantKinds(t, oncewardtest.Find(t, paying, oncewardtest.Post("/nowhere", `{}`)), oncewardtest.KindFailed)
	failing := setup(transactional(func(w http.ResponseWriter, _ *http.Request) { answer(w, errors.New("no")) }), false)
	wantKinds(t, oncewardtest.Find(t, failing, payment), oncewardtest.KindFailed)
	broken := func(t oncewardtest.TestingT) oncewardtest.Config {
		store, clock := oncewardtest.NewStore(t, `CREATE TABLE`)
		return oncewardtest.Config{Store: store, Clock: clock}
	}
	wantKinds(t, oncewardtest.Find(t, broken, payment), oncewardtest.KindFailed)
	nothing := func(t oncewardtest.TestingT) { oncewardtest.New(t, oncewardtest.Config{}) }
	wantFailure(t, recorded(t, nothing), "needs Service")
	wantFailure(t, recorded(t, func(t oncewardtest.TestingT) { oncewardtest.Check(t, paying) }), "needs a request")
}

// TestStuck: a client that never gets an answer is a finding.
func TestStuck(t *testing.T) {
	t.Parallel()
	once := setup(reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			if len(w.provider.Calls()) > 0 {
				answer(rw, errors.New("there is a call already"))
				return
			}
			answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
		}
	}), true)
	wantKinds(t, oncewardtest.Find(t, once, payment), oncewardtest.KindStuck)
}

// TestInTx: what a handler writes by itself is there for it alone, and is undone.
func TestInTx(t *testing.T) {
	t.Parallel()
	s, _ := oncewardtest.NewStore(t, table)
	count := oncewardtest.Rows(s.DB(), "payment")["rows of payment"]
	oncewardtest.InTx(t, s, func(ctx context.Context) {
		if err := insert(ctx); err != nil {
			t.Error(err)
		}
		var n int
		if err := onceward.Tx(ctx).QueryRowContext(ctx, `SELECT count(*) FROM payment`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows in the transaction (%v), want 1", n, err)
		}
	})
	if n := count(); n != 0 {
		t.Errorf("%d rows afterwards, want 0", n)
	}
	failures := recorded(t, func(t oncewardtest.TestingT) {
		oncewardtest.InTx(t, memory.New(), func(context.Context) { t.Errorf("it was called") })
	})
	wantFailure(t, failures, "has no transactions")
}

// TestCapabilities: around a store, faults can do what that can, and no more.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	if _, ok := store.As[store.Transactor](oncewardtest.NewFaults(t, memory.New())); ok {
		t.Error("a store in memory got transactions")
	}
	s, _ := oncewardtest.NewStore(t)
	if _, ok := store.As[store.Transactor](oncewardtest.NewFaults(t, s)); !ok {
		t.Error("a store of SQLite has lost its transactions")
	}
}

// TestConformance: a store in memory, with faults around it that do not come, is as good as one on a disk. These are
// the chapters of the suite in which one would show that it is none.
func TestConformance(t *testing.T) {
	t.Parallel()
	groups := servers.UnlessAllStores("Content", "Transactor", "Checkpointer")
	storetest.Run(t, storetest.Harness{Groups: groups, Open: func(t testing.TB) storetest.Instance {
		s, clock := oncewardtest.NewStore(t, `CREATE TABLE business (value TEXT NOT NULL)`)
		return storetest.Instance{
			Store: oncewardtest.NewFaults(t, s), Advance: clock.Advance,
			Business: &storetest.Business{
				Insert: func(ctx context.Context, value string) error {
					_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business VALUES ($1)`, value)
					return err
				},
				Count: func(value string) (n int) {
					err := s.DB().QueryRow(`SELECT count(*) FROM business WHERE value = $1`, value).Scan(&n)
					if err != nil {
						t.Error(err)
					}
					return n
				},
			},
		}
	}})
}
