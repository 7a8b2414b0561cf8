package memory

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Store implements all of these interfaces.
var (
	_ store.Store      = (*Store)(nil)
	_ store.Waiter     = (*Store)(nil)
	_ store.Sweeper    = (*Store)(nil)
	_ store.Reaper     = (*Store)(nil)
	_ store.Reconciler = (*Store)(nil)
	_ store.Buster     = (*Store)(nil)
	_ store.Lister     = (*Store)(nil)
	_ store.Rewriter   = (*Store)(nil)
	_ store.Finder     = (*Store)(nil)
	_ store.Retainer   = (*Store)(nil)
)

// Sweep implements [store.Sweeper].
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return s.forEach(ctx, limit, store.Event{Kind: store.EventSweep})
}

// Reap implements [store.Reaper].
func (s *Store) Reap(ctx context.Context, limit int, soft bool) (int, error) {
	return s.forEach(ctx, limit, store.Event{Kind: store.EventReap, Soft: soft})
}

// forEach applies an event to all records until it has changed limit of them.
func (s *Store) forEach(ctx context.Context, limit int, event store.Event) (changed int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id := range s.records {
		if changed >= limit {
			break
		}
		applied, stepErr := s.step(id, event, now)
		if stepErr != nil {
			// An unreadable record does not prevent the other records from being processed.
			err = errors.Join(err, stepErr)
		}
		if applied.Effect != store.EffectNone {
			changed++
		}
	}
	return changed, err
}

// FindHash implements [store.Finder]. It scans all records, as [Store.FindProviderID] does.
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	found, err := s.find(ctx, func(rec *store.Record) bool { return rec.HashBytes() == wanted })
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Record{}, err
	}
	return found[0], nil
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	return s.find(ctx, func(rec *store.Record) bool { return rec.ProviderID == providerID && providerID != "" })
}

// find returns the newest of the wanted records.
func (s *Store) find(ctx context.Context, wanted func(*store.Record) bool) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []store.Record
	for _, rec := range s.records {
		if wanted(rec) {
			found = append(found, summary(rec))
		}
	}
	return store.Newest(found), nil
}

// summary returns a record without its content.
func summary(rec *store.Record) store.Record {
	summary := *rec
	summary.Data, summary.Response.Body = nil, nil
	return summary
}

// List implements [store.Lister].
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var chosen []store.Record
	for _, rec := range s.records {
		if matches(rec, f, now) {
			chosen = append(chosen, summary(rec))
		}
	}
	slices.SortFunc(chosen, func(a, b store.Record) int { return compareIDs(a.ID, b.ID) })
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	return chosen[:min(limit, len(chosen))], nil
}

func matches(rec *store.Record, f store.Filter, now time.Time) bool {
	return (f.Scope == "" || rec.Scope == f.Scope) &&
		(f.Operation == "" || rec.Operation == f.Operation) &&
		(f.State == store.StateNone || rec.State == f.State) &&
		(!f.Due || !rec.Due().After(now)) &&
		(f.After == store.ID{} || compareIDs(f.After, rec.ID) < 0)
}

// compareIDs orders IDs like a store with binary keys.
func compareIDs(a, b store.ID) int {
	return bytes.Compare(a.AppendBinary(nil), b.AppendBinary(nil))
}

// Stats implements [store.Lister].
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	if err := ctx.Err(); err != nil {
		return store.Stats{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := store.Stats{Records: make(map[store.State]int64)}
	now := s.now()
	for _, rec := range s.records {
		stats.Count(rec, now)
	}
	return stats, nil
}
