package phase_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// deafStore loses the heartbeats of its first owner, as if that was paused.
type deafStore struct {
	*memory.Store
	deaf atomic.Bool
}

// Extend implements [store.Store].
func (s *deafStore) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	if s.deaf.Load() {
		return store.ErrUnavailable
	}
	return s.Store.Extend(ctx, c, lease)
}

// paused is an operation whose first attempt is paused in its call until it is let go, past its lease.
type paused struct {
	*bench
	store   *deafStore
	arrived chan struct{}
	letGo   chan struct{}
	answer  chan *httptest.ResponseRecorder
	calls   atomic.Int32
	keys    chan string
}

// pauseInCall starts an operation and returns when its owner is paused and its lease is over.
func pauseInCall(t *testing.T, with func(phase.Step[order]) phase.Step[order]) (*paused, *phase.Operation[order]) {
	t.Helper()
	store := &deafStore{Store: memory.New()}
	p := &paused{
		bench: newBench(t, store), store: store, arrived: make(chan struct{}), letGo: make(chan struct{}),
		answer: make(chan *httptest.ResponseRecorder, 1), keys: make(chan string, 10),
	}
	step := p.call("charge", func(ctx context.Context, key string, o *order) error {
		p.keys <- key
		if p.calls.Add(1) == 1 {
			close(p.arrived)
			<-p.letGo
		}
		return charge(ctx, key, o)
	})
	o, err := phase.New(phase.Definition[order]{
		Name: "POST /orders", MinBackoff: quickly,
		Steps:   []phase.Step[order]{p.local("seat", takeSeat), with(step), p.local("confirm", confirm)},
		Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
		Options: []onceward.Option{onceward.Lease(100 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	store.deaf.Store(true)
	go func() { p.answer <- p.post(o, "k") }()
	await(t, "the call", p.arrived)
	p.await(p.record("k").LeaseUntil)
	store.deaf.Store(false)
	return p, o
}

// TestTakeOverRepeats: the other system recognises the key, so the call is made again, under the same one.
func TestTakeOverRepeats(t *testing.T) {
	t.Parallel()
	p, o := pauseInCall(t, phase.Step[order].Repeat)
	p.want(p.post(o, "k"), http.StatusCreated, "ch_1")
	if first, second := await(t, "the first call", p.keys), await(t, "the second call", p.keys); first != second {
		t.Errorf("the calls had the keys %s and %s", first, second)
	}
	close(p.letGo)
	p.want(await(t, "the first owner's answer", p.answer), http.StatusCreated, "ch_1") // the first owner is fenced, and sends the stored answer
	p.wantTrace("seat charge charge confirm")
}

// TestTakeOverIsUnknown: by default nobody repeats a call that may have been made.
func TestTakeOverIsUnknown(t *testing.T) {
	t.Parallel()
	p, o := pauseInCall(t, func(s phase.Step[order]) phase.Step[order] { return s })
	p.want(p.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
	if rec := p.record("k"); !strings.Contains(rec.LastError, "lost in step charge") {
		t.Errorf("the reason is %q", rec.LastError)
	}
	p.want(p.post(o, "k"), http.StatusConflict, "outcome-unknown")
	close(p.letGo)
	p.want(await(t, "the first owner's answer", p.answer), http.StatusInternalServerError, "outcome-unknown")
	p.wantTrace("seat charge")
}

func TestTakeOverLooksFirst(t *testing.T) {
	t.Parallel()
	found := func(_ context.Context, key string, o *order) error {
		o.Charge = "found under " + key[:4]
		return nil
	}
	missing := func(context.Context, string, *order) error { return phase.ErrNotFound }
	for name, c := range map[string]struct {
		with   func(phase.Step[order]) phase.Step[order]
		status int
		body   string
		trace  string
	}{
		"found": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(found) },
			http.StatusCreated, "found under", "seat charge confirm",
		},
		"not found": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(missing) },
			http.StatusInternalServerError, "outcome-unknown", "seat charge",
		},
		"not found, and may be repeated": {
			func(s phase.Step[order]) phase.Step[order] { return s.LookUp(missing).Repeat() },
			http.StatusCreated, "ch_1", "seat charge charge confirm",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, o := pauseInCall(t, c.with)
			p.want(p.post(o, "k"), c.status, c.body)
			close(p.letGo)
			await(t, "the first owner's answer", p.answer)
			p.wantTrace(c.trace)
		})
	}
}

