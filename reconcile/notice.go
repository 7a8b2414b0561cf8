package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward"
)

// Apply settles the record that a notice is about, if it is unknown. A notice that came early, about an operation that is
// still in progress or is not recorded yet, stays where it is kept, and is read when the record becomes unknown. Hand this
// function to a webhook receiver: it is called when the notice is kept.
func (p *Poller) Apply(ctx context.Context, n onceward.Notice) error {
	var found []onceward.ID
	err := p.unknown(ctx, time.Time{}, func(rec *onceward.Record) bool {
		rule := p.rule(rec.Operation)
		if rule != nil && rule.Source == n.Source && slices.Contains(rule.subjects(rec), n.Subject) {
			found = append(found, rec.ID)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return err
	}
	for _, id := range found {
		if _, err := p.Reconcile(ctx, id); err != nil {
			return err
		}
	}
	return ctx.Err()
}
