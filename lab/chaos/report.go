package main

import (
	"database/sql"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/check"
	"github.com/onceward/onceward/lab/chaos/internal/world"
)

// report is what a run came to.
type report struct {
	options
	took       time.Duration
	counts     check.Counts
	faults     map[string]int
	violations []check.Violation
	// lost is what followed from fail-overs. It is apart from the violations, which nothing excuses.
	lost check.Lost
}

// shown is how many violations of each invariant are printed in full.
const shown = 5

// print writes the report for people. The last line says it all.
func (r *report) print(out io.Writer) {
	c := r.counts
	fmt.Fprintf(out, "operations %d, attempts %d, replays %d; given up by their clients %d\n",
		c.Operations, c.Attempts, c.Replays, c.Abandoned)
	fmt.Fprintf(out, "with overlapping attempts %d; outcome unknown %d, of which settled %d\n",
		c.Overlapping, c.Unknown, c.Settled)
	fmt.Fprintf(out, "writes refused from old owners %d; executed again after expiry %d\n", c.Fenced, c.AfterExpiry)
	fmt.Fprintf(out, "operations of callers with an outbox %d; parcels %d; operators' acts %d; forged webhooks %d\n",
		c.Calls, c.Parcels, c.Acts, c.Forgeries)
	fmt.Fprintf(out, "answers: %s\n", listed(c.Answers))
	fmt.Fprintf(out, "faults: %s\n", listed(r.faults))
	r.printViolations(out)
	r.printLost(out)
	fmt.Fprintf(out, "chaos on %s: %d violations in %s; again with: go run ./lab/chaos %s\n",
		r.Store, len(r.violations), r.took.Round(time.Second), r.flags())
}

// flags are those that repeat the run.
func (o *options) flags() string {
	flags := fmt.Sprintf("-store %s -seed %d -time %s -clients %d -every %s -clocks=%t",
		o.Store, o.Seed, o.Time, o.Clients, o.Every, o.Clocks)
	if o.Replicas > 0 {
		flags += fmt.Sprintf(" -replicas %d", o.Replicas)
	}
	if o.Isolation != sql.LevelDefault {
		flags += " -isolation " + isolationName(o.Isolation)
	}
	if o.Only != nil {
		flags += " -faults " + strings.Join(o.Only, ",")
	}
	return flags
}

// printLost says what a cluster forgot.
func (r *report) printLost(out io.Writer) {
	if r.Store != world.Cluster {
		return
	}
	found := make(map[string]int)
	for _, v := range r.lost.Violations {
		if found[v.Invariant]++; found[v.Invariant] <= shown {
			fmt.Fprintf(out, "lost in a fail-over: %s\n", v)
		}
	}
	fmt.Fprintf(out, "lost %d of %d operations that a fail-over put at risk, %d fail-overs, %d operations in all, "+
		"acknowledged by %d replicas", r.lost.Operations, r.lost.AtRisk, r.lost.FailOvers, r.counts.Operations, r.Replicas)
	if len(found) > 0 {
		fmt.Fprintf(out, ": %s", listed(found))
	}
	fmt.Fprintln(out)
}

func (r *report) printViolations(out io.Writer) {
	found := make(map[string]int)
	for _, v := range r.violations {
		if found[v.Invariant]++; found[v.Invariant] <= shown {
			fmt.Fprintf(out, "violation of %s\n", v)
		}
	}
	if len(found) > 0 {
		fmt.Fprintf(out, "violations: %s\n", listed(found))
	}
}

// listed writes counts as "name 3, other 4", sorted.
func listed(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
