package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/mutant"
)

// hunt says how mutants are looked for.
type hunt struct {
	// Seeds is how many runs each mutant has to be caught in, each with a seed of its own.
	Seeds int
	// Within is how long a run may take to catch it. The time to build it does not count.
	Within time.Duration
}

// errSurvived is returned when a mutant was not caught.
var errSurvived = errors.New("mutants were not caught")

// mutants is the command that builds each mutant and demands that it is caught (I14).
func mutants(ctx context.Context, args []string, out io.Writer) error {
	h := hunt{}
	flags := flag.NewFlagSet("chaos mutants", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.IntVar(&h.Seeds, "seeds", 1, "runs in which each mutant has to be caught, each with a seed of its own")
	flags.DurationVar(&h.Within, "within", time.Minute,
		"how long a run may take to catch it, apart from the time to build it")
	only := flags.String("only", "", "names of the mutants, with commas between them (default: all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := mutant.Named(strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })...)
	if err != nil {
		return err
	}
	return h.all(ctx, chosen, out)
}

// all hunts the mutants one after the other and prints the table.
func (h hunt) all(ctx context.Context, chosen []mutant.Mutant, out io.Writer) error {
	const row = "%-20s %-12s %-9s %-10s %6s  %s\n"
	fmt.Fprintf(out, row, "mutant", "layer", "store", "caught by", "after", "mistake")
	survived := 0
	for _, m := range chosen {
		dir, err := os.MkdirTemp("", "onceward-mutant-")
		if err != nil {
			return err
		}
		look, err := h.begin(ctx, &m, dir)
		for seed := 1; err == nil && seed <= h.Seeds; seed++ {
			var c catch
			if c, err = look(uint64(seed)); err != nil {
				break
			}
			fmt.Fprintf(out, row, m.Name, m.Layer, m.Store, c.invariant, c.after.Round(time.Second), m.Mistake)
			if c.invariant == nothing {
				survived++
				fmt.Fprintln(out, c.said)
			}
		}
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	if survived > 0 {
		return fmt.Errorf("%w: %d runs", errSurvived, survived)
	}
	return nil
}

// begin returns what looks for a mutant once: a run, or the test that it has.
func (h hunt) begin(ctx context.Context, m *mutant.Mutant, dir string) (func(seed uint64) (catch, error), error) {
	if m.Test != (mutant.Test{}) {
		return func(uint64) (catch, error) { return byTest(ctx, m, dir) }, nil
	}
	program, err := m.Build(ctx, dir, "github.com/onceward/onceward/lab/chaos")
	return func(seed uint64) (catch, error) { return h.one(ctx, m, program, seed) }, err
}

// byTest has the test of a mutant look for it. The time to build it counts.
func byTest(ctx context.Context, m *mutant.Mutant, dir string) (catch, error) {
	began := time.Now()
	said, err := m.RunTest(ctx, dir)
	c := catch{invariant: nothing, after: time.Since(began), said: said}
	for _, rule := range m.Breaks {
		if strings.Contains(said, "--- FAIL: "+m.Test.Name) && strings.Contains(said, rule+": ") {
			c.invariant = rule
		}
	}
	return c, err
}

// catch is how a hunt ended.
type catch struct {
	// invariant is the one that gave the mutant away, or nothing.
	invariant string
	after     time.Duration
	// said is what the last run said.
	said string
}

// nothing stands for the invariant that gave away a mutant that was not caught.
const nothing = "NOTHING"

// afterwards is how long a run that was told to stop may take to do so.
const afterwards = 20 * time.Second

// one runs a mutant until it is caught or the time is up. A run is short, because a mutant that is caught is caught at
// its end.
func (h hunt) one(ctx context.Context, m *mutant.Mutant, program string, seed uint64) (catch, error) {
	within, cancel := context.WithTimeout(ctx, h.Within)
	defer cancel()
	began := time.Now()
	for {
		said, err := run(within, program, arguments(m, seed)...)
		c := catch{invariant: nothing, after: time.Since(began), said: said}
		if broken := givenAway(said, m.Breaks); broken != "" {
			c.invariant = broken
			return c, nil
		}
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		if within.Err() != nil || err != nil && !strings.Contains(said, errViolated.Error()) {
			return c, nil // it has survived, or hangs, or broke something unexpected
		}
		seed += 1000
	}
}

// arguments are those of a short run.
func arguments(m *mutant.Mutant, seed uint64) []string {
	args := []string{
		"-store", m.Store, "-seed", fmt.Sprint(seed), "-time", "8s", "-settle", settles(m), "-every",
		"400ms", "-clocks=false", "-brief",
	}
	if m.Faults != nil {
		args = append(args, "-faults", strings.Join(m.Faults, ","))
	}
	return args
}

// settles is how long a run may take to be quiet. Most mutants show before, and some never let it be.
func settles(m *mutant.Mutant) string {
	if m.Quiet {
		return "40s"
	}
	return "12s"
}

// run runs a program and returns all that it said.
func run(ctx context.Context, program string, args ...string) (string, error) {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // its nodes end in order
	cmd.WaitDelay = afterwards
	err := cmd.Run()
	return said.String(), err
}

var violation = regexp.MustCompile(`(?m)^violation of (I\d+)`)

// givenAway returns the first of the invariants that a run found broken.
func givenAway(said string, invariants []string) string {
	for _, found := range violation.FindAllStringSubmatch(said, -1) {
		if slices.Contains(invariants, found[1]) {
			return found[1]
		}
	}
	return ""
}
