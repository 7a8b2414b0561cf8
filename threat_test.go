package onceward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestACapturedRequestAfterTheReaper: once the record has gone the payment is forgotten, and the first-sent time
// alone refuses the captured request. An attacker who can write a new date gets through, which is why a signature has
// to cover it.
func TestACapturedRequestAfterTheReaper(t *testing.T) {
	t.Parallel()
	for name, soft := range map[string]bool{"removed": false, "marked as expired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, handler := memory.New(), new(counted)
				h := newGuard(t, store).Handler(handler, reserved, onceward.RequireFirstSent(23*time.Hour, time.Minute))
				now := func() edit { return withHeader(onceward.FirstSentHeader, time.Now().UTC().Format(http.TimeFormat)) }
				sent := now()
				post(h, "k", `{"amount":1}`, sent).want(t, "L4", http.StatusCreated, false)
				post(h, "k", `{"amount":1}`, sent).want(t, "section 6", http.StatusCreated, true)
				time.Sleep(24 * time.Hour)
				if reaped, err := store.Reap(t.Context(), 10, soft); err != nil || reaped != 1 {
					t.Fatalf("the reaper took %d records, %v", reaped, err)
				}
				post(h, "k", `{"amount":1}`, sent).
					wantProblem(t, "L4", http.StatusPreconditionFailed, "first-sent-too-old")
				handler.wantRuns(t, "L4: the captured request", 1)
				post(h, "k", `{"amount":1}`, now()).
					want(t, "L4: a date that was written again", http.StatusCreated, false)
				handler.wantRuns(t, "L4: the guard cannot know that the date is forged", 2)
			})
		})
	}
}

// refusals are answers that reveal nothing about the payment itself. Each is caused in a request that is otherwise in
// order.
var refusals = map[string]struct {
	status int
	code   string
	spoil  func(r *http.Request, store *faultyStore)
}{
	"the caller is not known": {http.StatusUnauthorized, "unauthenticated", func(r *http.Request, _ *faultyStore) {
		r.Header.Del("Authorization")
	}},
	"the caller cannot be looked up": {http.StatusServiceUnavailable, "store-unavailable", func(r *http.Request, _ *faultyStore) {
		r.Header.Set("Authorization", "Bearer down")
	}},
	"a body that is too large": {http.StatusRequestEntityTooLarge, "body-too-large", func(r *http.Request, _ *faultyStore) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", 101))), -1
	}},
	"a body that is cut off": {http.StatusBadRequest, "body-incomplete", func(r *http.Request, _ *faultyStore) {
		r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	}},
	"a clock that is wrong": {http.StatusPreconditionFailed, "first-sent-too-old", func(r *http.Request, _ *faultyStore) {
		r.Header.Set(onceward.FirstSentHeader, time.Now().Add(-48*time.Hour).UTC().Format(http.TimeFormat))
	}},
	"an upgrade": {http.StatusBadRequest, "upgrade-refused", func(r *http.Request, _ *faultyStore) {
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Connection", "Upgrade")
	}},
	"the store is down": {http.StatusServiceUnavailable, "store-unavailable", func(_ *http.Request, s *faultyStore) {
		s.reserve = brokenReserve
	}},
	"new keys are not taken": {http.StatusTooManyRequests, "new-keys-refused", func(_ *http.Request, s *faultyStore) {
		s.reserve = refusingReserve(s)
	}},
}

