package dynamodb

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.Auditor          = (*Store)(nil)
	_ store.AuditLister      = (*Store)(nil)
	_ store.ExecutionAuditor = (*Store)(nil)
)

// These are the attributes of an entry.
const (
	attrID        = "id"
	attrActor     = "actor"
	attrAction    = "action"
	attrReason    = "reason"
	attrOutcome   = "outcome"
	attrOperation = "operation"
	attrDecision  = "decision"
	attrOrigin    = "origin"
)

// indexLead is by how many microseconds an entry's time in the index may be later than the time at which the entry was
// written: entries written at the same moment get consecutive places.
const indexLead = int64(time.Second / time.Microsecond)

// entry returns the beginning of an item of a list. The item is found by its ID, and by the index in the order of time.
func (s *Store) entry(kind byte, id store.ID) item {
	at, now := placeOf(id), s.clock.now().UnixMicro()
	sort := s.serial(now)
	it := keyOf(kind, at.hash[:], sort)
	it[attrID], it[attrAt] = binaryValue(id.AppendBinary(nil)), numberValue(now)
	it[attrDueShard] = binaryValue([]byte{kind, s.shardOf(sort[len(sort)-1:])})
	it[attrDueAt] = momentValue(s.clock.unique())
	return it
}

// AddAudit implements [store.Auditor].
func (s *Store) AddAudit(ctx context.Context, e store.AuditEntry) error {
	it := s.entry(kindAudit, e.ID)
	it[attrAttempt], it[attrActor] = numberValue(e.Attempt), stringValue(e.Actor)
	it[attrAction], it[attrReason] = stringValue(e.Action), stringValue(e.Reason)
	it[attrOutcome] = stringValue(e.Outcome)
	return s.add(ctx, it)
}

func decodeAudit(id store.ID, it item) store.AuditEntry {
	return store.AuditEntry{
		ID: id, Attempt: numberOf(it[attrAttempt]), Actor: stringOf(it[attrActor]),
		Action: stringOf(it[attrAction]), Reason: stringOf(it[attrReason]),
		Outcome: stringOf(it[attrOutcome]), At: fromMicroseconds(numberOf(it[attrAt])),
	}
}

// Audit implements [store.Auditor].
func (s *Store) Audit(ctx context.Context, id store.ID) ([]store.AuditEntry, error) {
	found, err := s.entriesAbout(ctx, kindAudit, id)
	if err != nil {
		return nil, err
	}
	entries := make([]store.AuditEntry, len(found))
	for i, it := range found {
		entries[i] = decodeAudit(id, it)
	}
	return entries, nil
}

// ListAudit implements [store.AuditLister]. Without an ID it reads the index, which follows the table a moment later.
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	return listEntries(ctx, s, kindAudit, f, decodeAudit)
}

// PurgeAudit implements [store.Auditor].
func (s *Store) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purgeEntries(ctx, kindAudit, age, limit)
}

// AddExecution implements [store.ExecutionAuditor]. The entry is written on its own, also inside a transaction.
func (s *Store) AddExecution(ctx context.Context, e store.ExecutionEntry) error {
	it := s.entry(kindExecution, e.ID)
	it[attrAttempt], it[attrActor] = numberValue(e.Attempt), stringValue(e.Actor)
	it[attrOperation] = stringValue(e.Operation)
	it[attrDecision], it[attrOrigin] = numberValue(int64(e.Decision)), numberValue(int64(e.Origin))
	return s.add(ctx, it)
}

func decodeExecution(id store.ID, it item) store.ExecutionEntry {
	return store.ExecutionEntry{
		ID: id, Attempt: numberOf(it[attrAttempt]), Actor: stringOf(it[attrActor]),
		Operation: stringOf(it[attrOperation]), Decision: store.Decision(numberOf(it[attrDecision])),
		Origin: store.Origin(numberOf(it[attrOrigin])), At: fromMicroseconds(numberOf(it[attrAt])),
	}
}

// ListExecutions implements [store.ExecutionAuditor]. Without an ID it reads the index, which follows the table a
// moment later.
func (s *Store) ListExecutions(ctx context.Context, f store.AuditFilter) ([]store.ExecutionEntry, error) {
	return listEntries(ctx, s, kindExecution, f, decodeExecution)
}

// PurgeExecutions implements [store.ExecutionAuditor].
func (s *Store) PurgeExecutions(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purgeEntries(ctx, kindExecution, age, limit)
}

// entriesAbout returns the entries about an ID, oldest first.
func (s *Store) entriesAbout(ctx context.Context, kind byte, id store.ID) ([]item, error) {
	at := placeOf(id)
	found, err := s.partition(ctx, kind, at.hash[:])
	return slices.DeleteFunc(found, func(it item) bool {
		return !bytes.Equal(bytesOf(it[attrID]), id.AppendBinary(nil))
	}), err
}

// listEntries returns the entries that a filter selects, the newest first.
func listEntries[T any](ctx context.Context, s *Store, kind byte, f store.AuditFilter,
	decode func(store.ID, item) T,
) ([]T, error) {
	found, err := s.newestEntries(ctx, kind, &f)
	if err != nil {
		return nil, err
	}
	var entries []T
	for _, it := range found {
		id, err := store.ParseID(bytesOf(it[attrID]))
		if err != nil || !f.Chooses(id, fromMicroseconds(numberOf(it[attrAt]))) {
			continue
		}
		if entries = append(entries, decode(id, it)); len(entries) == f.Page() {
			break
		}
	}
	return entries, nil
}

// newestEntries returns entries, the newest first, that include all entries of the page that a filter selects.
func (s *Store) newestEntries(ctx context.Context, kind byte, f *store.AuditFilter) (found []item, err error) {
	if f.ID != (store.ID{}) {
		if found, err = s.entriesAbout(ctx, kind, f.ID); err != nil {
			return nil, err
		}
		slices.Reverse(found)
		return found, nil
	}
	r := dueRange{kind: kind, from: microseconds(f.Since), until: always, newest: true}
	if !f.Until.IsZero() {
		r.until = f.Until.UnixMicro() + indexLead
	}
	shards, err := s.allShards(ctx)
	if err != nil {
		return nil, err
	}
	for shard := range shards {
		r.shard = byte(shard)
		some, err := s.newestIn(ctx, r, f)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b item) int { return cmp.Compare(momentOf(b[attrDueAt]), momentOf(a[attrDueAt])) })
	return found, nil
}

// newestIn returns the newest entries of one part of the index, until there are enough for a page.
func (s *Store) newestIn(ctx context.Context, r dueRange, f *store.AuditFilter) (found []item, err error) {
	err = s.eachDue(ctx, r, func(keys []item) (bool, error) {
		for some := range slices.Chunk(keys, batchKeys) {
			items, err := s.readAll(ctx, some)
			if err != nil {
				return false, err
			}
			for _, it := range items {
				if at := fromMicroseconds(numberOf(it[attrAt])); f.Chooses(store.ID{}, at) {
					found = append(found, it)
				}
			}
			if len(found) >= f.Page() {
				return false, nil
			}
		}
		return true, nil
	})
	return found, err
}

// purgeEntries removes entries that were written longer ago than an age.
func (s *Store) purgeEntries(ctx context.Context, kind byte, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, kind, attrAt, age, limit, func(it item) error {
		return s.remove(ctx, item{attrPartition: it[attrPartition], attrSort: it[attrSort]})
	})
}
