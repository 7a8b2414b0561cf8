package dynamodb

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
)

// lateKept is how long late completions are kept.
const lateKept = 90 * 24 * time.Hour

// These are the attributes of evidence.
const (
	attrAt      = "at"
	attrAttempt = "attempt"
	attrHeader  = "header"
	attrStatus  = "status"
	attrLost    = "body_lost"
	attrSource  = "source"
	attrScope   = "scope"
	attrAny     = "any_scope"
	attrEventID = "event_id"
	attrSubject = "subject"
	attrCame    = "received_at"
	// attrRequest names the request that has stored the name of an event.
	attrRequest = "request"
)

// microseconds returns a time in its stored form: the zero time is zero.
func microseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicroseconds(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// serial returns a sort key that orders by a time, and for equal times by when the key was made.
func (s *Store) serial(at int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(at))
	b = binary.BigEndian.AppendUint64(b, uint64(s.clock.unique()))
	return append(b, random(4)...)
}

// add stores an item that is alone under its key. A repeated request stores the same item again.
func (s *Store) add(ctx context.Context, it item) error {
	if err := s.writable(ctx); err != nil {
		return err
	}
	if size := sizeOf(it); size > maxItem {
		return fmt.Errorf("%w, and not %d bytes", ErrTooLarge, size)
	}
	err := unconflicted(ctx, func() error {
		_, err := s.client.PutItem(ctx, &ddb.PutItemInput{TableName: &s.table, Item: it}, s.observing)
		return err
	})
	return unavailable(err)
}

// partition reads all items of a kind with one hash, in the order of their sort keys, with strong consistency.
func (s *Store) partition(ctx context.Context, kind byte, hash []byte) (found []item, err error) {
	in := &ddb.QueryInput{
		TableName: &s.table, ConsistentRead: aws.Bool(true),
		KeyConditionExpression:    aws.String("#pk = :pk"),
		ExpressionAttributeNames:  map[string]string{"#pk": attrPartition},
		ExpressionAttributeValues: item{":pk": binaryValue(append([]byte{kind}, hash...))},
	}
	err = s.eachPage(ctx, in, func(items []item) (bool, error) {
		found = append(found, items...)
		return true, nil
	})
	return found, err
}

// AddLateCompletion implements [store.LateCompletionKeeper]. The completion is kept for 90 days. An answer that does
// not fit into an item is kept without its body.
func (s *Store) AddLateCompletion(ctx context.Context, late store.LateCompletion) error {
	at := placeOf(late.ID)
	it := keyOf(kindLate, at.hash[:], s.serial(microseconds(late.At)))
	it[attrID] = binaryValue(late.ID.AppendBinary(nil))
	it[attrAttempt], it[attrAt] = numberValue(late.Attempt), numberValue(microseconds(late.At))
	response := fitting(&store.Completion{Response: late.Response}, &store.Record{}).Response
	it[attrStatus] = numberValue(int64(response.Status))
	it[attrHeader] = binaryValue(store.AppendHeader(nil, response.Header))
	if len(response.Body) > 0 {
		it[attrBody] = binaryValue(response.Body)
	}
	if response.NotStored {
		it[attrLost] = numberValue(1)
	}
	it[attrExpires] = numberValue(s.clock.now().Add(lateKept).Unix())
	return s.add(ctx, it)
}

// LateCompletions implements [store.LateCompletionKeeper].
func (s *Store) LateCompletions(ctx context.Context, id store.ID) ([]store.LateCompletion, error) {
	at := placeOf(id)
	items, err := s.partition(ctx, kindLate, at.hash[:])
	if err != nil {
		return nil, err
	}
	found := make([]store.LateCompletion, 0, len(items))
	for _, it := range items {
		if !bytes.Equal(bytesOf(it[attrID]), id.AppendBinary(nil)) {
			continue
		}
		header, err := store.DecodeHeader(bytesOf(it[attrHeader]))
		if err != nil {
			return nil, &store.UnreadableError{Reason: err.Error()}
		}
		found = append(found, store.LateCompletion{
			Claim: store.Claim{ID: id, Attempt: numberOf(it[attrAttempt])}, At: fromMicroseconds(numberOf(it[attrAt])),
			Response: store.Response{
				Status: int(numberOf(it[attrStatus])), Header: header, Body: bytesOf(it[attrBody]),
				NotStored: numberOf(it[attrLost]) != 0,
			},
		})
	}
	return found, nil
}

func appendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// eventName returns the identity of an external event.
func eventName(e *store.ExternalEvent) []byte {
	b := appendText(nil, e.Source)
	if e.AnyScope {
		b = append(b, 1)
	} else {
		b = appendText(append(b, 0), e.Scope)
	}
	return hashOf(append(b, e.EventID...))
}

// subjectName returns the name by which external events are found.
func subjectName(source, subject string) []byte {
	return hashOf(append(appendText(nil, source), subject...))
}

