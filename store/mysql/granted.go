package mysql

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
)

// The writes of an attempt's owner that take one round trip, because they need no read.
const (
	// extendRecord is a heartbeat. It changes only the revision and the end of the lease.
	extendRecord = `UPDATE @record SET revision = ?, due = @now + ?
		WHERE hash = ? AND attempt = ? AND revision = ? AND NOT @read_only`
	// completeRecord stores the answer of an attempt whose record is
	// unchanged since the grant. The expiry is returned as the insert ID.
	completeRecord = `UPDATE @record SET revision = ?, state = ?, due = LAST_INSERT_ID(@now + ?),
			settled_at = @now, record = ?, content = ?
		WHERE hash = ? AND attempt = ? AND revision = ? AND NOT @read_only`
)

// maxGranted is the most grants that are remembered. If a process runs
// more handlers at once, some of them complete with one more round trip.
const maxGranted = 4096

// granted remembers the records of the attempts that this process owns, as they were granted, except for their leases.
// A record with the same attempt and revision is unchanged, so its owner can write to it without reading it first.
type granted struct {
	mu      sync.Mutex
	records map[store.Claim]grantedRecord
}

type grantedRecord struct {
	record   store.Record
	revision int64
}

// add remembers a grant.
func (g *granted) add(rec *store.Record, revision int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.records == nil {
		g.records = make(map[store.Claim]grantedRecord)
	}
	if len(g.records) >= maxGranted {
		clear(g.records)
	}
	g.records[store.Claim{ID: rec.ID, Attempt: rec.Attempt}] = grantedRecord{*rec, revision}
}

// take returns a grant, and forgets it: the next write changes the record.
func (g *granted) take(c store.Claim) (grantedRecord, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	found, ok := g.records[c]
	delete(g.records, c)
	return found, ok
}

// extendAtOnce extends a lease in one round trip. It reports false if that did not change the record, or if the outcome
// is not known. The caller then uses the state machine, which extends the lease or returns the reason.
func (s *Store) extendAtOnce(ctx context.Context, c store.Claim, lease time.Duration) bool {
	owned, ok := s.granted.take(c)
	if !ok || lease < store.ClockStep {
		return false
	}
	hash, revision := c.HashBytes(), newRevision()
	if s.writeOne(ctx, extendRecord, revision, lease.Microseconds(), hash[:], c.Attempt, owned.revision) != nil {
		return false
	}
	s.granted.add(&owned.record, revision)
	return true
}

// completeAtOnce stores an answer in one round trip. It reports false if that did not change the record, or if the
// outcome is not known. The caller then uses the state machine.
func (s *Store) completeAtOnce(
	ctx context.Context, c store.Claim, done *store.Completion,
) (expires time.Time, completed bool) {
	before, ok := s.granted.take(c)
	if !ok {
		return expires, false
	}
	event := store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done}
	after, _, err := store.Step(before.record, event, before.record.CreatedAt)
	if err != nil {
		return expires, false
	}
	w := encode(&after)
	if s.noteProvider(ctx, &before.record, &after) != nil {
		return expires, false
	}
	result, err := s.exec(ctx, completeRecord, w.revision, w.state, after.Retention.Microseconds(), w.record, w.content,
		w.hash[:], c.Attempt, before.revision)
	if err != nil {
		return expires, false
	}
	n, err := result.RowsAffected()
	at, idErr := result.LastInsertId()
	if errors.Join(err, idErr) != nil || n != 1 {
		return expires, false
	}
	return fromMicros(at), true
}
