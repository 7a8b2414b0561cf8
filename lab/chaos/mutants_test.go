package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/lab/chaos/internal/mutant"
)

// TestMutantsAreCaught demands that the checker finds a few of the mutants, each by the promise that it breaks (I14).
// They are in one program, to be built and run once. `make mutants` demands it of all, each alone.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "lab/chaos/internal/check has tests that the checker finds each mistake in a history")
	chosen, err := mutant.Named("inbox-apart", "no-audit") // they are built soonest
	if err != nil {
		t.Fatal(err)
	}
	all := mutant.Mutant{Name: "all", Store: chosen[0].Store, Quiet: true}
	for _, m := range chosen {
		all.Edits = append(all.Edits, m.Edits...)
	}
	program, err := all.Build(t.Context(), t.TempDir(), "github.com/onceward/onceward/lab/chaos")
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for seed := uint64(1); seed <= 3 && len(chosen) > 0; seed++ {
		said, err = run(t.Context(), program, arguments(&all, seed)...)
		chosen = slices.DeleteFunc(chosen, func(m mutant.Mutant) bool { return givenAway(said, m.Breaks) != "" })
	}
	for _, m := range chosen {
		t.Errorf("%s was not caught: %v\n%s", m.Name, err, said)
	}
}

// TestMutantsFailTheirTests demands that each mutant that has a test fails it, by the rule that it breaks.
func TestMutantsFailTheirTests(t *testing.T) {
	nightly.Only(t, "it links the tests of ten packages, each with a mistake; the tests themselves run on each change")
	for _, m := range mutant.All {
		if m.Test == (mutant.Test{}) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			if c, err := byTest(t.Context(), &m, t.TempDir()); err != nil || c.invariant == nothing {
				t.Errorf("the mutant that has this mistake was not caught: %s: %v\n%s", m.Mistake, err, c.said)
			}
		})
	}
}

// TestHungRunSaysWhere: a run that is overdue ends with what it waited for.
func TestHungRunSaysWhere(t *testing.T) {
	t.Parallel()
	w := newWatch()
	w.await("the bus", 0)
	w.ask(func() string { return "the fault plague" })
	if err := w.hung(); !strings.Contains(err.Error(), "for the bus; under way: the fault plague") {
		t.Errorf("it says %q", err)
	}
}

func TestGivenAway(t *testing.T) {
	t.Parallel()
	said := "violation of I13: x\nviolation of I6: y\nviolation of I1: z\n"
	if got := givenAway(said, []string{"I1", "I6"}); got != "I6" {
		t.Errorf("%q gave it away, want I6", got)
	}
	if got := givenAway("no violation of I6: here\n", []string{"I6"}); got != "" {
		t.Errorf("%q gave it away, want nothing", got)
	}
}