// TestRefusalsAreNotCached: a key that was refused before the handler is free. The first request that is in order
// executes, and gets its own answer; and no cache on the way may keep the refusal (A1, by wantProblem).
func TestRefusalsAreNotCached(t *testing.T) {
	t.Parallel()
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, handler := newFaultyStore(), new(counted)
				guard := newGuard(t, store, func(c *onceward.Config) { c.Scope = scopeOrDown })
				h := guard.Handler(handler, onceward.Reserved(onceward.FailureStore), onceward.BodyLimit(100),
					onceward.CheckFirstSent(time.Hour, 0))
				a := post(h, "k", `{"amount":1}`, func(r *http.Request) { refusal.spoil(r, store) })
				a.wantProblem(t, "A7", refusal.status, refusal.code)
				time.Sleep(time.Minute)
				synctest.Wait() // what looks for lost grants in the background has ended
				handler.wantRuns(t, "A7", 0)
				wantNothingStored(t, "A7", store)
				store.reserve = nil
				post(h, "k", `{"amount":1}`).want(t, "A7: the key is free", http.StatusCreated, false)
				post(h, "k", `{"amount":1}`).want(t, "A7", http.StatusCreated, true)
				handler.wantRuns(t, "A7", 1)
			})
		})
	}
}

// scopeOrDown is byToken with a directory that cannot be asked about one caller.
func scopeOrDown(r *http.Request) (string, error) {
	scope, err := byToken(r)
	if scope == "down" {
		return "", errors.New("the directory does not answer")
	}
	return scope, err
}

// TestOneKeySprayed is scenario 33: a hundred thousand requests with one key, every tenth of them for another amount,
// are one execution and one record.
func TestOneKeySprayed(t *testing.T) {
	t.Parallel()
	const clients, early = 8, 1000
	requests := nightly.Either[int64](100_000, 10_000)
	var decisions atomic.Int64
	sprayed := make(chan struct{})
	s := memory.New()
	guard := newGuard(t, s, func(c *onceward.Config) {
		c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
			if _, ok := e.(onceward.DecidedEvent); ok && decisions.Add(1) == early {
				close(sprayed)
			}
		})
	})
	handler := new(counted)
	handler.then = func(w http.ResponseWriter, _ *http.Request) {
		if handler.runs.Load() == 1 {
			<-sprayed // many arrive while the only one runs
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "paid")
	}
	h := guard.Handler(handler, reserved)

	var seen [600]atomic.Int64
	var next atomic.Int64
	var all sync.WaitGroup
	spray := func() {
		for n := next.Add(1); n <= requests; n = next.Add(1) {
			body := `{"amount":1}`
			if n%10 == 0 {
				body = `{"amount":1000000}`
			}
			a := post(h, "k", body)
			seen[a.status].Add(1)
			if a.status == http.StatusCreated && a.body != "paid" {
				t.Errorf("scenario 33: the answer is %q", a.body)
			}
		}
	}
	for range clients - 1 {
		all.Go(spray)
	}
	spray()
	all.Wait()
	handler.wantRuns(t, "scenario 33", 1)
	replies := seen[http.StatusCreated].Load() + seen[http.StatusConflict].Load()
	mismatches := seen[http.StatusUnprocessableEntity].Load()
	if mismatches != requests/10 || replies != requests-requests/10 {
		t.Errorf("scenario 33: %d mismatches, and %d replays or conflicts, of %d requests", mismatches, replies,
			requests)
	}
	if conflicts := seen[http.StatusConflict].Load(); conflicts < early/2 {
		t.Errorf("only %d requests met the one that was running", conflicts)
	}
	if records, err := s.List(t.Context(), store.Filter{}); err != nil || len(records) != 1 {
		t.Errorf("scenario 33: %d records, %v, want one", len(records), err)
	}
}

// TestInventedKeysLastForTheirRetention: nothing limits how many keys a caller invents (L1 is planned): each costs an
// execution and a record. What bounds them is the retention and the reaper; keys that break the rules cost no record at
// all.
func TestInventedKeysLastForTheirRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const keys = 500
		s, handler := memory.New(), new(counted)
		guard := newGuard(t, s, func(c *onceward.Config) { c.Keys.MinLength = 16 })
		h := guard.Handler(handler, reserved, onceward.Retain(time.Hour))
		for i := range keys {
			post(h, fmt.Sprint(i), `{}`).wantProblem(t, "H3", http.StatusBadRequest, "invalid-key")
		}
		wantNothingStored(t, "H4", s)
		handler.wantRuns(t, "H4", 0)

		for i := range keys {
			post(h, fmt.Sprintf("invented-%016d", i), `{}`).want(t, "L1 is planned", http.StatusCreated, false)
		}
		handler.wantRuns(t, "L1 is planned", keys)
		stats, err := s.Stats(t.Context())
		if err != nil || stats.Records[store.StateCompleted] != keys {
			t.Errorf("%d records, %v, want %d", stats.Records[store.StateCompleted], err, keys)
		}
		time.Sleep(time.Hour)
		if reaped, err := s.Reap(t.Context(), 2*keys, false); err != nil || reaped != keys {
			t.Errorf("B2: the reaper took %d records, %v, want all %d", reaped, err, keys)
		}
		wantNothingStored(t, "B2", s)
	})
}

