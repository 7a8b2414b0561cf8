package oncewardtest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store/sqlite"
)

// world is what a handler is built in: its store, its provider, and a guard for each process.
type world struct {
	store    *sqlite.Store
	provider *oncewardtest.Provider
}

// service builds the one route of a service.
type service func(w *world, guard *onceward.Guard) http.Handler

const table = `CREATE TABLE payment (amount INTEGER NOT NULL, note TEXT)`

// setup makes the world of a run. The provider recognises keys if it is told to.
func setup(build service, dedups bool) func(t oncewardtest.TestingT) oncewardtest.Config {
	return func(t oncewardtest.TestingT) oncewardtest.Config {
		store, clock := oncewardtest.NewStore(t, table)
		w := &world{store: store, provider: oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{Dedups: dedups})}
		return oncewardtest.Config{
			Store: store, Clock: clock, Effects: oncewardtest.Rows(store.DB(), "payment"),
			Providers: []*oncewardtest.Provider{w.provider},
			Service: func(guard *onceward.Guard) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("POST /payments", build(w, guard))
				return mux
			},
		}
	}
}

func insert(ctx context.Context) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (amount) VALUES (1200)`)
	return err
}

// charge calls the provider over HTTP.
func (w *world) charge(ctx context.Context, key, body string) error {
	return w.call(ctx, http.MethodPost, "/charges", key, body)
}

func (w *world) call(ctx context.Context, method, path, key, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, w.provider.URL+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("the provider answered %s", answer.Status)
	}
	return nil
}

// answer answers as most handlers do.
func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, "it did not work", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(`{"paid":true}`))
}

func transactional(handle http.HandlerFunc) service {
	return func(_ *world, guard *onceward.Guard) http.Handler {
		return guard.Handler(handle, onceward.Transactional())
	}
}

func reserved(failure onceward.Failure, handle func(w *world) http.HandlerFunc) service {
	return func(w *world, guard *onceward.Guard) http.Handler {
		return guard.Handler(handle(w), onceward.Reserved(failure))
	}
}

// wrong are handlers with one mistake each, and what a check has to find in it: by its name, and nothing that leads
// astray.
var wrong = []struct {
	name   string
	build  service
	dedups bool
	want   []oncewardtest.Kind
	may    []oncewardtest.Kind // what else is found, if the scheduler shows it
}{
	{
		name: "calls the provider inside of the transaction",
		build: func(w *world, guard *onceward.Guard) http.Handler {
			return guard.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				err := insert(r.Context())
				if err == nil {
					err = w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				}
				answer(rw, err)
			}), onceward.Transactional())
		},
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindCallInTx},
	},
	{
		name: "forgets the downstream key",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) { answer(rw, w.charge(r.Context(), "", `{}`)) }
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindNoKey, oncewardtest.KindTwice},
	},
	{
		name: "makes a key for each attempt",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) { answer(rw, w.charge(r.Context(), rand.Text(), `{}`)) }
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindOtherKey},
	},
	{
		name: "sends the same key for all operations",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) { answer(rw, w.charge(r.Context(), "charge", `{}`)) }
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindSharedKey},
	},
	{
		name: "leaves the call to a goroutine",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				key := onceward.FromContext(r.Context()).DownstreamKey("charge")
				go func() { _ = w.charge(context.Background(), key, `{}`) }()
				answer(rw, nil)
			}
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindEarly, oncewardtest.KindLost},
		may:    []oncewardtest.Kind{oncewardtest.KindStuck}, // a crash at a call that comes late ends the next process
	},
	{
		name: "leaves its writes to a goroutine",
		build: func(w *world, guard *onceward.Guard) http.Handler {
			return guard.Handler(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				var once sync.Once
				begun := make(chan struct{})
				begin := func() { once.Do(func() { close(begun) }) }
				go func() {
					defer begin() // it may fail before
					_ = w.store.Update(context.Background(), func(tx *sql.Tx) error {
						begin()
						_, err := tx.Exec(`INSERT INTO payment (amount) VALUES (1200)`)
						return err
					})
				}()
				<-begun // what has not begun by the end is not seen
				answer(rw, nil)
			}), onceward.Reserved(onceward.FailureUnknown))
		},
		want: []oncewardtest.Kind{oncewardtest.KindLost}, // the goroutine could not tell its error
		may:  []oncewardtest.Kind{oncewardtest.KindEarly},
	},
	{
		name: "answers past the guard",
		build: func(_ *world, guard *onceward.Guard) http.Handler {
			type outer struct{}
			guarded := guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				answer(r.Context().Value(outer{}).(http.ResponseWriter), insert(r.Context()))
			}), onceward.Transactional())
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				guarded.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), outer{}, rw)))
			})
		},
		want: []oncewardtest.Kind{oncewardtest.KindBypass},
	},
	{
		name: "drops the error of a write",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) {
			_ = insert(r.Context())
			answer(rw, nil)
		}),
		want: []oncewardtest.Kind{oncewardtest.KindLost},
	},
	{
		name: "drops the error of a call",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				_ = w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				answer(rw, nil)
			}
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindLost},
	},
	{
		name: "claims that a failure did nothing",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
			}
		}),
		want: []oncewardtest.Kind{oncewardtest.KindTwice},
	},
	{
		name: "says NotExecuted although its call went out",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				op := onceward.FromContext(r.Context())
				err := w.charge(r.Context(), op.DownstreamKey("charge"), `{}`)
				if err != nil {
					op.NotExecuted()
				}
				answer(rw, err)
			}
		}),
		want: []oncewardtest.Kind{oncewardtest.KindTwice},
	},
	{
		name: "sends the time along",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				body := fmt.Sprintf(`{"at":%d}`, time.Now().UnixNano())
				answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), body))
			}
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindOtherBody},
	},
	{
		name: "makes an id for each attempt",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				answer(rw, w.call(r.Context(), http.MethodPut, "/charges/"+rand.Text(), "", `{}`))
			}
		}),
		dedups: true,
		want:   []oncewardtest.Kind{oncewardtest.KindTwice},
	},
	{
		name: "commits its transaction itself",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) {
			err := insert(r.Context())
			if err == nil {
				err = onceward.Tx(r.Context()).Commit()
			}
			answer(rw, err)
		}),
		want: []oncewardtest.Kind{oncewardtest.KindFailed},
	},
	{
		name: "remembers in memory what it has called",
		build: func() service {
			return func(w *world, guard *onceward.Guard) http.Handler {
				var mu sync.Mutex
				called := make(map[string]bool)
				return guard.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					op := onceward.FromContext(r.Context())
					mu.Lock()
					before := called[op.Key()]
					called[op.Key()] = true
					mu.Unlock()
					var err error
					if !before {
						err = w.charge(r.Context(), op.DownstreamKey("charge"), `{}`)
					}
					answer(rw, err)
				}), onceward.Reserved(onceward.FailureRetry))
			}
		}(),
		want: []oncewardtest.Kind{oncewardtest.KindLost, oncewardtest.KindTwice},
	},
}

func TestWrongHandlers(t *testing.T) {
	t.Parallel()
	for _, test := range wrong {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			found := oncewardtest.Find(t, setup(test.build, test.dedups), payment)
			found = slices.DeleteFunc(found, func(f oncewardtest.Finding) bool { return slices.Contains(test.may, f.Kind) })
			wantKinds(t, found, test.want...)
		})
	}
}

var payment = oncewardtest.Post("/payments", `{"amount": 1200}`)

// wantKinds compares the kinds of findings.
func wantKinds(t *testing.T, found []oncewardtest.Finding, want ...oncewardtest.Kind) {
	t.Helper()
	var kinds []oncewardtest.Kind
	for _, f := range found {
		kinds = append(kinds, f.Kind)
		t.Logf("%s", f)
	}
	slices.Sort(kinds)
	slices.Sort(want)
	if kinds = slices.Compact(kinds); !slices.Equal(kinds, want) {
		t.Errorf("found %q, want %q", kinds, want)
	}
}

// TestWritesPastTheTransaction: a handler that has another handle than that of its transaction, here of another
// database, because SQLite has one writer at a time.
func TestWritesPastTheTransaction(t *testing.T) {
	t.Parallel()
	found := oncewardtest.Find(t, func(t oncewardtest.TestingT) oncewardtest.Config {
		store, clock := oncewardtest.NewStore(t)
		other, _ := oncewardtest.NewStore(t, table)
		return oncewardtest.Config{
			Store: store, Clock: clock, Effects: oncewardtest.Rows(other.DB(), "payment"),
			Service: func(guard *onceward.Guard) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("POST /payments", guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					answer(w, other.Update(r.Context(), func(tx *sql.Tx) error {
						_, err := tx.ExecContext(r.Context(), `INSERT INTO payment (amount) VALUES (1200)`)
						return err
					}))
				}, onceward.Transactional()))
				return mux
			},
		}
	}, payment)
	wantKinds(t, found, oncewardtest.KindPastTx)
}
