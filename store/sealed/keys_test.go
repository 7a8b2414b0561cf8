package sealed_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/sealed"
)

var nonces atomic.Uint32

// guarded is a handler that counts how often it runs.
func guarded(t *testing.T, s store.Store) (send func(body string) *httptest.ResponseRecorder, runs *atomic.Int32) {
	t.Helper()
	runs = new(atomic.Int32)
	guard, err := onceward.New(s, onceward.Config{
		Scope:  func(*http.Request) (string, error) { return "acme", nil },
		Secret: []byte(strings.Repeat("s", 32)),
	})
	must(t, err)
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.Header().Set("Location", "/payments/7")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"card":"4242 4242 4242 4242"}`))
	}), onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("POST /payments"))
	return func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}, runs
}

// TestReplay: over a guard, a sealed answer replays byte for byte.
func TestReplay(t *testing.T) {
	t.Parallel()
	send, runs := guarded(t, open(t, memory.New(), ring(1)))
	first, again := send("{}"), send("{}")
	if first.Code != http.StatusCreated || again.Code != first.Code || again.Body.String() != first.Body.String() ||
		again.Header().Get("Location") != "/payments/7" || runs.Load() != 1 {
		t.Errorf("%d %q, then %d %q after %d runs", first.Code, first.Body, again.Code, again.Body, runs.Load())
	}
}

// TestWithoutTheKey: a record whose key is gone, and one that a program without a ring meets, is an error and never
// executed; another request under its key is still a mismatch, and the key that comes back opens it.
func TestWithoutTheKey(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	send, _ := guarded(t, open(t, inside, ring(1)))
	first := send("{}")
	for name, s := range map[string]store.Store{"the key is gone": open(t, inside, ring(2)), "there is no ring": inside} {
		send, runs := guarded(t, s)
		if got := send("{}"); got.Code != http.StatusInternalServerError || runs.Load() != 0 ||
			!strings.Contains(got.Body.String(), "record-unreadable") {
			t.Errorf("%s: %d %s, %d runs", name, got.Code, got.Body, runs.Load())
		}
		if got := send(`{"amount":2}`); got.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s: another request got %d %s", name, got.Code, got.Body)
		}
	}
	send, runs := guarded(t, open(t, inside, ring(2, 1)))
	if got := send("{}"); got.Body.String() != first.Body.String() || runs.Load() != 0 {
		t.Errorf("the key is back: %d %s", got.Code, got.Body)
	}
}

// TestResumeWithoutTheKey: an operation whose recovery data cannot be opened is not resumed. Its grant is given back, so
// that it goes on at once when the key is back.
func TestResumeWithoutTheKey(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, s store.Store, c store.Claim, clock *stopped){
		"resumed": func(_ *testing.T, _ store.Store, _ store.Claim, clock *stopped) { clock.advance(time.Hour) },
		"retried": func(t *testing.T, s store.Store, c store.Claim, _ *stopped) {
			must(t, s.Release(t.Context(), c, "later"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			inside := memory.New(memory.WithClock(clock.read))
			s := open(t, inside, ring(1))
			c := reserve(t, s, resumable)
			must(t, s.Checkpoint(t.Context(), c, store.Checkpoint{Point: "charged", Data: []byte("carried")}))
			lose(t, s, c, clock)
			gone := open(t, inside, ring(2))
			for range 3 {
				if v, err := gone.Reserve(t.Context(), reservation(resumable)); !errors.Is(err, store.ErrUnreadable) ||
					v.Decision != 0 {
					t.Fatalf("without the key: %s, %v", v.Decision, err)
				}
				clock.advance(time.Millisecond)
			}
			v, err := s.Reserve(t.Context(), reservation(resumable))
			if err != nil || v.Decision != store.DecisionExecute || string(v.Record.Data) != "carried" ||
				v.Record.Point != "charged" {
				t.Errorf("the key is back: %s at %q with %q, %v", v.Decision, v.Record.Point, v.Record.Data, err)
			}
		})
	}
}

// TestFencedAnswer: an owner that lost to a resolution gets the stored answer, opened; if that cannot be, it gets none.
func TestFencedAnswer(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	c := completed(t, open(t, inside, ring(1)))
	other := &store.Completion{Response: store.Response{Status: 500}}
	for id, want := range map[uint32]bool{1: true, 2: false} {
		_, err := open(t, inside, ring(id)).Complete(t.Context(), c, other)
		var fenced *store.FencedError
		if !errors.As(err, &fenced) || (fenced.Response != nil) != want {
			t.Fatalf("key %d: %v", id, err)
		}
		if want && !fenced.Response.Equal(&testAnswer) {
			t.Errorf("the refusal shows %+v", fenced.Response)
		}
	}
}

// TestPlainRecords: what was stored before is read, unless that is refused, and resealing ends it.
func TestPlainRecords(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	c := completed(t, inside)
	strict := ring(1)
	strict.RefusePlain = true
	read := func(config sealed.Config) error {
		rec, err := open(t, inside, config).Get(t.Context(), testID)
		if err == nil && (!rec.Response.Equal(&testAnswer) || string(rec.Data) != `{"charge":"ch_1"}`) {
			t.Errorf("the record holds %+v", rec)
		}
		return err
	}
	if err := read(ring(1)); err != nil {
		t.Errorf("a plain record: %v", err)
	}
	if err := read(strict); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("a plain record that is refused: %v", err)
	}
	report := reseal(t, open(t, inside, ring(1)))
	if report.Resealed != 1 || report.Plain != (sealed.Use{}) || report.InUse[1].Records != 1 {
		t.Errorf("resealing reports %+v", report)
	}
	if err := read(strict); err != nil {
		t.Errorf("the record that was resealed: %v", err)
	}
	if _, err := open(t, inside, ring(1)).Complete(t.Context(), c, &store.Completion{Response: testAnswer}); err != nil {
		t.Errorf("S6: the settlement that is repeated: %v", err)
	}
}

func reseal(t *testing.T, s *sealed.Store) sealed.Report {
	t.Helper()
	r, err := sealed.NewResealer(s, sealed.ResealerConfig{Batch: 2})
	must(t, err)
	report, err := r.RunOnce(t.Context())
	must(t, err)
	return report
}

// TestRotation: records of an old key are readable until they are resealed, then the old key is not needed, and neither
// owners nor repetitions notice.
func TestRotation(t *testing.T) {
	t.Parallel()
	clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	inside := memory.New(memory.WithClock(clock.read))
	old := open(t, inside, ring(1))
	settled := completed(t, old)
	var claims []store.Claim
	for _, key := range []string{"a", "b", "c", "d"} {
		c := reserve(t, old, resumable, func(r *store.Reservation) { r.Key = key })
		c.Key = key
		must(t, old.Checkpoint(t.Context(), c, store.Checkpoint{Point: "p", Data: []byte("carried " + key)}))
		claims = append(claims, c)
	}
	both := open(t, inside, ring(2, 1))
	report := reseal(t, both)
	if report.Records != 5 || report.Resealed != 5 || report.NeedsKey(1) || report.InUse[2].Records != 5 {
		t.Errorf("resealing reports %+v", report)
	}
	if report := reseal(t, both); report.Resealed != 0 || report.InUse[2].Records != 5 {
		t.Errorf("resealing again reports %+v", report)
	}
	only := open(t, inside, ring(2))
	if rec, err := only.Get(t.Context(), testID); err != nil || !rec.Response.Equal(&testAnswer) {
		t.Errorf("the old key is gone: %v", err)
	}
	if _, err := old.Complete(t.Context(), settled, &store.Completion{Response: testAnswer}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a node that cannot open what is stored: %v", err)
	}
	if _, err := both.Complete(t.Context(), settled, &store.Completion{Response: testAnswer}); err != nil {
		t.Errorf("S6: the settlement that is repeated: %v", err)
	}
	for _, c := range claims {
		must(t, only.Checkpoint(t.Context(), c, store.Checkpoint{Point: "q"}))
		if rec, err := only.Get(t.Context(), c.ID); err != nil || string(rec.Data) != "carried "+c.Key {
			t.Errorf("%s carries %q, %v", c.Key, rec.Data, err)
		}
	}
	report = reseal(t, open(t, inside, ring(3)))
	if report.Resealed != 0 || report.Unreadable != 5 || !report.NeedsKey(2) {
		t.Errorf("resealing without the key reports %+v", report)
	}
}

// TestResealersTogether: many nodes reseal at once while an owner works, and nothing is lost.
func TestResealersTogether(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	old, both := open(t, inside, ring(1)), open(t, inside, ring(2, 1))
	c := reserve(t, old, resumable)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 4)
	for range 4 {
		go func() {
			r, err := sealed.NewResealer(both, sealed.ResealerConfig{Interval: time.Millisecond})
			if err == nil {
				err = r.Run(ctx)
			}
			done <- err
		}()
	}
	var last string
	for i := range 200 {
		last = strings.Repeat("x", i)
		must(t, old.Checkpoint(t.Context(), c, store.Checkpoint{Point: "p", Data: []byte(last)}))
		if rec, err := both.Get(t.Context(), testID); err != nil || string(rec.Data) != last {
			t.Fatalf("after %d checkpoints: %d bytes, %v", i, len(rec.Data), err)
		}
	}
	stop()
	for range 4 {
		must(t, <-done)
	}
	if report := reseal(t, both); report.NeedsKey(1) {
		t.Errorf("resealing reports %+v", report)
	}
	if rec, err := open(t, inside, ring(2)).Get(t.Context(), testID); err != nil || string(rec.Data) != last {
		t.Errorf("%d bytes, %v", len(rec.Data), err)
	}
}

// TestRedact: what is stored and replayed is redacted, what the first caller gets is not.
func TestRedact(t *testing.T) {
	t.Parallel()
	config := ring(1)
	config.Redact = func(r *store.Response) {
		for i := range r.Body {
			if r.Body[i] == '4' {
				r.Body[i] = '*'
			}
		}
		r.Header = r.Header[:0]
	}
	send, runs := guarded(t, open(t, memory.New(), config))
	first, again := send("{}"), send("{}")
	if !strings.Contains(first.Body.String(), "4242") || strings.Contains(again.Body.String(), "4") ||
		!strings.Contains(again.Body.String(), "*2*2") || again.Header().Get("Location") != "" || runs.Load() != 1 {
		t.Errorf("%q, then %q %v", first.Body, again.Body, again.Header())
	}
}

// TestEvidence: late completions and external events are sealed, and opened in their places alone.
func TestEvidence(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	s := open(t, inside, ring(1))
	late := store.LateCompletion{Claim: store.Claim{ID: testID, Attempt: 3}, Response: testAnswer}
	must(t, s.AddLateCompletion(t.Context(), late))
	event := store.ExternalEvent{Source: "stripe", EventID: "evt_1", Scope: "acme", Subject: "ch_1", Body: []byte("4242")}
	if added, err := s.AddExternalEvent(t.Context(), event); err != nil || !added {
		t.Fatal(added, err)
	}
	filter := store.ExternalEventFilter{Source: "stripe", Scope: "acme", Subjects: []string{"ch_1"}}
	raw, err := inside.ExternalEvents(t.Context(), filter)
	if err != nil || !store.IsSealed(raw[0].Body) {
		t.Errorf("the event is kept as %q, %v", raw[0].Body, err)
	}
	if events, err := s.ExternalEvents(t.Context(), filter); err != nil || string(events[0].Body) != "4242" {
		t.Errorf("the event comes back as %v, %v", events, err)
	}
	if kept, err := inside.LateCompletions(t.Context(), testID); err != nil || !kept[0].Response.IsSealed() {
		t.Errorf("the late completion is kept as %v, %v", kept, err)
	}
	gone := open(t, inside, ring(2))
	if _, err := gone.ExternalEvents(t.Context(), filter); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("an event without the key: %v", err)
	}
	all, err := gone.LateCompletions(t.Context(), testID)
	if err != nil || len(all) != 1 || !all[0].Response.NotStored || all[0].Response.Status != 201 {
		t.Errorf("a late completion without the key: %v, %v", all, err)
	}
}
