package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/mutant"
)

// TestMutantsAreCaught demands that the checker finds a few of the mutants, by the promise that they break (I14). `make
// mutants` demands it of all.
func TestMutantsAreCaught(t *testing.T) {
	chosen, err := mutant.Named("inbox-apart", "no-audit") // they are built soonest
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (hunt{Seeds: 1, Within: time.Minute}).all(t.Context(), chosen, &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
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
