package payments

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"time"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile/ledger"
)

// book is one of the provider's books, and ours of the same.
type book struct {
	name        string
	there, here ledger.Source
}

// books are those that are compared.
func (s *System) books() []book {
	return []book{{"charges", s.chargesThere, s.chargesHere}, {"refunds", s.refundsThere, s.refundsHere}}
}

// Comparisons names the runs of the comparisons as operations. One whose node was lost is for the comparer alone to go
// on with.
var Comparisons = []string{"ledger comparison charges", "ledger comparison refunds"}

// Comparers compare the provider's books with ours, on a timer. They are the last line: what all else has missed shows
// up here, as a finding that the counters and the log tell of. Those that [System.Work] runs have no prefix; others
// compare the same books apart from them, from another time on or in windows of another length.
func (s *System) Comparers(prefix string, since time.Time, interval time.Duration) (all []*ledger.Comparer, err error) {
	t := s.config.Timing
	for _, b := range s.books() {
		comparer, err := ledger.NewComparer(s.store, ledger.Config{
			Name: prefix + b.name, Provider: b.there, Local: b.here, Guard: s.guard, Since: since,
			Interval: interval, Settle: t.Settle, Grace: min(ledger.DefaultGrace, t.Compare/4), MinBackoff: t.Backoff,
			Observer: s.counters, Logger: s.config.Logger,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, comparer)
	}
	return all, nil
}

// pageSize is how many charges or refunds are asked for at a time.
const pageSize = 100

// chargesThere lists what the provider has. Its ids are in the order of time, and so is the list.
func (s *System) chargesThere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return there(w, after, func(after string) ([]ledger.Entry, bool, error) {
		page, err := s.provider.List(ctx, w.From, after, pageSize)
		return entries(page.Data, entryOfCharge), page.HasMore, err
	})
}

// refundsThere is the same for refunds.
func (s *System) refundsThere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return there(w, after, func(after string) ([]ledger.Entry, bool, error) {
		page, more, err := s.provider.ListRefunds(ctx, w.From, after, pageSize)
		return entries(page, entryOfRefund), more, err
	})
}

// there lists the entries of one page after the other, up to the end of the window.
func there(w ledger.Window, after string, list func(after string) (page []ledger.Entry, more bool, err error),
) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		for more := true; more; {
			var page []ledger.Entry
			var err error
			if page, more, err = list(after); err != nil {
				yield(ledger.Entry{}, err)
				return
			}
			for _, e := range page {
				after = e.Key
				if !e.At.Before(w.To) || !yield(e, nil) {
					return
				}
			}
		}
	}
}

func entries[T any](page []T, entryOf func(T) ledger.Entry) []ledger.Entry {
	all := make([]ledger.Entry, len(page))
	for i, each := range page {
		all[i] = entryOf(each)
	}
	return all
}

func entryOfCharge(c provider.Charge) ledger.Entry {
	return ledger.Entry{
		Key: c.ID, Value: chargeValue(c.Amount, c.Currency, chargeState(c)), At: c.Created, Note: c.Reference,
	}
}

func entryOfRefund(r provider.Refund) ledger.Entry {
	return ledger.Entry{Key: r.ID, Value: refundValue(r.Amount), At: r.Created, Note: r.Reference}
}

// chargeValue is what has to be the same on both sides.
func chargeValue(amount int64, currency, state string) string {
	return fmt.Sprintf("%d %s %s", amount, currency, state)
}

// refundValue is the same of a refund.
func refundValue(amount int64) string { return fmt.Sprint(amount) }

// chargesHere lists what we have written down, of payments and bookings. Both sides have to be in the byte order of the
// ids: those of this provider are digits of one length, which every database sorts so. Others may need a collation.
func (s *System) chargesHere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return s.here(ctx, scanCharge, `
		SELECT charge, amount, currency, state, charged_at, id FROM (
			SELECT charge, amount, currency, state, charged_at, id FROM payment WHERE charge > $1
			UNION ALL
			SELECT charge, price, $2, CASE state WHEN 'confirmed' THEN 'charged' ELSE state END, charged_at, id
				FROM booking WHERE charge > $3
		) AS ours WHERE charged_at >= $4 AND charged_at < $5 ORDER BY charge`,
		after, bookingCurrency, after, w.From.UnixMicro(), w.To.UnixMicro())
}

// refundsHere is the same for refunds.
func (s *System) refundsHere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return s.here(ctx, scanRefund, `SELECT id, amount, made_at, payment FROM refund
		WHERE id > $1 AND made_at >= $2 AND made_at < $3 ORDER BY id`,
		after, w.From.UnixMicro(), w.To.UnixMicro())
}

// here lists the rows of a query.
func (s *System) here(ctx context.Context, scan func(*sql.Rows) (ledger.Entry, error), query string, args ...any,
) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		rows, err := s.db.Reads().QueryContext(ctx, s.db.Bind(query), args...)
		if err != nil {
			yield(ledger.Entry{}, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			if entry, err := scan(rows); !yield(entry, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(ledger.Entry{}, err)
		}
	}
}

func scanCharge(rows *sql.Rows) (ledger.Entry, error) {
	var e ledger.Entry
	var amount, at int64
	var currency, state string
	err := rows.Scan(&e.Key, &amount, &currency, &state, &at, &e.Note)
	e.Value, e.At = chargeValue(amount, currency, state), time.UnixMicro(at)
	return e, err
}

func scanRefund(rows *sql.Rows) (ledger.Entry, error) {
	var e ledger.Entry
	var amount, at int64
	err := rows.Scan(&e.Key, &amount, &at, &e.Note)
	e.Value, e.At = refundValue(amount), time.UnixMicro(at)
	return e, err
}
