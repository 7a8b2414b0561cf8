package telemetry_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
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