// TestChangedSteps: a program leaves an operation alone whose stored steps it does not know, and says so. Those that
// know them go on.
func TestChangedSteps(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]func(b *bench) *phase.Operation[order]{
		"renamed": func(b *bench) *phase.Operation[order] { return b.define(b.local("place", takeSeat)) },
		"reordered": func(b *bench) *phase.Operation[order] {
			return b.define(b.local("confirm", confirm), b.local("seat", takeSeat))
		},
		"removed at the end": func(b *bench) *phase.Operation[order] { return b.define(b.local("seat", takeSeat)) },
		"one put between": func(b *bench) *phase.Operation[order] {
			return b.define(b.local("seat", takeSeat), b.local("insure", confirm), b.local("confirm", confirm))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStores(t, func(t *testing.T, b *bench) {
				failing := true
				known := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
					if failing {
						return errDown
					}
					return nil
				}))
				b.want(b.post(known, "k"), http.StatusConflict, "in-progress")
				b.await(b.record("k").LeaseUntil)
				b.wantLeftAlone(changed(b), "have changed under a stored operation")
				failing = false
				b.want(b.post(known, "k"), http.StatusCreated, "12A")
				b.wantTrace("seat confirm confirm")
			})
		})
	}
}

// wantLeftAlone checks that neither a retry nor a resumer with this definition touches the operation k.
func (b *bench) wantLeftAlone(o *phase.Operation[order], why string) {
	b.Helper()
	before := b.record("k")
	b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
	var log lockedBuffer
	resumer := b.resumer(phase.ResumerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, o)
	if got := b.once(resumer); got != (phase.Resumed{Strange: 1}) || !strings.Contains(log.String(), why) {
		b.Errorf("the resumer reports %+v, and logs %s", got, log.String())
	}
	rec := b.record("k")
	if rec.State != store.StateInProgress || string(rec.Data) != string(before.Data) || rec.Point != before.Point {
		b.Errorf("the record is %s at %q with %s, want it as it was with %s", rec.State, rec.Point, rec.Data, before.Data)
	}
}

// TestAddedSteps lets a new version of the program add steps at the end.
func TestAddedSteps(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		old := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error { return errDown }))
		b.want(b.post(old, "k"), http.StatusConflict, "in-progress")
		b.await(b.record("k").LeaseUntil)
		next := b.define(b.local("seat", takeSeat), b.local("confirm", confirm), b.local("mail", confirm))
		b.want(b.post(next, "k"), http.StatusCreated, "12A")
		b.wantTrace("seat confirm confirm mail")
	})
}

// TestAPanicInAStep goes on to the caller, and does not end the operation.
func TestAPanicInAStep(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		panicking := true
		o := b.define(b.local("seat", takeSeat), b.local("confirm", func(context.Context, *order) error {
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
			OnLost: store.LostResume, Nonce: store.Nonce{1}, Lease: time.Millisecond, Retention: time.Hour,
			DownstreamSecret: b.downstreamSecret(),
		})
		if err != nil {
			t.Fatal(err)
		}
		b.await(b.record("k").LeaseUntil)
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

// fingerprintOf is that of the request that post sends.
func (b *bench) fingerprintOf(o *phase.Operation[order]) store.Fingerprint {
	b.Helper()
	b.want(b.post(o, "another"), http.StatusCreated, "12A")
	return b.record("another").Fingerprint
}
