package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Print writes a report for people: the findings, then the checks that were not
// made. With verbose it also lists every check with what was seen, and the notes.
func (r *Report) Print(out io.Writer, verbose bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Examined %s: %d checks.\n", r.Store, len(r.Results))
	if verbose {
		r.list(&b)
	}
	found := 0
	for _, result := range r.Results {
		for _, f := range result.Findings {
			if f.Severity == Note && !verbose {
				continue
			}
			if f.Severity != Note {
				found++
			}
			fmt.Fprintf(&b, "\n%s  %s\n  what     %s\n  why      %s\n  do       %s\n  promise  %s\n",
				strings.ToUpper(string(f.Severity)), f.Check, f.What, f.Why, f.Do, f.Promise)
		}
	}
	if left := r.NotChecked(); len(left) > 0 && !verbose {
		fmt.Fprintln(&b, "\nNot checked:")
		for _, result := range left {
			fmt.Fprintf(&b, "  %-28s %s\n", result.Check, result.Seen)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", verdict(found, len(r.NotChecked())))
	_, err := io.WriteString(out, b.String())
	return err
}

// list writes one line for each check.
func (r *Report) list(b *strings.Builder) {
	fmt.Fprintln(b)
	for _, result := range r.Results {
		status := result.Status
		if status == StatusFinding && onlyNotes(result.Findings) {
			status = "note"
		}
		fmt.Fprintf(b, "%-12s %-28s %s\n", status, result.Check, result.Seen)
	}
}

func onlyNotes(findings []Finding) bool {
	for _, f := range findings {
		if f.Severity != Note {
			return false
		}
	}
	return true
}

// verdict returns the last line.
func verdict(found, left int) string {
	var text string
	switch found {
	case 0:
		text = "No findings"
	case 1:
		text = "1 finding"
	default:
		text = fmt.Sprintf("%d findings", found)
	}
	if left > 0 {
		text += fmt.Sprintf("; %d not checked", left)
	}
	return text + "."
}
