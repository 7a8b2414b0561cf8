package unknown_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// sendBody is send with a body.
func (b *bench) sendBody(h http.Handler, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var errNoSuchItem = errors.New("there is no such item")

// TestAStartThatRejects is E5: its error keeps nothing, and the corrected request executes under the same key.
func TestAStartThatRejects(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat))
		for name, test := range map[string]struct {
			err    error
			status int
		}{
			"plain":  {errNoSuchItem, http.StatusBadRequest},
			"answer": {onceward.Rejected(phase.Finish(phase.JSON(422, errNoSuchItem.Error()))), 422},
		} {
			h := o.Handler(b.guard, func(r *http.Request) (*ticket, error) {
				item, err := io.ReadAll(r.Body)
				if string(item) == "nothing" {
					err = test.err
				}
				return &ticket{Item: string(item)}, err
			})
			for range 2 {
				b.want(b.sendBody(h, name, "nothing"), test.status, errNoSuchItem.Error())
			}
			b.want(b.sendBody(h, name, "a book"), http.StatusCreated, "a book")
			b.want(b.sendBody(h, name, "a book"), http.StatusCreated, "a book")
		}
		b.wantTrace("seat seat")
	})
}

// TestALocalStepThatRejects: as long as no recovery point is stored, nothing is kept. After that the answer is.
func TestALocalStepThatRejects(t *testing.T) {
	t.Parallel()
	refused := onceward.Rejected(phase.Finish(phase.JSON(http.StatusConflict, "taken")))
	refuse := func(_ context.Context, o *ticket) error {
		if o.Item == "nothing" {
			return refused
		}
		return nil
	}
	onTransactions(t, func(t *testing.T, b *bench) {
		first := b.define(phase.Local("seat", refuse)).Handler(b.guard, start)
		b.want(b.sendBody(first, "first", "nothing"), http.StatusConflict, "taken")
		b.want(b.sendBody(first, "first", "a book"), http.StatusCreated, "a book")

		second := b.define(b.local("seat", takeSeat), phase.Local("check", refuse)).Handler(b.guard, start)
		b.want(b.sendBody(second, "second", "nothing"), http.StatusConflict, "taken")
		if rec := b.record("second"); rec.State != store.StateCompleted {
			t.Errorf("E5: a step was done, and the record is %s, want completed", rec.State)
		}
		b.want(b.sendBody(second, "second", "a book"), http.StatusUnprocessableEntity, "mismatch")

		call := onceward.Call{Scope: "shop", Key: "do", Payload: []byte("nothing")}
		plain := b.define(phase.Local("seat", func(_ context.Context, o *ticket) error {
			if o.Item == "nothing" {
				return onceward.Rejected(errNoSuchItem)
			}
			return nil
		}))
		if _, err := plain.Do(t.Context(), b.guard, call, ticket{Item: "nothing"}); !errors.Is(err, errNoSuchItem) {
			t.Errorf("E5: Do returned %v", err)
		}
		call.Payload = []byte("a book")
		if _, err := plain.Do(t.Context(), b.guard, call, ticket{Item: "a book"}); err != nil {
			t.Errorf("E5: the corrected call got %v", err)
		}
	})
}

// TestAPlainRejectionEndsTheOperation: an error of onceward.Rejected without an answer is 400 with its text, which is
// kept if a recovery point was reached, as by the intent of a call. It is not retried, and nothing becomes unknown.
func TestAPlainRejectionEndsTheOperation(t *testing.T) {
	t.Parallel()
	bad := func(_ context.Context, o *ticket) error {
		if o.Item == "nothing" {
			return onceward.Rejected(errNoSuchItem)
		}
		return nil
	}
	onStores(t, func(t *testing.T, b *bench) {
		_, shares := b.store.(store.TxCheckpointer)
		calls := 0
		call := phase.External("call", func(ctx context.Context, _ string, o *ticket) error { calls++; return bad(ctx, o) })
		for name, test := range map[string]struct {
			o    *phase.Operation[ticket]
			kept bool
		}{
			"first":    {b.define(phase.Local("seat", bad)), !shares},
			"second":   {b.define(b.local("seat", takeSeat), phase.Local("check", bad)), true},
			"external": {b.define(call), true},
			"repeated": {b.define(call.Repeat()), true},
		} {
			h := test.o.Handler(b.guard, start)
			b.want(b.sendBody(h, name, "nothing"), http.StatusBadRequest, errNoSuchItem.Error())
			want := store.StateExpired
			if test.kept {
				want = store.StateCompleted
			}
			if rec := b.record(name); rec.State != want {
				t.Errorf("E5: %s: the record is %s, want %s: %s", name, rec.State, want, rec.LastError)
			}
			b.want(b.sendBody(h, name, "nothing"), http.StatusBadRequest, errNoSuchItem.Error())

			message := onceward.Call{Scope: "shop", Key: "do " + name, Payload: []byte("nothing")}
			_, err := test.o.Do(t.Context(), b.guard, message, ticket{Item: "nothing"})
			_, again := test.o.Do(t.Context(), b.guard, message, ticket{Item: "nothing"})
			if test.kept != errors.Is(again, onceward.ErrStoredFailure) || test.kept == onceward.IsRejected(err) {
				t.Errorf("E5: %s: Do returned %v, then %v", name, err, again)
			}
			if err == nil || again == nil || err.Error() != errNoSuchItem.Error() || again.Error() != err.Error() {
				t.Errorf("E5: %s: Do returned %v, then %v", name, err, again)
			}
		}
		if calls != 4 {
			t.Errorf("E3: %d calls, want one of each operation", calls)
		}
	})
}

