package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/store"
)

// Bench measures a store: reserve and complete, replay, contention for one key, and a whole transactional operation if
// the store has transactions; each with one caller and with 64.
func Bench(b *testing.B, h Harness) {
	b.Helper()
	benchmarks := []struct {
		name   string
		needed bool
		run    func(b *testing.B, s Instance, callers int)
	}{
		{"ReserveComplete", true, benchReserveComplete},
		{"Replay", true, benchReplay},
		{"Contention", true, benchContention},
		{"Transact", has[store.Transactor](h.Open(b)), benchTransact},
	}
	for _, bm := range benchmarks {
		if !bm.needed {
			continue
		}
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", bm.name, callers), func(b *testing.B) {
				bm.run(b, h.Open(b), callers)
			})
		}
	}
}

// callers calls operation b.N times from n goroutines; the first error ends the benchmark.
func callers(b *testing.B, n int, operation func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
				if err := operation(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func benchID(i int) store.ID { return id(fmt.Sprintf("bench-%09d", i)) }

func benchReserveComplete(b *testing.B, s Instance, n int) {
	ctx := context.Background()
	callers(b, n, func(i int) error {
		v, err := s.Store.Reserve(ctx, request(benchID(i)))
		if err != nil {
			return err
		}
		_, err = s.Store.Complete(ctx, store.Claim{ID: benchID(i), Attempt: v.Record.Attempt}, answer("done"))
		return err
	})
}

func benchReplay(b *testing.B, s Instance, n int) {
	ctx := context.Background()
	v, err := s.Store.Reserve(ctx, request(id("key")))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Store.Complete(ctx, store.Claim{ID: id("key"), Attempt: v.Record.Attempt},
		answer("done")); err != nil {
		b.Fatal(err)
	}
	callers(b, n, func(int) error { return decides(s.Store, id("key"), store.DecisionReplay) })
}

func benchContention(b *testing.B, s Instance, n int) {
	if err := decides(s.Store, id("key"), store.DecisionExecute); err != nil {
		b.Fatal(err)
	}
	callers(b, n, func(int) error { return decides(s.Store, id("key"), store.DecisionInProgress) })
}

func decides(s store.Store, id store.ID, want store.Decision) error {
	v, err := s.Reserve(context.Background(), request(id))
	if err == nil && v.Decision != want {
		err = fmt.Errorf("reserve got %s, want %s", v.Decision, want)
	}
	return err
}

func benchTransact(b *testing.B, s Instance, n int) {
	ctx := context.Background()
	transactor := s.Store.(store.Transactor)
	callers(b, n, func(i int) error {
		var inserted error
		_, err := transactor.Transact(ctx, request(benchID(i)),
			func(ctx context.Context, _ store.Verdict) store.Settlement {
				if inserted = s.Business.Insert(ctx, "row"); inserted != nil {
					return store.Settlement{Action: store.TxRollback}
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			})
		if err != nil {
			return err
		}
		return inserted
	})
}
