package check

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// live lets the world go on for a while, and brings it to rest.
func live(w *world, steps int) []Violation {
	for range steps {
		w.step()
	}
	w.quiet()
	return Check(w.Run)
}

func TestCorrectSystemHasNoViolation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "choice") }
		w := newWorld(draw, noBug)
		for _, v := range live(w, rapid.IntRange(1, 150).Draw(rt, "steps")) {
			rt.Error(v)
		}
	})
}

// A world that never gets into trouble would prove nothing: over a few hundred of them everything has to happen.
func TestCorrectSystemSeesTrouble(t *testing.T) {
	t.Parallel()
	var total Counts
	answers := make(map[string]int)
	for seed := range uint64(300) {
		w := newWorld(rand.New(rand.NewPCG(seed, 1)).IntN, noBug)
		for _, v := range live(w, 150) {
			t.Errorf("seed %d: %s", seed, v)
		}
		c := Summary(w.Run)
		total.Overlapping += c.Overlapping
		total.Abandoned += c.Abandoned
		total.Unknown += c.Unknown
		total.Settled += c.Settled
		for name, n := range c.Answers {
			answers[name] += n
		}
	}
	if total.Overlapping == 0 || total.Abandoned == 0 || total.Unknown == 0 || total.Settled != total.Unknown {
		t.Errorf("%d overlapping, %d abandoned, %d unknown, %d settled",
			total.Overlapping, total.Abandoned, total.Unknown, total.Settled)
	}
	for _, name := range []string{
		"success", "refusal", "mismatch", "in-progress", "outcome-unknown", "store-unavailable", "not-executed", "no answer", "other",
	} {
		if answers[name] == 0 {
			t.Errorf("no client got %q: %v", name, answers)
		}
	}
}

func TestBrokenSystemsAreCaught(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		bug    bug
		breaks []string
	}{
		"no fence":       {noFence, []string{"I6", "I7"}},
		"no intent":      {noIntent, []string{"I1"}},
		"early reap":     {earlyReap, []string{"I1", "I12"}},
		"blind retry":    {blindRetry, []string{"I1"}},
		"no fingerprint": {noFingerprint, []string{"I3", "I9", "I11"}},
		"repeated step":  {repeatedStep, []string{"I1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []Violation
			for seed := range uint64(100) {
				all = append(all, live(newWorld(rand.New(rand.NewPCG(seed, 2)).IntN, broken.bug), 150)...)
			}
			found := make(map[string]int)
			for _, v := range all {
				found[v.Invariant]++
			}
			for _, invariant := range broken.breaks {
				if found[invariant] == 0 {
					t.Errorf("%s was not seen to break: %v", invariant, found)
				}
			}
		})
	}
}