// AddExternalEvent implements [store.ExternalEventKeeper]. The event is stored under its subject, where a consistent
// read finds it, and its name in a second item, which can exist only once: both are stored together. An event that does
// not fit into an item is refused with [ErrTooLarge].
func (s *Store) AddExternalEvent(ctx context.Context, e store.ExternalEvent) (added bool, err error) {
	if err := s.writable(ctx); err != nil {
		return false, err
	}
	if e.AnyScope {
		e.Scope = ""
	}
	name, subject := eventName(&e), subjectName(e.Source, e.Subject)
	it := s.encodeEvent(&e, subject, name)
	if size := sizeOf(it); size > maxItem {
		return false, fmt.Errorf("%w, and not an event of %d bytes", ErrTooLarge, size)
	}
	named := keyOf(kindEventName, name, single)
	named[attrRequest] = binaryValue(random(12))
	named[attrSubject] = binaryValue(subject)
	err = s.transactRetrying(ctx, &ddb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		{Put: &types.Put{
			TableName: &s.table, Item: named, ConditionExpression: aws.String(ifAbsent),
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}},
		{Put: &types.Put{TableName: &s.table, Item: it}},
	}, ClientRequestToken: aws.String(fmt.Sprintf("%x", bytesOf(named[attrRequest])))})
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) {
		return err == nil, unavailable(err)
	}
	known, refused := refusedBy(cancelled, 0)
	if !refused {
		return false, unavailable(err)
	}
	return bytes.Equal(bytesOf(known[attrRequest]), bytesOf(named[attrRequest])), nil
}

func (s *Store) encodeEvent(e *store.ExternalEvent, subject, name []byte) item {
	received := s.clock.now().UnixMicro()
	it := keyOf(kindEvent, subject, name)
	it[attrSource], it[attrScope] = stringValue(e.Source), stringValue(e.Scope)
	it[attrEventID], it[attrSubject] = stringValue(e.EventID), stringValue(e.Subject)
	it[attrAt], it[attrCame] = numberValue(microseconds(e.At)), numberValue(received)
	it[attrBody] = binaryValue(e.Body)
	if e.AnyScope {
		it[attrAny] = numberValue(1)
	}
	it[attrDueShard] = binaryValue([]byte{kindEvent, s.shardOf(name)})
	it[attrDueAt] = momentValue(s.clock.unique())
	return it
}

func decodeEvent(it item) store.ExternalEvent {
	e := store.ExternalEvent{
		Source: stringOf(it[attrSource]), Scope: stringOf(it[attrScope]),
		EventID: stringOf(it[attrEventID]), Subject: stringOf(it[attrSubject]),
		AnyScope: numberOf(it[attrAny]) != 0, At: fromMicroseconds(numberOf(it[attrAt])),
		ReceivedAt: fromMicroseconds(numberOf(it[attrCame])),
	}
	if body := bytesOf(it[attrBody]); len(body) > 0 {
		e.Body = body
	}
	return e
}

// ExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) ExternalEvents(
	ctx context.Context, f store.ExternalEventFilter,
) (found []store.ExternalEvent, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	for i, subject := range f.Subjects {
		if slices.Contains(f.Subjects[:i], subject) {
			continue
		}
		items, err := s.partition(ctx, kindEvent, subjectName(f.Source, subject))
		if err != nil {
			return nil, err
		}
		for _, it := range items {
			if e := decodeEvent(it); e.Source == f.Source && e.Subject == subject && e.MaySettle(f.Scope) {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	})
	return found, nil
}

// PurgeExternalEvents implements [store.ExternalEventKeeper].
func (s *Store) PurgeExternalEvents(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, kindEvent, attrCame, age, limit, func(it item) error {
		e := decodeEvent(it)
		// The event is removed first: a name that stays prevents the event from being added again, an event without its
		// name would not.
		if err := s.remove(ctx, item{attrPartition: it[attrPartition], attrSort: it[attrSort]}); err != nil {
			return err
		}
		return s.remove(ctx, keyOf(kindEventName, eventName(&e), single))
	})
}

// remove removes an item, whatever it holds.
func (s *Store) remove(ctx context.Context, key item) error {
	if err := s.writable(ctx); err != nil {
		return err
	}
	err := unconflicted(ctx, func() error {
		_, err := s.client.DeleteItem(ctx, &ddb.DeleteItemInput{TableName: &s.table, Key: key}, s.observing)
		return err
	})
	return unavailable(err)
}

// purge removes the items that were written longer ago than an age, by the time in an attribute, the oldest first. It
// returns how many were removed.
func (s *Store) purge(ctx context.Context, kind byte, written string, age time.Duration, limit int,
	remove func(it item) error,
) (purged int, err error) {
	if err := s.writable(ctx); err != nil || limit <= 0 {
		return 0, err
	}
	before := s.clock.now().Add(-age).UnixMicro()
	entries, err := s.oldest(ctx, kind, before+indexLead, limit)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(entries, batchKeys) {
		found, err := s.readAll(ctx, some)
		if err != nil {
			return purged, err
		}
		for _, it := range found {
			if numberOf(it[written]) >= before {
				continue
			}
			if err := remove(it); err != nil {
				return purged, err
			}
			purged++
		}
	}
	return purged, nil
}

// oldest returns the first entries of a kind up to a moment, from all parts of the index.
func (s *Store) oldest(ctx context.Context, kind byte, until int64, limit int) (entries []item, err error) {
	shards, err := s.allShards(ctx)
	if err != nil {
		return nil, err
	}
	for shard := range shards {
		taken := 0
		err := s.eachDue(ctx, dueRange{kind: kind, shard: byte(shard), until: until}, func(page []item) (bool, error) {
			page = page[:min(len(page), limit-taken)]
			entries, taken = append(entries, page...), taken+len(page)
			return taken < limit, nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(entries, func(a, b item) int { return cmp.Compare(momentOf(a[attrDueAt]), momentOf(b[attrDueAt])) })
	return entries[:min(len(entries), limit)], nil
}
