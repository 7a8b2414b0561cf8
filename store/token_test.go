package store_test

import (
	"math"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// TestTokensOfEqualClocksDiffer: two processes whose clocks agree to the microsecond draw different tokens, also where
// the floor is ahead of the clock (S7).
func TestTokensOfEqualClocksDiffer(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 19, 8, 0, 0, 123456000, time.UTC)
	for name, floor := range map[string]int64{
		"the clock is ahead": 0, "the floor is ahead": store.TokenAt(now.Add(time.Hour), 0),
	} {
		// Of a few draws two may agree by chance, once in some ten thousand runs; a fourth of them never do.
		const draws = 16
		drawn := make(map[int64]bool)
		for range draws {
			token := store.NewToken(now, floor)
			if token <= floor {
				t.Errorf("S7: %s: token %d is not above the floor %d", name, token, floor)
			}
			drawn[token] = true
		}
		if len(drawn) < draws*3/4 {
			t.Errorf("S7: %s: %d draws gave %d tokens", name, draws, len(drawn))
		}
	}
}

// TestTokensGrowWithTheClock: a token of a later step of time is larger, whatever was drawn, for a lifetime.
func TestTokensGrowWithTheClock(t *testing.T) {
	t.Parallel()
	for _, year := range []int{2026, 2100} {
		now := time.Date(year, 1, 2, 3, 4, 5, 0, time.UTC)
		early, late := store.TokenAt(now, store.TokenScale-1), store.TokenAt(now.Add(store.TokenStep), 0)
		if early <= 0 || late <= early || late > math.MaxInt64-store.TokenScale {
			t.Errorf("S7: in %d a token is %d, and %d a step later", year, early, late)
		}
	}
}
