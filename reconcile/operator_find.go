package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Query describes an operation to find.
type Query struct {
	// Subject is the hash of a key as logs show it, a downstream key, or a provider's id.
	Subject string
	// Steps are the names of the steps that may have used the downstream key. They are needed on a store that is no
	// [store.Finder].
	Steps []string
	// State restricts the search to one state; zero is for all.
	State store.State
}

// Find returns the records that a hash, a downstream key or a provider's id belongs to, at most ten, without the bodies
// of their answers. With a key and its scope use [store.Store.Get]; Find is for someone who only has what a log shows
// or the other system knows.
//
// On a [store.Finder] it uses an index. On other stores it scans all records of the state, which takes time. If it
// cannot derive the downstream keys of some records then, because their secret is no longer configured, it returns what
// was found with an error.
func (op *Operator) Find(ctx context.Context, q Query) ([]store.Record, error) {
	if op.finder == nil {
		return op.walk(ctx, q)
	}
	return op.lookUp(ctx, q)
}

// lookUp uses the indexes of the store.
func (op *Operator) lookUp(ctx context.Context, q Query) (found []store.Record, err error) {
	keys := append(op.guard.OpenDownstreamKey(q.Subject), onceward.OpenedKey{Hash: q.Subject})
	for _, key := range keys {
		rec, err := op.finder.FindHash(ctx, key.Hash)
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return nil, err
		case key.Secret == 0 || key.Secret == rec.DownstreamSecret || rec.Version == 0: // version 0: it cannot be read
			found = append(found, rec)
		}
	}
	carrying, err := op.finder.FindProviderID(ctx, q.Subject)
	if err != nil {
		return nil, err
	}
	for _, rec := range carrying {
		if !slices.ContainsFunc(found, func(other store.Record) bool { return other.ID == rec.ID }) {
			found = append(found, rec)
		}
	}
	return slices.DeleteFunc(found, func(rec store.Record) bool {
		return q.State != store.StateNone && rec.State != q.State
	}), nil
}

// walk scans all records of a state, and derives the downstream keys of each.
func (op *Operator) walk(ctx context.Context, q Query) ([]store.Record, error) {
	rule := Rule{Steps: q.Steps}
	var missing error
	found, err := op.search(ctx, store.Filter{State: q.State}, store.MaxFound, func(rec *store.Record) bool {
		subjects, err := rule.subjects(op.guard, rec)
		if err != nil && missing == nil && rec.Version != 0 { // else the record contains the reason itself
			missing = fmt.Errorf("reconcile: not every record could be compared: %w", err)
		}
		return rec.Hash() == q.Subject || slices.Contains(subjects, q.Subject)
	})
	return found, errors.Join(err, missing)
}
