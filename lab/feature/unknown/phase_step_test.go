package unknown_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

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
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *ticket) error {
			if failing {
				return onceward.NotExecuted(errDown)
			}
			return charge(ctx, key, o)
		}))
		call := onceward.Call{Scope: "shop", Key: "k"}
		if _, err := o.Do(t.Context(), b.guard, call, ticket{Item: "a book"}); !errors.Is(err, onceward.ErrInProgress) {
			t.Errorf("the error is %v, want that the operation is in progress", err)
		}
		failing = false
		if got := b.resume(o); got.Finished != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		result, err := o.Do(t.Context(), b.guard, call, ticket{Item: "a book"})
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
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error {
			if failing {
				failing = false
				return errDown
			}
			return nil
		}))
		b.want(b.post(o, "k"), http.StatusConflict, `"code":"in-progress"`)
		b.leapTo(b.record("k").LeaseUntil)
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm")
	})
}

// TestTheFirstStepFails leaves nothing behind on stores with transactions: the retry starts afresh.
func TestTheFirstStepFails(t *testing.T) {
	t.Parallel()
	onTransactions(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", func(ctx context.Context, o *ticket) error {
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
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error { return errDown }))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if got := b.resume(o); got.Unknown != 1 {
			t.Errorf("the resumer reports %+v, want one that became unknown", got)
		}
		rec := b.record("k")
		if rec.State != store.StateUnknown || !strings.Contains(rec.LastError,
			"given up after 4 attempts: down for a moment") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
		b.wantTrace("seat confirm confirm confirm confirm")
	})
}

// TestFinish ends an operation early, in each kind of step, and the answer is stored.
func TestFinish(t *testing.T) {
	t.Parallel()
	declined := phase.Finish(phase.JSON(http.StatusPaymentRequired, "declined"))
	for name, steps := range map[string]func(b *bench) []phase.Step[ticket]{
		"local": func(b *bench) []phase.Step[ticket] {
			return []phase.Step[ticket]{b.local("seat", func(context.Context, *ticket) error { return declined })}
		},
		"external": func(b *bench) []phase.Step[ticket] {
			return []phase.Step[ticket]{
				b.local("seat", takeSeat), b.call("charge", func(context.Context, string, *ticket) error { return declined }),
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
		h := o.Handler(b.guard, func(*http.Request) (*ticket, error) { return nil, errors.New("which book?") })
		b.want(b.send(h, "k"), http.StatusBadRequest, "which book?")
		b.want(b.send(h, "k"), http.StatusBadRequest, "which book?")
		b.wantTrace("")
	})
}

// TestDataIsLimited refuses to carry more than was agreed.
func TestDataIsLimited(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat), b.local("read", func(_ context.Context, o *ticket) error {
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

// TestAStepThatTheDatabaseRefuses is not repeated for ever: that its commit is refused, here by a deferred key, is a
// failure of the step, not of the store.
func TestAStepThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	onTransactions(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", func(ctx context.Context, _ *ticket) error {
			for _, statement := range []string{
				`CREATE TABLE parent (number INTEGER PRIMARY KEY)`,
				`CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`,
			} {
				if _, err := onceward.Tx(ctx).ExecContext(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		}), b.local("confirm", func(ctx context.Context, _ *ticket) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO child VALUES (1)`)
			return err
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if got := b.resume(o); got.Unknown != 1 {
			t.Errorf("the resumer reports %+v, want one that became unknown", got)
		}
		if rec := b.record("k"); rec.State != store.StateUnknown ||
			!strings.Contains(rec.LastError, "given up after 4 attempts: onceward: the database refused the work") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
		b.wantTrace("seat confirm confirm confirm confirm")
	})
}

// TestTooMuchToStartWith: nothing was done, so the key is released.
func TestTooMuchToStartWith(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		d := b.define(b.local("seat", takeSeat)).Definition
		d.MaxData = 20
		o := phase.Must(phase.New(d))
		b.want(b.post(o, "k"), http.StatusServiceUnavailable, "not-executed")
		if rec := b.record("k"); rec.State != store.StateRetryable || !strings.Contains(rec.LastError, "the limit is 20") {
			t.Errorf("the record is %s: %s", rec.State, rec.LastError)
		}
	})
}

// TestAPanicInAStep goes on to the caller, and does not end the operation.
func TestAPanicInAStep(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		panicking := true
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *ticket) error {
			if panicking {
				panicking = false
				panic("a nil map")
			}
			return nil
		}))
		func() {
			defer func() {
				if p := recover(); p != "a nil map" {
					t.Errorf("recovered %v, want the panic of the step", p)
				}
			}()
			b.post(o, "k")
		}()
		if got := b.resume(o); got.Finished != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm")
	})
}

// TestLostBeforeTheStart: without a recovery point nothing was done, and the resumer lets the key go.
func TestLostBeforeTheStart(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.define(b.local("seat", takeSeat))
		// A process that died between its reservation and its first step leaves this.
		fingerprint := b.fingerprintOf(o)
		_, err := b.store.Reserve(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "shop", Key: "k"}, Operation: o.Name, Fingerprints: []store.Fingerprint{fingerprint},
			OnLost: store.LostResume, Nonce: store.Nonce{1}, Lease: time.Hour, Retention: time.Hour,
			DownstreamSecret: b.downstreamSecret(),
		})
		if err != nil {
			t.Fatal(err)
		}
		b.leapTo(b.record("k").LeaseUntil)
		if got := b.resume(o); got.Finished != 1 {
			t.Errorf("the resumer reports %+v", got)
		}
		if rec := b.record("k"); rec.State != store.StateRetryable {
			t.Errorf("the record is %s, want it released", rec.State)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat seat")
	})
}
