package verdict

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/onceward/onceward/demo/internal/load"
)

// Write prints the verdict for people. The last line is the sentence.
func (v *Verdict) Write(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tasked for\tanswered\tmade\tdeclined\tlost\tmade again\textra\t")
	for _, r := range v.Rows {
		fmt.Fprintf(table, "%ss\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
			r.Kind, r.Asked, r.Answered, r.Made, r.Declined, r.Lost, r.Duplicates, r.Extra)
	}
	_ = table.Flush() // the reader of the output may be gone
	fmt.Fprint(out, v.explain())
	fmt.Fprintf(out, "\nAnswers that differed between retries of one key: %d\nOutcomes still unknown: %d\n",
		v.Differing, v.Unknown)
	for _, example := range v.Examples {
		fmt.Fprintln(out, "  "+example)
	}
	fmt.Fprintf(out, "\nVerdict: %s\n", v.Sentence())
}

// Sentence returns the verdict in one sentence.
func (v *Verdict) Sentence() string {
	if v.Sound() {
		return "every payment was charged once, and every client was told so."
	}
	var findings []string
	add := func(n int, one, many string) {
		switch {
		case n == 1:
			findings = append(findings, one)
		case n > 1:
			findings = append(findings, fmt.Sprintf("%d %s", n, many))
		}
	}
	for _, r := range v.Rows {
		if r.Duplicates > 0 {
			findings = append(findings, duplicates(r))
		}
		add(r.Lost, fmt.Sprintf("1 %s was lost", r.Kind), fmt.Sprintf("%ss were lost", r.Kind))
		add(r.Wrong, fmt.Sprintf("1 %s moved money that it should not have moved", r.Kind),
			fmt.Sprintf("%ss moved money that they should not have moved", r.Kind))
	}
	add(v.Differing, "1 request got different answers to its retries", "requests got different answers to their retries")
	add(v.Unasked, "1 charge or refund was made that no client asked for",
		"charges or refunds were made that no client asked for")
	add(v.Unknown, "1 outcome is still unknown", "outcomes are still unknown")
	return strings.Join(findings, ";\n  ") + "." + v.cost()
}

// duplicates describes the orders that were executed again: how many, how often in all, and at what cost.
func duplicates(r Row) string {
	verb := "charged"
	if r.Kind == load.Refund {
		verb = "paid out"
	}
	were := "were"
	if r.Duplicates == 1 {
		were = "was"
	}
	return fmt.Sprintf("%s %s %s more than once, %d too many in all, %s too much",
		r.Kind.Count(r.Duplicates), were, verb, r.Extra, euros(r.Excess))
}

// explain describes the last two columns, if they are not empty.
func (v *Verdict) explain() string {
	for _, r := range v.Rows {
		if r.Extra > 0 {
			return "Made again counts what was asked for once and made more than once; extra, how often beyond the first time.\n"
		}
	}
	return ""
}

// cost returns the total cost of the duplicates.
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

// euros formats an amount in cents.
func euros(cents int64) string { return fmt.Sprintf("EUR %d.%02d", cents/100, cents%100) }
