package postgres

import (
	"bytes"
	"time"

	"github.com/onceward/onceward/store"
)

// kind is what an item asks for.
type kind uint8

// The kinds of item, in the order in which a round trip sends them.
const (
	kindReserve kind = iota
	kindExtend
	kindComplete
	kinds
)

// The outcomes of a reservation, as its statement knows them, and those of a write.
const (
	outcomeRead      int16 = 0
	outcomeAbsent    int16 = 1
	outcomeCreated   int16 = 2
	outcomeRecreated int16 = 3
	outcomeRetried   int16 = 4
	outcomeAgain     int16 = 5
	outcomeRefused   int16 = 6
	outcomeWritten   int16 = 7
)

// item is one call in a batch: what is asked, and how it was answered.
type item struct {
	kind      kind
	id        [16]byte
	attempt   int64
	span      int64
	retention int32
	queue     int16
	create    bool
	// look says that the item only looks, because another of its batch may write the record.
	look    bool
	answer  []byte // the nonce of a reservation
	request []byte
	more    []byte

	outcome int16
	now     int64
	found   row // the record as it stands, if outcome is outcomeRead; else what was granted or written

	// done is closed when the item is answered, or err says why it was not.
	done chan struct{}
	err  error
}

// size is about what the item takes on the wire.
func (t *item) size() int { return 128 + len(t.answer) + len(t.request) + len(t.more) }

// compareItems puts items into the order in which every batch locks them.
func compareItems(a, b *item) int { return bytes.Compare(a.id[:], b.id[:]) }

// reserveItem asks for the right to execute.
func reserveItem(r *store.Reservation, id [16]byte, number int32) *item {
	t := &item{
		kind: kindReserve, id: id, span: r.Lease.Microseconds(), retention: packRetention(truncated(r.Retention)),
		queue: int16(store.StateInProgress) * queueStates, create: !r.NoCreate, answer: r.Nonce[:],
		request: appendRequest(make([]byte, 0, usualRequest), store.RecordVersion, &r.Fingerprints[0], number, r.Operation, r.ID),
		more:    appendSecret(appendTrace(nil, r.TraceID), r.DownstreamSecret),
	}
	if r.OnLost == store.LostResume {
		t.queue++
	}
	return t
}

// truncated is a duration in the resolution that records keep.
func truncated(d time.Duration) time.Duration { return d.Truncate(time.Microsecond) }

func extendItem(id [16]byte, attempt int64, lease time.Duration) *item {
	return &item{kind: kindExtend, id: id, attempt: attempt, span: lease.Microseconds()}
}

func completeItem(id [16]byte, attempt int64, done *store.Completion) *item {
	return &item{
		kind: kindComplete, id: id, attempt: attempt, retention: packRetention(truncated(done.Retention)),
		answer: appendAnswer(make([]byte, 0, usualHeader+len(done.Response.Body)), &done.Response),
		more:   appendField(nil, tagProviderID, done.ProviderID),
	}
}

// granted is the record that a reservation has made its own.
func (t *item) granted(r *store.Reservation) (store.Record, store.Origin, error) {
	now := fromMicros(t.now)
	rec := store.Record{
		ID: r.ID, Version: store.RecordVersion, State: store.StateInProgress, OnLost: r.OnLost, Operation: r.Operation,
		Fingerprint: r.Fingerprints[0], Attempt: t.found.attempt, Nonce: r.Nonce, LeaseUntil: now.Add(truncated(r.Lease)),
		Retention: unpackRetention(t.retention), DownstreamSecret: r.DownstreamSecret, TraceID: r.TraceID, CreatedAt: now,
	}
	switch t.outcome {
	case outcomeCreated:
		return rec, store.OriginCreated, nil
	case outcomeRecreated:
		return rec, store.OriginRecreated, nil
	default:
		rec.DownstreamSecret, rec.TraceID, rec.CreatedAt = 0, "", time.Time{}
		rec.Retention = unpackRetention(t.found.retention)
		if err := parseMore(t.found.more, &rec); err != nil {
			return rec, 0, unreadable(err)
		}
		return rec, store.OriginRetried, nil
	}
}
