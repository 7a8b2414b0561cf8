package load

import (
	"fmt"
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
	for _, kind := range []string{
		"payment", "transfer", "booking", "entry", "flash", "spark", "lapse", "doubt",
		"shipment", "trip",
	} {
		if kinds[kind] == 0 || mistakes == 0 || shared == 0 {
			t.Errorf("500 operations were %v, with %d mistakes and %d keys in both scopes", kinds, mistakes, shared)
		}
	}
}

// TestReferencesAreUnique: an effect is told by its reference and its amount, so that no two requests may share both.
func TestReferencesAreUnique(t *testing.T) {
	t.Parallel()
	l, seen, alike := New(Config{}), make(map[string]bool), 0
	for client := range 10 {
		random := rand.New(rand.NewPCG(1, uint64(client)))
		for n := range 200 {
			op := l.draw(t.Context(), random, client, n)
			if op == nil {
				continue
			}
			for i, request := range op.requests {
				name := fmt.Sprint(request.reference, " ", request.amount)
				if seen[name] {
					t.Fatalf("%s is used twice", name)
				}
				seen[name] = true
				if i > 0 && request.reference == op.requests[0].reference {
					alike++
				}
			}
		}
	}
	if alike == 0 {
		t.Error("no two requests differ in the amount alone")
	}
}
