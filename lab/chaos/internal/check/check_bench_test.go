package check

import (
	"fmt"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// BenchmarkCheck checks a run of an hour: 30,000 operations, 150,000 attempts and 600,000 writes.
func BenchmarkCheck(b *testing.B) {
	run := longRun(30_000)
	b.ReportAllocs()
	for b.Loop() {
		if violations := Check(run); len(violations) != 0 {
			b.Fatal(violations[0])
		}
	}
}

// longRun has operations with five attempts and twenty writes each.
func longRun(operations int) *history.Run {
	s := &story{Run: new(history.Run)}
	for i := range operations {
		key, reference := fmt.Sprint("key-", i), fmt.Sprint("T", i)
		s.ask(history.Attempt{Kind: "transfer", Key: key, Reference: reference, Lost: "timeout"})
		s.grant(key, 1)
		s.write(history.Write{Call: history.CallRelease, Key: key, Attempt: 1, Accepted: true})
		s.ask(problem("transfer", key, reference, 503, "store-unavailable"))
		s.grant(key, 2)
		for range 16 {
			s.write(history.Write{Call: history.CallExtend, Key: key, Attempt: 2, Accepted: true})
		}
		s.ask(problem("transfer", key, reference, 409, "in-progress"))
		s.ask(problem("transfer", key, reference+"b", 422, "mismatch"))
		s.complete(key, 2, "d-"+reference)
		s.ask(ok("transfer", key, reference))
		s.stored(ok("transfer", key, reference), 2)
		s.effect("transfers", key, reference)
	}
	return s.Run
}
