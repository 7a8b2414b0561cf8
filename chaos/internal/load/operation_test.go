package load

import (
	"math/rand/v2"
	"testing"
)

// TestSameSeedSameOperations: a run can be repeated because clients draw everything from their seed.
func TestSameSeedSameOperations(t *testing.T) {
	t.Parallel()
	draw := func() (drawn []*operation) {
		l, random := New(Config{Seed: 7}), rand.New(rand.NewPCG(7, 100))
		for n := range 500 {
			if op := l.draw(t.Context(), random, 3, n); op != nil {
				drawn = append(drawn, op)
			}
		}
		return drawn
	}
	first, again := draw(), draw()
	if len(first) != len(again) {
		t.Fatalf("%d operations, and then %d", len(first), len(again))
	}
	kinds, both, mistakes := make(map[string]int), make(map[string]int), 0
	for i, op := range first {
		other := again[i]
		if op.key != other.key || op.token != other.token || op.path != other.path || len(op.requests) != len(other.requests) ||
			op.requests[0] != other.requests[0] {
			t.Fatalf("operation %d is %+v, and then %+v", i, op, other)
		}
		kinds[op.kind]++
		both[op.key]++
		if len(op.requests) > 1 {
			mistakes++
		}
	}
	shared := 0
	for _, n := range both {
		if n > 1 {
			shared++
		}
	}
	if kinds["payment"] == 0 || kinds["transfer"] == 0 || kinds["booking"] == 0 || kinds["entry"] == 0 || mistakes == 0 || shared == 0 {
		t.Errorf("500 operations were %v, with %d mistakes and %d keys in both scopes", kinds, mistakes, shared)
	}
}

// TestReferencesAreUnique: an effect is told by its reference, so that no two requests may share one.
func TestReferencesAreUnique(t *testing.T) {
	t.Parallel()
	l, seen := New(Config{}), make(map[string]bool)
	for client := range 10 {
		random := rand.New(rand.NewPCG(1, uint64(client)))
		for n := range 200 {
			op := l.draw(t.Context(), random, client, n)
			if op == nil {
				continue
			}
			for _, request := range op.requests {
				if seen[request.reference] {
					t.Fatalf("%s is used twice", request.reference)
				}
				seen[request.reference] = true
			}
		}
	}
}
