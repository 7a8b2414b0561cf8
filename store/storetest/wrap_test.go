package storetest_test

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/storetest"
)

// TestWrapper: a wrapper that changes nothing is as good as the store inside.
func TestWrapper(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
		i := harness.Open(t)
		i.Store = wrap.New(i.Store, nil)
		return i
	}})
}

// TestWrapperWithoutCapability: a call that the store inside cannot answer says so.
func TestWrapperWithoutCapability(t *testing.T) {
	t.Parallel()
	_, err := wrap.New(memory.New(), nil).Messages(t.Context(), outbox.Filter{})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an outbox over a store without one: %v", err)
	}
}
