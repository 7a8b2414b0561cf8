package dynamodb

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
)

var _ store.Lister = (*Store)(nil)

// summaryAttributes are the attributes that a list needs.
var summaryAttributes = []string{attrPartition, attrSort, attrRecord}

// List implements [store.Lister]. Records in progress and unknown records are found by the index of due items, which
// follows the table a moment later, and are then read with strong consistency. Settled records are in no index: for a
// filter that may select them, the table is scanned, which reads, and is charged for, every item after After until the
// page is full. The order is the order of the table, or of the hashes.
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	c := &chosen{Filter: f, limit: store.MaxPage, now: s.clock.now(), margin: s.clock.margin()}
	if f.Limit > 0 {
		c.limit = min(c.limit, f.Limit)
	}
	if dueKind(f.State) != 0 {
		if err := s.listDue(ctx, c); err != nil {
			return nil, err
		}
		return c.records, nil
	}
	if err := s.scan(ctx, c.After, c.State, c.add); err != nil {
		return nil, err
	}
	return c.records, nil
}

// chosen gathers the records that a filter selects.
type chosen struct {
	store.Filter
	limit   int
	now     time.Time
	margin  time.Duration
	records []store.Record
}

// add takes a record if the filter selects it, and reports whether there is room for more.
func (c *chosen) add(it item) (more bool) {
	at, ok := placeOfKey(it)
	if !ok {
		return true
	}
	v, err := summarise(&at, it)
	// A record without a readable ID cannot be queried.
	if v.State == store.StateNone || v.ID == (store.ID{}) || c.Scope != "" && v.Scope != c.Scope ||
		c.Operation != "" && v.Operation != c.Operation ||
		c.State != store.StateNone && v.State != c.State || c.Due && err == nil && !c.isDue(&v.Record) {
		return true
	}
	c.records = append(c.records, v.Record)
	return len(c.records) < c.limit
}

// isDue reports whether a record is due. A lease or an expiry that other nodes may treat as not yet over is not due.
func (c *chosen) isDue(rec *store.Record) bool {
	if rec.State == store.StateUnknown {
		return !rec.Due().After(c.now)
	}
	return !rec.Due().After(c.now.Add(-c.margin))
}

// mostKeys is how many keys of an index are kept in memory for a list.
const mostKeys = 1 << 16

// listDue selects among the entries of the index of due items, in the order of the keys of the table: the part of the
// index that has a record depends on how many parts there were when it was written.
func (s *Store) listDue(ctx context.Context, c *chosen) error {
	until := always
	if c.Due {
		until = c.now.UnixMicro()
	}
	var after []byte
	if c.After != (store.ID{}) {
		at := placeOf(c.After)
		after = bytesOf(at.key()[attrPartition])
	}
	for {
		keys, more, err := s.dueKeys(ctx, dueRange{kind: dueKind(c.State), until: until}, after)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(keys, batchKeys) {
			found, err := s.readAll(ctx, some, summaryAttributes...)
			if err != nil {
				return err
			}
			slices.SortFunc(found, compareKeys)
			for _, it := range found {
				if !c.add(it) {
					return nil
				}
			}
		}
		if !more {
			return nil
		}
		after = bytesOf(keys[len(keys)-1][attrPartition])
	}
}

// dueKeys returns the first keys after a given key in a range of all parts of the index, and whether there are more.
func (s *Store) dueKeys(ctx context.Context, r dueRange, after []byte) (keys []item, more bool, err error) {
	shards, err := s.allShards(ctx)
	if err != nil {
		return nil, false, err
	}
	first := func(limit int) {
		slices.SortFunc(keys, compareKeys)
		keys = slices.CompactFunc(keys, func(a, b item) bool { return compareKeys(a, b) == 0 }) // the entry moved
		if len(keys) > limit {
			clear(keys[limit:])
			keys, more = keys[:limit], true
		}
	}
	for shard := range shards {
		r.shard = byte(shard)
		err := s.eachDue(ctx, r, func(page []item) (bool, error) {
			for _, key := range page {
				if bytes.Compare(bytesOf(key[attrPartition]), after) > 0 {
					keys = append(keys, key)
				}
			}
			if len(keys) > 2*mostKeys {
				first(mostKeys)
			}
			return true, nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	first(mostKeys)
	return keys, more, nil
}

func compareKeys(a, b item) int {
	return bytes.Compare(bytesOf(a[attrPartition]), bytesOf(b[attrPartition]))
}

// scan calls found with the summaries of all records after an ID, until it returns false.
func (s *Store) scan(ctx context.Context, after store.ID, state store.State, found func(item) (more bool)) error {
	in := &ddb.ScanInput{
		TableName: &s.table, ConsistentRead: aws.Bool(true),
		FilterExpression:          aws.String("begins_with(#pk, :kind)"),
		ExpressionAttributeValues: item{":kind": binaryValue([]byte{kindRecord})},
	}
	in.ProjectionExpression, in.ExpressionAttributeNames = projection(summaryAttributes)
	if state != store.StateNone {
		in.FilterExpression = aws.String("begins_with(#pk, :kind) AND begins_with(#rec, :state)")
		in.ExpressionAttributeValues[":state"] = binaryValue([]byte{byte(state)})
	}
	if after != (store.ID{}) {
		at := placeOf(after)
		in.ExclusiveStartKey = at.key()
	}
	for {
		if err := s.ready(ctx); err != nil {
			return err
		}
		out, err := s.client.Scan(ctx, in, s.observing)
		if err != nil {
			return unavailable(err)
		}
		for _, it := range out.Items {
			if !found(it) {
				return nil
			}
		}
		if len(out.LastEvaluatedKey) == 0 {
			return nil
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}

// Stats implements [store.Lister]. It scans the table, which reads, and is charged for, every item.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	stats := store.Stats{Records: make(map[store.State]int64)}
	now := s.clock.now().Add(-s.clock.margin()) // a lease that other nodes may treat as running is not lost
	err := s.scan(ctx, store.ID{}, store.StateNone, func(it item) bool {
		at, ok := placeOfKey(it)
		if !ok {
			return true
		}
		v, _ := summarise(&at, it) // of a record that cannot be read the state counts
		if v.State == store.StateNone {
			return true
		}
		stats.Count(&v.Record, now)
		return true
	})
	if err != nil {
		return store.Stats{}, err
	}
	return stats, nil
}
