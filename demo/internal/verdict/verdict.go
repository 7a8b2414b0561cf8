// Package verdict compares the answers that clients received with the provider's
// ledger. It uses no other source: not the payments system, and not its store.
package verdict

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/onceward/onceward/demo/internal/load"
	"github.com/onceward/onceward/examples/provider"
)

// Evidence is the result of a run.
type Evidence struct {
	// Run is the prefix of the run's keys: the ledger may also contain earlier runs.
	Run    string
	Ledger []provider.Entry
	Notes  []load.Note
	// Unknown is the number of operations whose outcome was still unknown at the end.
	Unknown int
}

// Row is the result for one kind of orders.
type Row struct {
	Kind load.Kind
	// Asked is the number of orders, and Answered the number of orders with a definitive answer.
	Asked, Answered int
	// Made is the number of charges or refunds, and Declined the number of orders that the ledger shows as declined.
	Made, Declined int
	// Duplicates is the number of orders that were executed more than once, Extra
	// the number of executions beyond the first, and Excess the money that these
	// moved. Made equals the orders that were neither declined nor lost, plus Extra.
	Duplicates, Extra int
	Excess            int64
	// Lost is the number of orders that were acknowledged but neither made nor declined, or never answered.
	Lost int
	// Wrong is the number of orders that were made for another amount, or made although the client got a failure.
	Wrong int
}

// Verdict is the outcome of a run.
type Verdict struct {
	Rows []Row
	// Differing is the number of orders whose retries got different answers.
	Differing int
	// Unasked is the number of entries in the ledger that belong to the run but to no order.
	Unasked int
	Unknown int
	// Examples describe the first few findings.
	Examples []string
}

// order is the ledger's entries for one reference.
type order struct {
	amounts  []int64
	declined bool
}

// Judge returns the verdict.
func Judge(e Evidence) *Verdict {
	v := &Verdict{Unknown: e.Unknown}
	books := readBooks(e)
	for _, kind := range []load.Kind{load.Payment, load.Refund, load.Booking} {
		row := Row{Kind: kind}
		for i := range e.Notes {
			if n := &e.Notes[i]; n.Kind == kind {
				v.count(&row, n, books[n.Key])
				delete(books, n.Key)
			}
		}
		v.Rows = append(v.Rows, row)
	}
	for reference := range books {
		v.Unasked++
		v.example(reference + " is in the ledger, and no client asked for it")
	}
	return v
}

// readBooks groups the ledger by reference.
func readBooks(e Evidence) map[string]order {
	books := make(map[string]order)
	for _, entry := range e.Ledger {
		reference, amount := "", int64(0)
		if entry.Refund != nil {
			reference, amount = entry.Refund.Reference, entry.Refund.Amount
		} else {
			reference, amount = entry.Charge.Reference, entry.Charge.Amount
		}
		if !strings.HasPrefix(reference, e.Run+"-") {
			continue
		}
		found := books[reference]
		if entry.Type == provider.EntryDeclined {
			found.declined = true
		} else {
			found.amounts = append(found.amounts, amount)
		}
		books[reference] = found
	}
	return books
}

// count adds one order to its row.
func (v *Verdict) count(row *Row, n *load.Note, found order) {
	row.Asked++
	row.Made += len(found.amounts)
	if found.declined {
		row.Declined++
	}
	if len(n.Answers) > 1 {
		v.Differing++
		v.example(n.Key + " was answered with " + short(n.Answers[0]) + " and with " + short(n.Answers[1]))
	}
	if n.Answered() {
		row.Answered++
	}
	v.countLost(row, n, found)
	if len(found.amounts) == 0 {
		return
	}
	if extra := found.amounts[1:]; len(extra) > 0 {
		row.Duplicates++
		row.Extra += len(extra)
		for _, amount := range extra {
			row.Excess += amount
		}
		v.example(n.Key + " moved money more than once")
	}
	if found.amounts[0] != n.Amount || n.Answered() && !n.Succeeded() {
		row.Wrong++
		v.example(n.Key + " moved money that it should not have moved")
	}
}

// countLost counts orders that were never answered, or acknowledged without an effect.
func (v *Verdict) countLost(row *Row, n *load.Note, found order) {
	switch {
	case !n.Answered():
		row.Lost++
		v.example(n.Key + " was never answered; last seen: " + n.LastSeen)
	case n.Succeeded() && len(found.amounts) == 0 && !found.declined:
		row.Lost++
		v.example(n.Key + " was acknowledged, and nothing came of it")
	}
}

// mostExamples keeps the verdict readable.
const mostExamples = 5

func (v *Verdict) example(text string) {
	if len(v.Examples) < mostExamples {
		v.Examples = append(v.Examples, text)
	}
}

// short returns an answer, cut to a length at which answers still differ.
func short(a load.Answer) string {
	const longest = 40
	body := strings.TrimSpace(a.Body)
	if len(body) > longest {
		body = strings.ToValidUTF8(body[:longest], "") + "…"
	}
	return fmt.Sprintf("%d %s", a.Status, body)
}

// Sound reports whether nothing is broken.
func (v *Verdict) Sound() bool {
	for _, row := range v.Rows {
		if row.Duplicates+row.Lost+row.Wrong > 0 {
			return false
		}
	}
	return v.Differing+v.Unasked+v.Unknown == 0
}

// ReadLedger reads all lines of a provider's ledger, including declined charges:
// an order that was declined is not lost. The provider must have ended.
func ReadLedger(path string) ([]provider.Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer file.Close()
	var entries []provider.Entry
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e provider.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("read the ledger, line %d: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}
