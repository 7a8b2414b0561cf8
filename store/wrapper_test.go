package store_test

import (
	"context"
	"testing"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// shy is a wrapper that hides what the store inside can do.
type shy struct{ store.Store }

func (s shy) Unwrap() store.Store { return s.Store }

// TestCapabilitiesOfWrappers: a wrapper can do what every store inside of it can do, however many methods it has.
func TestCapabilitiesOfWrappers(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	for name, test := range map[string]struct {
		store             any
		sweeps, transacts bool
	}{
		"a store":                     {inside, true, false},
		"wrapped":                     {wrap.New(inside, nil), true, false},
		"wrapped twice":               {wrap.New(wrap.New(inside, nil), nil), true, false},
		"hidden":                      {shy{inside}, false, false},
		"wrapped over what is hidden": {wrap.New(shy{inside}, nil), false, false},
		"no store":                    {nil, false, false},
	} {
		if _, ok := store.As[store.Sweeper](test.store); ok != test.sweeps {
			t.Errorf("%s: a sweeper: %v, want %v", name, ok, test.sweeps)
		}
		if _, ok := store.As[store.Transactor](test.store); ok != test.transacts {
			t.Errorf("%s: a transactor: %v, want %v", name, ok, test.transacts)
		}
		found, ok := store.Find[*memory.Store](test.store)
		if want := test.store != nil; ok != want || want && found != inside {
			t.Errorf("%s: found %p, %v, want %p", name, found, ok, inside)
		}
	}
}

// TestWrapperIsAsked: what is found by As is the wrapper, not what is inside of it.
func TestWrapperIsAsked(t *testing.T) {
	t.Parallel()
	var calls []wrap.Call
	wrapped := wrap.New(memory.New(), func(ctx context.Context, c wrap.Call, next func(context.Context) error) error {
		calls = append(calls, c)
		return next(ctx)
	})
	sweeper, _ := store.As[store.Sweeper](wrapped)
	if _, err := sweeper.Sweep(t.Context(), 1); err != nil || len(calls) != 1 || calls[0] != "sweep" {
		t.Errorf("the wrapper saw the calls %q, err %v", calls, err)
	}
}
