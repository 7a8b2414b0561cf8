package phase_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

func TestStepsRunOnce(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat), b.call("charge", charge), b.local("confirm", confirm))
		for range 2 {
			b.want(b.post(o, "k"), http.StatusCreated, `{"Item":"a book","Seat":"12A","Charge":"ch_1"}`)
		}
		b.wantTrace("seat charge confirm")
	})
}

func TestDo(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *order) error {
			if failing {
				return onceward.NotExecuted(errDown)
			}
			return charge(ctx, key, o)
		}))
		call := onceward.Call{Scope: "shop", Key: "k"}
		if _, err := o.Do(t.Context(), b.guard, call, order{Item: "a book"}); !errors.Is(err, onceward.ErrInProgress) {
			t.Errorf("the error is %v, want that the operation is in progress", err)
		}
		failing = false
		if got := b.resume(o); got.Finished != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		result, err := o.Do(t.Context(), b.guard, call, order{Item: "a book"})
		if err != nil || !result.Replayed || string(result.Value) != `{"Item":"a book","Seat":"12A","Charge":"ch_1"}` {
			t.Errorf("the result is %s (replayed: %t), %v", result.Value, result.Replayed, err)
		}
		b.wantTrace("seat charge charge")
	})
}

// TestAStepThatFailsOnce leaves the caller with a conflict, and is gone on with by the caller's retry.
func TestAStepThatFailsOnce(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
			if failing {
				failing = false
				return errDown
			}
			return nil
		}))
		b.want(b.post(o, "k"), http.StatusConflict, `"code":"in-progress"`)
		b.await(b.record("k").LeaseUntil)
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm")
	})
}

// TestTheFirstStepFails leaves nothing behind on stores with transactions: the retry starts afresh.
func TestTheFirstStepFails(t *testing.T) {
	t.Parallel()
	onTransactions(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", func(ctx context.Context, o *order) error {
			if failing {
				failing = false
				return errDown
			}
			return takeSeat(ctx, o)
		}))
		b.want(b.post(o, "k"), http.StatusServiceUnavailable, `"code":"not-executed"`)
		if rec := b.record("k"); rec.State != store.StateRetryable || rec.LastError != errDown.Error() {
			t.Errorf("the record is %s: %s, want it released with the reason", rec.State, rec.LastError)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat seat")
	})
}

func TestAStepThatNeverSucceeds(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error { return errDown }))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if got := b.resume(o); got.Unknown != 1 {
			t.Errorf("the resumer reports %+v, want one that became unknown", got)
		}
		rec := b.record("k")
		if rec.State != store.StateUnknown || !strings.Contains(rec.LastError, "given up after 4 tries: down for a moment") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
		b.wantTrace("seat confirm confirm confirm confirm")
	})
}

// TestFinish ends an operation early, in each kind of step, and the answer is stored.
func TestFinish(t *testing.T) {
	t.Parallel()
	declined := phase.Finish(phase.JSON(http.StatusPaymentRequired, "declined"))
	for name, steps := range map[string]func(b *bench) []phase.Step[order]{
		"local": func(b *bench) []phase.Step[order] {
			return []phase.Step[order]{b.local("seat", func(context.Context, *order) error { return declined })}
		},
		"external": func(b *bench) []phase.Step[order] {
			return []phase.Step[order]{
				b.local("seat", takeSeat), b.call("charge", func(context.Context, string, *order) error { return declined }),
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				o := b.define(append(steps(b), b.local("confirm", confirm))...)
				b.want(b.post(o, "k"), http.StatusPaymentRequired, "declined")
				w := b.post(o, "k")
				b.want(w, http.StatusPaymentRequired, "declined")
				if w.Header().Get("Idempotent-Replayed") != "true" {
					t.Error("the second answer is no replay")
				}
			})
		})
	}
}

func TestAStartThatFails(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat))
		h := o.Handler(b.guard, func(*http.Request) (*order, error) { return nil, errors.New("which book?") })
		b.want(b.send(h, "k"), http.StatusBadRequest, "which book?")
		b.want(b.send(h, "k"), http.StatusBadRequest, "which book?")
		b.wantTrace("")
	})
}

// TestDataIsLimited refuses to carry more than was agreed.
func TestDataIsLimited(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat), b.local("read", func(_ context.Context, o *order) error {
			o.Item = strings.Repeat("x", 70_000)
			return nil
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.resume(o)
		if rec := b.record("k"); rec.State != store.StateUnknown || !strings.Contains(rec.LastError, "the limit is 65536") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
	})
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	answer := func(*order) phase.Answer { return phase.Answer{} }
	seat := phase.Local("seat", takeSeat)
	for name, d := range map[string]phase.Definition[order]{
		"no name":           {Steps: []phase.Step[order]{seat}, Answer: answer},
		"no steps":          {Name: "n", Answer: answer},
		"no answer":         {Name: "n", Steps: []phase.Step[order]{seat}},
		"two of one name":   {Name: "n", Steps: []phase.Step[order]{seat, seat}, Answer: answer},
		"a nameless step":   {Name: "n", Steps: []phase.Step[order]{phase.Local("", takeSeat)}, Answer: answer},
		"an empty step":     {Name: "n", Steps: []phase.Step[order]{{}}, Answer: answer},
		"no function":       {Name: "n", Steps: []phase.Step[order]{phase.Local[order]("seat", nil)}, Answer: answer},
		"a repeated local":  {Name: "n", Steps: []phase.Step[order]{seat.Repeat()}, Answer: answer},
		"a pause of years":  {Name: "n", Steps: []phase.Step[order]{seat}, Answer: answer, MinBackoff: math.MaxInt64},
		"a negative number": {Name: "n", Steps: []phase.Step[order]{seat}, Answer: answer, MaxAttempts: -1},
	} {
		if _, err := phase.New(d); err == nil {
			t.Errorf("%s: the definition was accepted", name)
		}
	}
}
