package provider

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// book is all data of the provider: the ledger and its content in memory. One lock covers both the look-up
// of a key and the resulting line, so that two requests with the same key can never both make a charge.
type book struct {
	dedup    bool
	declined []int64
	now      func() time.Time

	mu           sync.Mutex
	file         *ledgerFile
	entries      []Entry
	charges      []Charge // in the order of their ids
	refunds      []Refund
	chargeByID   map[string]int
	chargeByKey  map[string]int
	refundByKey  map[string]int
	refunded     map[string]int64 // the money given back, by id of the charge
	lastCreation time.Time
}

func openBook(config Config) (*book, error) {
	file, entries, err := openLedger(config.LedgerPath)
	if err != nil {
		return nil, err
	}
	b := &book{
		dedup: config.Dedup, declined: config.DeclinedAmounts, now: config.Now, file: file,
		chargeByID: map[string]int{}, chargeByKey: map[string]int{}, refundByKey: map[string]int{},
		refunded: map[string]int64{},
	}
	for _, e := range entries {
		b.apply(e)
	}
	return b, nil
}

// charge makes a charge, or returns the earlier charge with the same key; replayed reports which.
func (b *book) charge(key string, req ChargeRequest) (c Charge, replayed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, ok := b.chargeByKey[key]; ok && b.dedup && key != "" {
		if !b.charges[at].equal(req) {
			return Charge{}, false, keyReused()
		}
		return b.charges[at], true, nil
	}
	c = Charge{
		ID: fmt.Sprintf("ch_%012d", len(b.charges)+1), Status: Succeeded, ChargeRequest: req,
		IdempotencyKey: key, Created: b.creation(),
	}
	entry := Entry{Type: EntryCharge, Charge: &c}
	if slices.Contains(b.declined, req.Amount) {
		c.Status, entry.Type = Declined, EntryDeclined
	}
	return c, false, b.record(entry)
}

// refund makes a refund, or returns the earlier refund with the same key; replayed reports which.
func (b *book) refund(key string, req RefundRequest) (r Refund, replayed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, ok := b.refundByKey[key]; ok && b.dedup && key != "" {
		if b.refunds[at].RefundRequest != req {
			return Refund{}, false, keyReused()
		}
		return b.refunds[at], true, nil
	}
	if err := b.refundable(req); err != nil {
		return Refund{}, false, err
	}
	r = Refund{
		ID: fmt.Sprintf("re_%012d", len(b.refunds)+1), Status: Succeeded, RefundRequest: req,
		IdempotencyKey: key, Created: b.creation(),
	}
	return r, false, b.record(Entry{Type: EntryRefund, Refund: &r})
}

func (b *book) refundable(req RefundRequest) error {
	at, ok := b.chargeByID[req.Charge]
	if !ok {
		return notFound(req.Charge)
	}
	charge := b.charges[at]
	if charge.Status != Succeeded || req.Amount > charge.Amount-b.refunded[req.Charge] {
		return &problem{http.StatusUnprocessableEntity, codeTooMuch, "the amount is more than what is left of the charge"}
	}
	return nil
}

// creation returns a time for a new entry. It is after the time of the entry
// before, so that times are in the order of ids even if the clock is set back.
func (b *book) creation() time.Time {
	now := b.now().UTC().Truncate(time.Microsecond)
	if !now.After(b.lastCreation) {
		now = b.lastCreation.Add(time.Microsecond)
	}
	return now
}

// record makes the entry durable, and then visible.
func (b *book) record(e Entry) error {
	if err := b.file.append(e); err != nil {
		return err
	}
	b.apply(e)
	return nil
}

// apply adds an entry to the memory, both for a new entry and for an entry that was read back.
func (b *book) apply(e Entry) {
	b.entries = append(b.entries, e)
	if e.Type == EntryRefund {
		b.refundByKey[e.Refund.IdempotencyKey] = len(b.refunds)
		b.refunds = append(b.refunds, *e.Refund)
		b.refunded[e.Refund.Charge] += e.Refund.Amount
		b.lastCreation = e.Refund.Created
		return
	}
	b.chargeByID[e.Charge.ID] = len(b.charges)
	b.chargeByKey[e.Charge.IdempotencyKey] = len(b.charges)
	b.charges = append(b.charges, *e.Charge)
	b.lastCreation = e.Charge.Created
}

func (b *book) find(id string) (Charge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.chargeByID[id]
	if !ok {
		return Charge{}, false
	}
	return b.charges[at], true
}

// query selects charges or refunds for a page. A zero field does not restrict.
type query struct {
	key, reference, after string
	from, to              time.Time
	limit                 int
}

func (q query) chooses(id, key, reference string, created time.Time) bool {
	return id > q.after &&
		(q.key == "" || key == q.key) &&
		(q.reference == "" || reference == q.reference) &&
		!created.Before(q.from) &&
		(q.to.IsZero() || created.Before(q.to))
}

func (q query) choosesCharge(c Charge) bool {
	return q.chooses(c.ID, c.IdempotencyKey, c.Reference, c.Created)
}

func (q query) choosesRefund(r Refund) bool {
	return q.chooses(r.ID, r.IdempotencyKey, r.Reference, r.Created)
}

func (b *book) list(q query) Page {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, more := firstOf(b.charges, q.limit, q.choosesCharge)
	return Page{Data: data, HasMore: more}
}

func (b *book) listRefunds(q query) refundPage {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, more := firstOf(b.refunds, q.limit, q.choosesRefund)
	return refundPage{Data: data, HasMore: more}
}

// firstOf returns the chosen items up to the limit, and whether there are
// more. It never returns nil, because nil would not be a list in JSON.
func firstOf[T any](items []T, limit int, chosen func(T) bool) (first []T, more bool) {
	first = []T{}
	for _, item := range items {
		if !chosen(item) {
			continue
		}
		if len(first) == limit {
			return first, true
		}
		first = append(first, item)
	}
	return first, false
}

func (b *book) effects() Ledger {
	b.mu.Lock()
	defer b.mu.Unlock()
	return effects(b.entries)
}

func (b *book) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.file.close()
}
