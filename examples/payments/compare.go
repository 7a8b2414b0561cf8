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

// book is one of the provider's books, with this system's entries for it.
type book struct {
	name        string
	there, here ledger.Source
}

// books returns the books that are compared.
func (s *System) books() []book {
	return []book{{"charges", s.chargesThere, s.chargesHere}, {"refunds", s.refundsThere, s.refundsHere}}
}

// Comparisons are the names of the comparisons as operations. If the node of
// a comparison is lost, only the comparer may continue it, not the resumer.
var Comparisons = []string{"ledger comparison charges", "ledger comparison refunds"}

// Comparers returns workers that compare the provider's books with this system's books, at
// intervals. They are the last line of defence: they find what everything else has missed, and the
// counters and the log show their findings. The comparers that [System.Work] runs have no prefix. A
// caller can run other comparers of the same books, with their own prefix, start time or interval.
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

// pageSize is the number of charges or refunds that are requested at a time.
const pageSize = 100

// chargesThere lists the provider's charges. Their ids are in the order of time, and so is the list.
func (s *System) chargesThere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return there(w, after, func(after string) ([]ledger.Entry, bool, error) {
		page, err := s.provider.List(ctx, w.From, after, pageSize)
		return entries(page.Data, entryOfCharge), page.HasMore, err
	})
}

// refundsThere lists the provider's refunds.
func (s *System) refundsThere(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
	return there(w, after, func(after string) ([]ledger.Entry, bool, error) {
		page, more, err := s.provider.ListRefunds(ctx, w.From, after, pageSize)
		return entries(page, entryOfRefund), more, err
	})
}

// there lists the entries of all pages, up to the end of the window.
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

// chargeValue returns the part of a charge that must be equal on both sides.
func chargeValue(amount int64, currency, state string) string {
	return fmt.Sprintf("%d %s %s", amount, currency, state)
}

// refundValue returns the part of a refund that must be equal on both sides.
func refundValue(amount int64) string { return fmt.Sprint(amount) }

// chargesHere lists the stored charges, of payments and bookings. Both sides must
// be in the byte order of the ids. This provider's ids have digits of one length,
// so that every database sorts them like this. Other ids may need a collation.
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

// refundsHere lists the stored refunds.
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
