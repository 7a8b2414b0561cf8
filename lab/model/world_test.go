package model

import (
	"time"

	"github.com/onceward/onceward/store"
)

// The durations of the model.
const (
	tick      = time.Second
	lease     = 2 * tick
	retention = 2 * tick
	postpone  = 1 * tick
	transit   = 1 // the longest that a call is on its way to the provider, in ticks
)

// now is the store's clock. Only differences count, so it stands still: a tick moves everything that is stored one tick
// into the past. That makes the search independent of how long anything takes.
var now = time.Unix(1_000_000, 0).UTC()

// maxRequests is how many requests one key gets in a scenario at most.
const maxRequests = 3

// world is one state of the search: everything that decides what may happen next, and what the checker remembers. It is
// comparable, and what no longer matters is zeroed, so that equal futures are visited once.
type world struct {
	row      rowID // the stored record
	floor    int8  // the largest token that the store gave out for what it does not hold
	lock     int8  // the transaction that holds the key, counted from one; zero if none does
	stepped  bool  // the clock has stepped back
	requests [maxRequests]request
	asked    inquiry
	ledger   ledger
}

// request is one attempt of the client, with the owner that serves it.
type request struct {
	place   place
	attempt int8  // the token that was granted
	flight  int8  // the ticks after which a call on its way is lost, or a transaction rolled back
	lease   int8  // the ticks for which the owner takes itself for the owner, by its own count
	wary    bool  // an earlier owner may have done something, or may still do it
	seen    rowID // what a transaction's look-up saw
}

// place is where a request stands in its protocol.
type place uint8

const (
	unsent place = iota
	// Reserved mode.
	looked    // only where look-up and insert are two steps
	reserving // the reply to the reservation was lost
	granted   // nothing was done yet
	calling   // the call is out, its reply is not in
	called    // the provider has answered
	confirmed // what follows the call, in the owner's own database, is done too
	settling  // the reply to the completion was lost
	releasing // the reply to the release was lost
	rejecting // the reply to the reject was lost
	// Transactional mode.
	working    // the transaction is open
	stranded   // the same, with the process gone
	committing // COMMIT is on its way
	orphaned   // the same, with the process gone
	committed  // COMMIT has landed, its reply is on its way
	asking     // the reply to COMMIT was lost
	forgetting // rolled back and rejected, over a record that may be retried
	// gone is the end: answered, given up or crashed.
	gone
)

// mayAct reports whether an owner is left that was granted the operation, or a call of theirs. One that never got the
// reply to its reservation must ask again before it does anything.
func (r *request) mayAct() bool {
	return r.place != unsent && r.place != reserving && r.place != gone || r.flight != 0
}

// holds reports whether the request takes itself for the owner of the operation.
func (r *request) holds() bool {
	return r.lease > 0 && (r.place == granted || r.place == calling || r.place == called || r.place == confirmed)
}

// inquiry is what the reconciler has learned and not yet written.
type inquiry struct {
	verdict verdict
	attempt int8
	count   int8 // the number of the try
}

type verdict uint8

const (
	idle verdict = iota
	found
	notExecuted
	noAnswer
)

// ledger is the provider's, with what the checker remembers of the current retention window.
type ledger struct {
	effects int8   // effects in the window; two stand for many
	by      int8   // the attempt that made the last of them, while it can still act
	denied  uint16 // the attempts that were declared not executed and can still act
	answer  answer // the definitive success that a client has seen
	known   bool   // the provider knows the downstream key from an earlier window
	top     int8   // the largest token that was granted
	over    int8   // the largest token of a window that is over
	left    int8   // the ticks until what is settled expires
	doubted bool   // the outcome of an attempt was unknown
	busted  bool   // an operator has forced a bust and was told what can happen

	confirmed bool // a phased operation has done its last step
}

// answer tells definitive answers apart.
type answer uint8

const (
	noneYet answer = iota
	made           // as the owner wrote it
	learned        // as the reconciler put it together from the provider's ledger
)

// response is the answer as it is stored.
func (a answer) response() store.Response {
	return store.Response{Status: 201, Body: []byte{byte(a)}}
}

func answerOf(r *store.Response) answer { return answer(r.Body[0]) }

// happened reports whether the provider would say that the work is done.
func (l *ledger) happened() bool { return l.effects > 0 || l.known }

// rowID names a record in a table; zero is no record.
type rowID int32

// table gives each distinct record a small number, so that a world is comparable. Records go through their stored form:
// what the codec loses, the search would lose too.
type table struct {
	records []store.Record
	ids     map[string]rowID
	buffer  []byte
}

func newTable() *table {
	return &table{records: make([]store.Record, 1), ids: make(map[string]rowID)}
}

func (t *table) id(rec store.Record) rowID {
	if rec.State == store.StateNone {
		return 0
	}
	rec = essence(rec)
	t.buffer = rec.AppendBinary(t.buffer[:0])
	if id, ok := t.ids[string(t.buffer)]; ok {
		return id
	}
	stored, err := store.DecodeRecord(rec.ID, t.buffer)
	if err != nil {
		panic(err)
	}
	id := rowID(len(t.records))
	t.records = append(t.records, stored)
	t.ids[string(t.buffer)] = id
	return id
}

func (t *table) record(id rowID) store.Record { return t.records[id] }

// essence leaves out of a record what decides nothing: notes for people, and what belongs to another state.
func essence(rec store.Record) store.Record {
	rec.CreatedAt, rec.SettledAt = time.Time{}, time.Time{}
	if rec.State == store.StateUnknown || rec.State == store.StateCompleted { // elsewhere it keeps the record from being rejected
		rec.ReconcileError = ""
	}
	if rec.State != store.StateExpired { // there it tells a rejected record from a busted one
		rec.LastError, rec.FirstError = "", ""
	}
	if rec.State != store.StateInProgress {
		rec.Nonce = store.Nonce{}
	}
	if rec.State != store.StateUnknown {
		rec.ReconcileCount = 0
	}
	rec.Retention = min(rec.Retention, retention) // an operator may have kept it for longer, any number of times
	return rec
}

// shift is the record as it looks after some time. What has passed stays just passed.
func (t *table) shift(id rowID, by time.Duration) rowID {
	rec := t.record(id)
	for _, at := range [...]*time.Time{&rec.LeaseUntil, &rec.ReconcileAt, &rec.ExpiresAt} {
		if at.IsZero() {
			continue
		}
		if *at = at.Add(-by); at.Before(now) {
			*at = now
		}
	}
	return t.id(rec)
}

// canonical zeroes what can no longer make a difference.
func (w *world) canonical() {
	var acting uint16
	for i := range w.requests {
		r := &w.requests[i]
		switch {
		case r.place == gone && r.flight == 0:
			*r = request{place: gone}
		case r.mayAct():
			acting |= 1 << r.attempt
		}
		if !r.holds() {
			r.lease = 0
		}
	}
	w.ledger.denied &= acting
	if acting>>w.ledger.by&1 == 0 {
		w.ledger.by = 0
	}
}