// probe is all that mallory, who belongs to another tenant, can find out about a key: each answer with its headers.
func probe(h http.Handler) string {
	var learned strings.Builder
	note := func(a answer) { fmt.Fprintln(&learned, a.status, a.header, a.withoutInstance().body) }
	note(ask(h, "/operations/k", as("mallory")))
	for _, body := range []string{`{"amount":1}`, `{"amount":1}`, `{"amount":2}`} {
		note(post(h, "k", body, as("mallory")))
	}
	note(ask(h, "/operations/k", as("mallory")))
	return learned.String()
}

// TestForeignKeysCannotBeEnumerated: whatever became of alice's payment, mallory gets the answers that she would get if
// there was no such payment, to the last byte but for the random name of each occurrence.
func TestForeignKeysCannotBeEnumerated(t *testing.T) {
	t.Parallel()
	victims := map[string]struct {
		end   func(op *onceward.Operation) // the answer of alice's handler
		state store.State
		after time.Duration // when mallory asks
	}{
		"completed":   {func(*onceward.Operation) {}, store.StateCompleted, 0},
		"released":    {(*onceward.Operation).NotExecuted, store.StateRetryable, 0},
		"unknown":     {(*onceward.Operation).Unknown, store.StateUnknown, 0},
		"in progress": {nil, store.StateInProgress, 0},
		"expired":     {func(*onceward.Operation) {}, store.StateExpired, 25 * time.Hour},
	}
	for name, victim := range victims {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				finish := make(chan struct{})
				h := service(t, store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch op := onceward.FromContext(r.Context()); {
					case op.Scope() != "alice":
					case victim.end == nil:
						<-finish
					default:
						victim.end(op)
					}
					w.WriteHeader(http.StatusCreated)
				}))
				go post(h, "k", `{"amount":1}`)
				time.Sleep(time.Second + victim.after)
				if _, err := store.Reap(context.Background(), 1, true); err != nil {
					t.Fatal(err)
				}
				wantState(t, "section 4", store, "k", victim.state)
				got := probe(h)
				close(finish)

				// The same moment, in a world without alice.
				created := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
				if want := probe(service(t, memory.New(), http.HandlerFunc(created))); got != want {
					t.Errorf("I9: mallory learns\n%swant what she learns where there is nothing:\n%s", got, want)
				}
			})
		})
	}
}

