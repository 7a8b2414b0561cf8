package onceward_test

import (
	"context"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMarkingNoError(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]func(error) error{"NotExecuted": onceward.NotExecuted, "OutcomeUnknown": onceward.OutcomeUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := mark(nil); err != nil {
				t.Errorf("E4: %s(nil) = %v, want nil", name, err)
			}
			s := memory.New()
			w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return []byte("done"), mark(nil) }}
			got, err := newGuard(t, s).Do(t.Context(), someCall, w.do, onceward.Reserved(onceward.FailureUnknown))
			if err != nil || string(got.Value) != "done" {
				t.Errorf("E4: got %q, %v; want the value", got.Value, err)
			}
			if state := stateOfCall(t, s); state != store.StateCompleted {
				t.Errorf("E4: the record is %s, want completed", state)
			}
		})
	}
}

// TestDoSharesNoMemory: neither the function nor a caller can change what is stored.
func TestDoSharesNoMemory(t *testing.T) {
	t.Parallel()
	own := []byte("the value")
	w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { return own, nil }}
	guard := newGuard(t, memory.New())
	for range 3 {
		got, err := guard.Do(t.Context(), someCall, w.do, onceward.Reserved(onceward.FailureUnknown))
		if err != nil || string(got.Value) != "the value" {
			t.Errorf("E4: got %q, %v; want what the function returned", got.Value, err)
		}
		copy(own, "changed..")
		copy(got.Value, "spoiled..")
	}
	w.wantRuns(t, "E4", 1)
}
