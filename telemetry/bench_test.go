package telemetry_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// BenchmarkReplay is what telemetry adds to a replay outside of sampled traces.
func BenchmarkReplay(b *testing.B) {
	n := newNode(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		n.TraceID(ctx)
		n.Observe(ctx, onceward.DecidedEvent{
			ID: id, Operation: "POST /payments", Decision: store.DecisionReplay, Elapsed: time.Millisecond,
		})
	}
}

// BenchmarkFirst is what it adds to a first execution.
func BenchmarkFirst(b *testing.B) {
	n := newNode(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		n.TraceID(ctx)
		n.Observe(ctx, onceward.DecidedEvent{
			ID: id, Operation: "POST /payments", Decision: store.DecisionExecute, Origin: store.OriginCreated,
			Elapsed: time.Millisecond,
		})
		n.Observe(ctx, onceward.ExecutedEvent{ID: id, Operation: "POST /payments", Status: 201, Elapsed: time.Millisecond})
		n.Observe(ctx, onceward.StoreCalledEvent{
			ID: id, Operation: "POST /payments", Call: "commit", Elapsed: time.Millisecond,
		})
		n.Observe(ctx, onceward.SettledEvent{ID: id, Operation: "POST /payments", State: store.StateCompleted})
	}
}

// BenchmarkGuard is a replay and a first execution over the memory store, with telemetry and without.
func BenchmarkGuard(b *testing.B) {
	for name, config := range map[string]onceward.Config{
		"without": {}, "with": {Observer: newNode(b), Propagator: newNode(b)},
	} {
		config.Secret = make([]byte, 16)
		guard, err := onceward.New(memory.New(), config)
		if err != nil {
			b.Fatal(err)
		}
		do := func(key string) {
			_, err := guard.Do(context.Background(), onceward.Call{Scope: "s", Key: key, Operation: "job"},
				func(context.Context) ([]byte, error) { return nil, nil }, onceward.Reserved(onceward.FailureStore))
			if err != nil {
				b.Fatal(err)
			}
		}
		b.Run("replay/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do("key")
			}
		})
		n := 0
		b.Run("first/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				do(strconv.Itoa(n))
			}
		})
	}
}