// TestAFingerprintIsNoOracle: who reads the store, and guesses what alice has paid, cannot check the guess. The
// fingerprint of the same request is another one in another scope, and under another secret.
func TestAFingerprintIsNoOracle(t *testing.T) {
	t.Parallel()
	const guess = `{"amount":1}`
	sums := make(map[string][]byte)
	for name, made := range map[string]struct {
		secret []byte
		scope  string
	}{
		"alice's": {testSecret, "alice"}, "the attacker's own": {testSecret, "mallory"}, "made elsewhere": {newSecret, "alice"},
	} {
		s := memory.New()
		h := newGuard(t, s, withSecrets(made.secret)).Handler(new(counted), reserved)
		post(h, "k", guess, as(made.scope)).want(t, "F1", http.StatusCreated, false)
		rec, err := s.Get(context.Background(), store.ID{Scope: made.scope, Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		for other, sum := range sums {
			if bytes.Equal(sum, rec.Fingerprint.Sum[:]) {
				t.Errorf("F1: the fingerprint that is %s equals the one that is %s", name, other)
			}
		}
		sums[name] = bytes.Clone(rec.Fingerprint.Sum[:])
	}
}

// TestACrowdAtTheMomentOfExpiry: a hundred retries and two reapers meet a record in the last moment of its life and in
// the first moment after it. Before, all get the old answer; after, one executes and the others see that one.
func TestACrowdAtTheMomentOfExpiry(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{false, true} {
		t.Run(fmt.Sprint("soft ", soft), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, handler := memory.New(), new(counted)
				h := newGuard(t, s).Handler(handler,
					reserved, onceward.Retain(time.Hour), onceward.InFlightWait(time.Minute))
				first := post(h, "k", `{}`)
				time.Sleep(time.Hour - time.Microsecond)
				for _, a := range crowdBesideReapers(t, h, s, soft) {
					a.want(t, "S2: before the expiry", http.StatusCreated, true)
					a.wantSame(t, "S2: before the expiry", first)
				}
				handler.wantRuns(t, "S2", 1)

				time.Sleep(time.Microsecond)
				executed := 0
				for _, a := range crowdBesideReapers(t, h, s, soft) {
					if !a.replayed() {
						executed++
					}
					if a.status != http.StatusCreated || a.body != `{"execution":2}` {
						t.Errorf("scenario 22: at the expiry a retry got %d %q", a.status, a.body)
					}
				}
				if executed != 1 {
					t.Errorf("scenario 22: %d of the retries executed, want one", executed)
				}
				handler.wantRuns(t, "scenario 22", 2)
				wantState(t, "S10: what was made again stays", s, "k", store.StateCompleted)
			})
		})
	}
}

// crowdBesideReapers sends a hundred requests while two reapers work.
func crowdBesideReapers(t *testing.T, h http.Handler, store *memory.Store, soft bool) (answers []answer) {
	t.Helper()
	var reapers sync.WaitGroup
	for range 2 {
		reapers.Go(func() {
			for range 50 {
				if _, err := store.Reap(context.Background(), 10, soft); err != nil {
					t.Error(err)
				}
			}
		})
	}
	answers = crowd(100, h)
	reapers.Wait()
	return answers
}

// TestTimeFreesNothingThatIsOpen: a payment that runs for longer than its retention, and one whose outcome is
// not known, are not forgotten, however often sweeper and reaper come by. A retry never executes beside them.
func TestTimeFreesNothingThatIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			if op := onceward.FromContext(r.Context()); op.Key() == "lost" {
				op.Unknown()
				return
			}
			time.Sleep(5 * time.Hour)
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, store).Handler(handler,
			reserved, onceward.Retain(time.Hour), onceward.Deadline(6*time.Hour))
		post(h, "lost", `{}`).wantProblem(t, "E5", http.StatusInternalServerError, "outcome-unknown")
		var slowest answer
		var running sync.WaitGroup
		running.Go(func() { slowest = post(h, "long", `{}`) })
		for range 29 {
			time.Sleep(10 * time.Minute)
			swept, err := store.Sweep(context.Background(), 10)
			if err != nil || swept != 0 {
				t.Errorf("S5: %d owners that are alive were swept, %v", swept, err)
			}
			if reaped, err := store.Reap(context.Background(), 10, false); err != nil || reaped != 0 {
				t.Errorf("S2: %d open records were reaped, %v", reaped, err)
			}
			post(h, "long", `{}`).wantProblem(t, "S2", http.StatusConflict, "in-progress")
			post(h, "lost", `{}`).wantProblem(t, "S2", http.StatusConflict, "outcome-unknown")
		}
		running.Wait()
		slowest.want(t, "E6", http.StatusCreated, false)
		post(h, "long", `{}`).want(t, "S2: the retention counts from here", http.StatusCreated, true)
		handler.wantRuns(t, "I1", 2)
	})
}