// TestARejectionAfterALostCall is no end: the attempt that was lost may have made the call.
func TestARejectionAfterALostCall(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		calls := 0
		o := b.define(phase.External("call", func(context.Context, string, *ticket) error {
			if calls++; calls == 1 {
				return errNoSuchItem // it is not known whether it was made
			}
			return onceward.Rejected(errNoSuchItem)
		}).Repeat())
		b.post(o, "k")
		b.resume(o)
		if rec := b.record("k"); rec.State != store.StateUnknown || calls < 2 {
			t.Errorf("E3: the record is %s after %d calls", rec.State, calls)
		}
	})
}

// TestACarriedValueIsNotPhased: the route was one of a handler that carries and resumes, and is phased now. Its call
// may be out, and is not made again.
func TestACarriedValueIsNotPhased(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		calls := 0
		before := b.guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if err := op.Carry(r.Context(), "p1"); err != nil {
				t.Error(err)
			}
			calls++
			op.Suspend(0) // as if its lease had been lost
		}, onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(store.LostResume), onceward.OperationName("POST /orders"))
		b.sendBody(before, "k", "a book")
		after := b.define(phase.External("charge", func(context.Context, string, *ticket) error { calls++; return nil })).
			Handler(b.guard, start)
		for _, status := range []int{http.StatusInternalServerError, http.StatusConflict} {
			b.want(b.sendBody(after, "k", "a book"), status, "outcome-unknown")
		}
		rec := b.record("k")
		if got, err := onceward.Carried[string](&rec); calls != 1 || err != nil || got != "p1" {
			t.Errorf("I1: %d calls; the record is %s and carries %q, error %v", calls, rec.State, got, err)
		}
	})
}

// TestATransactionThatRejects: nothing of it is kept, unless an earlier attempt was unknown, whose request may still
// arrive; and a duplicate that waits for it executes, whatever its body.
func TestATransactionThatRejects(t *testing.T) {
	t.Parallel()
	onTransactions(t, func(t *testing.T, b *bench) {
		began, gate := make(chan struct{}, 1), make(chan struct{})
		reject := func(w http.ResponseWriter, r *http.Request) {
			if item, _ := io.ReadAll(r.Body); string(item) != "nothing" {
				w.WriteHeader(http.StatusCreated)
				return
			}
			began <- struct{}{}
			<-gate
			onceward.FromContext(r.Context()).Reject()
			http.Error(w, "no such item", http.StatusBadRequest)
		}
		name := onceward.OperationName("POST /orders")
		unknown := b.guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Unknown()
		}, onceward.Reserved(onceward.FailureUnknown), name)
		b.sendBody(unknown, "k", "nothing")
		claim := store.Claim{ID: store.ID{Scope: "shop", Key: "k"}, Attempt: b.record("k").Attempt}
		if err := b.store.(store.Reconciler).ResolveNotExecuted(t.Context(), claim, "never arrived"); err != nil {
			t.Fatal(err)
		}
		h := b.guard.HandlerFunc(reject, onceward.Transactional(), name, onceward.InFlightWait(await.Limit))
		for _, key := range []string{"k", "fresh"} {
			first := make(chan *httptest.ResponseRecorder, 2)
			go func() { first <- b.sendBody(h, key, "nothing") }()
			<-began
			if key == "fresh" {
				go func() { first <- b.sendBody(h, key, "a book") }()
			}
			gate <- struct{}{}
			if key == "k" {
				b.want(<-first, http.StatusBadRequest, "no such item")
				b.want(b.sendBody(h, key, "a book"), http.StatusUnprocessableEntity, "mismatch")
				continue
			}
			codes := map[int]bool{(<-first).Code: true, (<-first).Code: true}
			if !codes[http.StatusBadRequest] || !codes[http.StatusCreated] {
				t.Errorf("E5: the answers are %v, want 400 for the first, 201 for the one that waited", codes)
			}
		}
	})
}
