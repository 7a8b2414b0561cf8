package verdict

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/onceward/onceward/cmd/onceward/internal/load"
)

// Write prints the verdict for people, down to the sentence that says what to think of it.
func (v *Verdict) Write(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tasked for\tanswered\tmade\tdeclined\tduplicates\tlost\t")
	for _, r := range v.Rows {
		fmt.Fprintf(table, "%ss\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Kind, r.Asked, r.Answered, r.Made, r.Declined, r.Duplicates, r.Lost)
	}
	_ = table.Flush() // who reads the output may be gone; there is nobody else to tell
	fmt.Fprintf(out, "\nAnswers that differed between retries of one key: %d\nOutcomes still unknown: %d\n", v.Differing, v.Unknown)
	for _, example := range v.Examples {
		fmt.Fprintln(out, "  "+example)
	}
	fmt.Fprintf(out, "\nVerdict: %s\n", v.Sentence())
}

// Sentence says what became of the run.
func (v *Verdict) Sentence() string {
	if v.Sound() {
		return "every payment was charged once, and every client was told so."
	}
	var findings []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			findings = append(findings, fmt.Sprintf("%d ", n)+fmt.Sprintf(format, args...))
		}
	}
	for _, r := range v.Rows {
		verb := "charged"
		if r.Kind == load.Refund {
			verb = "paid out"
		}
		add(r.Duplicates, "%ss were %s more than once, %s too much", r.Kind, verb, euros(r.Excess))
		add(r.Lost, "%ss were lost", r.Kind)
		add(r.Wrong, "%ss moved money that they should not have moved", r.Kind)
	}
	add(v.Differing, "requests got different answers to their retries")
	add(v.Unasked, "charges or refunds were made that nobody asked for")
	add(v.Unknown, "outcomes are still unknown")
	return strings.Join(findings, "; ") + "." + v.cost()
}

// cost adds up what the duplicates would have cost.
func (v *Verdict) cost() string {
	var customers, shop int64
	for _, r := range v.Rows {
		if r.Kind == load.Refund {
			shop += r.Excess
		} else {
			customers += r.Excess
		}
	}
	if customers+shop == 0 {
		return ""
	}
	return fmt.Sprintf("\nIn life this would have cost customers %s and the shop %s.", euros(customers), euros(shop))
}

// euros writes an amount in cents as people do.
func euros(cents int64) string { return fmt.Sprintf("EUR %d.%02d", cents/100, cents%100) }
