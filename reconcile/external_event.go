package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Apply settles the record that an external event is about, if it is unknown and its external events say how it ended.
// An external event that came early, about an operation that is still in progress or is not recorded yet, stays where
// it is kept, and is read when the record becomes unknown. One that says nothing yet changes nothing either, however
// often it comes: the poller asks when it is due. A external event that is bound to a scope settles records of that
// scope alone, whatever its subject (B6).
//
// Hand this function to a webhook receiver. The external event itself must have been kept before: what counts is what
// the store holds about its subject, not what is handed in here.
//
// No store keeps an index from a subject to its record, so each call looks through all unknown records, dead letters
// too: a page of [store.MaxPage] of them costs one query. That is little as long as few outcomes are unknown. Where
// many are, leave the receiver without it: the poller reads the external events as well, when the records are due.
func (p *Poller) Apply(ctx context.Context, n store.ExternalEvent) error {
	var found []store.ID
	err := p.unknown(ctx, func(rec *store.Record) bool {
		if n.MaySettle(rec.Scope) && p.isAbout(&n, rec) {
			found = append(found, rec.ID)
		}
		return ctx.Err() == nil
	})
	for _, id := range found {
		rec, getErr := p.get(ctx, id)
		if getErr == nil && rec.State == store.StateUnknown {
			_, getErr = p.heed(ctx, &rec)
		}
		err = errors.Join(err, getErr)
	}
	return errors.Join(err, ctx.Err())
}

// isAbout reports whether an external event is about a record. Of a record whose downstream keys cannot be derived the
// poller tells, when it is due.
func (p *Poller) isAbout(n *store.ExternalEvent, rec *store.Record) bool {
	rule := p.rule(rec.Operation)
	if rule == nil || rule.Source != n.Source {
		return false
	}
	subjects, _ := rule.subjects(p.guard, rec)
	return slices.Contains(subjects, n.Subject)
}

// heed settles a record if its external events say how. If they do not, it stays as it is: that was no try.
func (p *Poller) heed(ctx context.Context, rec *store.Record) (Report, error) {
	answer, err := p.learn(ctx, *rec, false)
	if err != nil || answer.kind == stillUnknown {
		return Report{}, err
	}
	return p.settle(ctx, rec, answer)
}

// lettersDue reports whether it is time to look for external events about dead letters. Nobody is asked about them any
// more, but a external event that came late, and whose Apply failed, should not be lost on them. A look costs a query
// for each, so it is rare.
func (p *Poller) lettersDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lettersAt.IsZero() && time.Since(p.lettersAt) < p.config.MaxBackoff {
		return false
	}
	p.lettersAt = time.Now()
	return true
}
