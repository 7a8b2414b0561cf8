package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onceward/onceward/store"
)

// DeadLetters returns the records that wait for a person, at most limit of them, behind the ID given; start with the
// zero ID. A limit of zero is one of [store.MaxPage]. Its LastError says why it became unknown, its ReconcileError why
// the last try learned nothing.
func (d *Operator) DeadLetters(ctx context.Context, after store.ID, limit int) ([]store.Record, error) {
	if limit <= 0 {
		limit = store.MaxPage
	}
	return d.search(ctx, store.Filter{State: store.StateUnknown, After: after}, limit, func(rec *store.Record) bool {
		return rec.DeadLetter
	})
}

// Query says what is known of an operation that is looked for.
type Query struct {
	// Subject is a downstream key or a provider's id.
	Subject string
	// Steps are the names of the steps that may have used the downstream key.
	Steps []string
	// State restricts the search to one state; zero is for all. Without it the whole store is looked through.
	State store.State
}

// Find returns the records that a downstream key or a provider's id belongs to, ten at most, without the bodies of
// their answers. A provider's id is known of those that were completed with it. A key and its scope are enough for
// [store.Store.Get]; this is for those who have only what the other system knows. It looks through all records of the
// state, because no index is kept for it. If the downstream keys of some cannot be derived, because their secret is not
// configured any more, it returns what was found and an error that says so.
func (d *Operator) Find(ctx context.Context, q Query) ([]store.Record, error) {
	const most = 10
	rule := Rule{Steps: q.Steps}
	var missing error
	found, err := d.search(ctx, store.Filter{State: q.State}, most, func(rec *store.Record) bool {
		subjects, err := rule.subjects(d.guard, rec)
		if err != nil && missing == nil && rec.Version != 0 { // else the record says itself why it cannot be read
			missing = fmt.Errorf("reconcile: not every record could be compared: %w", err)
		}
		return slices.Contains(subjects, q.Subject)
	})
	return found, errors.Join(err, missing)
}

// search goes through the pages of a filter until it has enough.
func (d *Operator) search(ctx context.Context, f store.Filter, limit int, wanted func(*store.Record) bool) (found []store.Record, err error) {
	for {
		page, err := d.lister.List(ctx, f)
		if err != nil {
			return found, err
		}
		for i := range page {
			if len(found) < limit && wanted(&page[i]) {
				found = append(found, page[i])
			}
		}
		if len(page) < store.MaxPage || len(found) >= limit {
			return found, nil
		}
		f.After = page[len(page)-1].ID
	}
}

// Lost returns the phased operations, and what else resumes, that have lost their owners: at most limit of them, behind
// the ID given; start with the zero ID. A limit of zero is one of [store.MaxPage]. Most are resumed soon. One whose
// LeaseUntil is long past will not be, because no running program knows its name, its steps or its data: a person can
// end it.
func (d *Operator) Lost(ctx context.Context, after store.ID, limit int) ([]store.Record, error) {
	if limit <= 0 {
		limit = store.MaxPage
	}
	filter := store.Filter{State: store.StateInProgress, Due: true, After: after}
	return d.search(ctx, filter, limit, func(rec *store.Record) bool { return rec.OnLost == store.LostResume })
}
