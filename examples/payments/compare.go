package payments

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"time"

	"github.com/onceward/onceward/internal/provider"
	"github.com/onceward/onceward/reconcile/ledger"
)

// comparison names the comparison, and comparisonRuns its runs as operations. One whose node was lost is for the
// comparer alone to go on with.
const (
	comparison     = "charges"
	comparisonRuns = "ledger comparison " + comparison
)

// newComparer compares the provider's charges with ours, on a timer. It is the last line: what all else has missed shows up
// here, as a finding that the counters and the log tell of.
func (s *System) newComparer() (*ledger.Comparer, error) {
	t := s.config.Timing
	return ledger.NewComparer(ledger.Config{
		Store: s.db.Store, Name: comparison, Provider: s.chargesThere, Local: s.chargesHere, Since: s.config.Since,
		Interval: t.Compare, Settle: t.Settle, Grace: min(ledger.DefaultGrace, t.Compare/4), Pause: t.Pause,
		Observer: s.counters, Logger: s.config.Logger,
	})
}

// pageSize is how many charges are asked for at a time.
const pageSize = 100

// chargesThere lists what the provider has. Its ids are in the order of time, and so is the list.
func (s *System) chargesThere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		for more := true; more; {
			page, err := s.provider.List(ctx, w.From, after, pageSize)
			if err != nil {
				yield(ledger.Entry{}, err)
				return
			}
			for _, c := range page.Data {
				after = c.ID
				if !c.Created.Before(w.To) || !yield(entryOf(c), nil) {
					return
				}
			}
			more = page.HasMore
		}
	}
}

func entryOf(c provider.Charge) ledger.Entry {
	return ledger.Entry{Key: c.ID, Value: entryValue(c.Amount, c.Currency, chargeState(c)), At: c.Created, Note: c.Reference}
}

// entryValue is what has to be the same on both sides.
func entryValue(amount int64, currency, state string) string {
	return fmt.Sprintf("%d %s %s", amount, currency, state)
}

// chargesHere lists what we have written down, of payments and bookings. Both sides have to be in the byte order of the ids:
// those of this provider are digits of one length, which every database sorts so. Others may need a collation.
func (s *System) chargesHere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		rows, err := s.db.Reads().QueryContext(ctx, `
			SELECT charge, amount, currency, state, charged_at, id FROM (
				SELECT charge, amount, currency, state, charged_at, id FROM payment WHERE charge > $1
				UNION ALL
				SELECT charge, price, $2, CASE state WHEN 'confirmed' THEN 'charged' ELSE state END, charged_at, id
					FROM booking WHERE charge > $1
			) AS ours WHERE charged_at >= $3 AND charged_at < $4 ORDER BY charge`,
			after, bookingCurrency, w.From.UnixMicro(), w.To.UnixMicro())
		if err != nil {
			yield(ledger.Entry{}, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			if entry, err := scanEntry(rows); !yield(entry, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(ledger.Entry{}, err)
		}
	}
}

func scanEntry(rows *sql.Rows) (ledger.Entry, error) {
	var e ledger.Entry
	var amount, at int64
	var currency, state string
	err := rows.Scan(&e.Key, &amount, &currency, &state, &at, &e.Note)
	e.Value, e.At = entryValue(amount, currency, state), time.UnixMicro(at)
	return e, err
}
