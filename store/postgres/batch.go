package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The limits of a batch: so many items, and about so many bytes, that it does not hold up those behind it.
const (
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// batchTimeout ends a batch that the server does not answer. It is the batch's own: no caller who leaves ends it.
	batchTimeout = 30 * time.Second
)

// batcher gathers the items of concurrent callers. A lane is a connection with a batch on the wire: an item that finds a
// lane free goes at once, and while all are busy what arrives gathers, and goes in one round trip when one is free.
// Nothing is held back by a timer.
type batcher struct {
	pool       *ownPool
	statements []*statement // by their shapes
	unnamed    bool
	// lanes is how many batches may be on the wire at once, and largest how many items a batch has.
	lanes, largest int

	mu      sync.Mutex
	queue   []*item
	busy    int
	closed  bool
	running sync.WaitGroup
}

var errClosed = errors.New("the store is closed")

// do hands an item in and waits for its answer. A caller who leaves takes its item along if that is still waiting; else
// its answer is dropped.
func (b *batcher) do(ctx context.Context, t *item) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	t.done = make(chan struct{})
	if err := b.enqueue(t); err != nil {
		return err
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
	}
	b.withdraw(t)
	select {
	case <-t.done:
		return t.err
	default:
		return unavailable(ctx.Err())
	}
}

func (b *batcher) enqueue(t *item) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return unavailable(errClosed)
	}
	b.queue = append(b.queue, t)
	if b.busy < b.lanes {
		b.busy++
		b.running.Go(b.lane)
	}
	return nil
}

func (b *batcher) withdraw(t *item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, t); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
}

// lane runs batches until nothing is left to do.
func (b *batcher) lane() {
	for {
		items := b.take()
		if items == nil {
			return
		}
		b.run(items)
	}
}

// take takes what has gathered, or ends the lane. A statement writes a record once: of several writes of a kind the first
// goes, and the others wait for the next batch. Reservations of one key share a look.
func (b *batcher) take() (items []*item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := 0
	taken := make(map[wanted]struct{})
	rest := b.queue[:0]
	for i, t := range b.queue {
		if len(items) == b.largest || len(items) > 0 && bytes+t.size() > maxBatchBytes {
			rest = append(rest, b.queue[i:]...)
			break
		}
		want := wanted{t.kind, t.id}
		if _, twice := taken[want]; twice && t.kind != kindReserve {
			rest = append(rest, t)
			continue
		}
		taken[want] = struct{}{}
		items = append(items, t)
		bytes += t.size()
	}
	clear(b.queue[len(rest):])
	b.queue = rest
	if items == nil {
		b.busy--
	}
	return items
}

// wanted is what an item writes.
type wanted struct {
	kind kind
	id   [16]byte
}

// hurry bounds how long an item that is tried again waits for the lock of its record: its batch has waited already, and
// each item delays those behind it.
var hurry = statement{text: `SELECT set_config('lock_timeout', '20ms', true)`}

// run answers items. What fails together is tried again one by one, so that one that the server refuses does not fail
// its neighbours; every kind of item may be repeated.
func (b *batcher) run(items []*item) {
	slices.SortStableFunc(items, compareItems)
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	err := b.attempt(ctx, items, false)
	if err != nil && len(items) > 1 && !lost(err) && !fromStandby(err) {
		for _, t := range items {
			t.err = b.attempt(ctx, []*item{t}, true)
			close(t.done)
		}
		return
	}
	for _, t := range items {
		t.err = err
		close(t.done)
	}
}

// attempt runs a batch, and again if its connection turned out dead or the server undid it.
func (b *batcher) attempt(ctx context.Context, items []*item, hurried bool) error {
	resent, err := b.pool.repeated(ctx, func() error { return b.send(ctx, items, hurried) })
	if err == nil && resent {
		err = unavailable(replicated(ctx, b.pool)) // it may have found what the first one did
	}
	return err
}

// lost reports whether an error came from the connection, not from the server's judgement.
func lost(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true
	}
	severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity) // the other field may be in the server's own language
	return severity == "FATAL" || severity == "PANIC"
}

// send makes the round trip, and again if what was prepared on its connection has been discarded, as by a hook of the
// pool that the connections of the store were made after. Any other one may lack it too.
func (b *batcher) send(ctx context.Context, items []*item, hurried bool) error {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	trip := pipeline{conn: conn.Conn(), unnamed: b.unnamed || hurried}
	if err = b.sendOn(ctx, trip, items, hurried); trip.discarded(err, b.statements[shapes-1]) {
		err = b.sendOn(ctx, trip, items, hurried)
	}
	noteStandby(conn.Conn(), err)
	return err
}

// sendOn makes the round trip: the statements of each kind that is there, all in one transaction.
func (b *batcher) sendOn(ctx context.Context, trip pipeline, items []*item, hurried bool) error {
	deadline, _ := ctx.Deadline()
	if err := trip.prepare(ctx, deadline, b.statements...); err != nil {
		return err
	}
	firsts := slices.CompactFunc(slices.Clone(items), (*item).sharesLook)
	sent, before := sendings(firsts), 0
	if hurried {
		trip.add(&hurry)
		before = 1
	}
	for i := range sent {
		trip.add(b.statements[sent[i].shape], sent[i].arguments(&trip)...)
	}
	_, err := trip.run(deadline, func(statement int, raw [][]byte) error {
		if statement < before {
			return nil
		}
		return sent[statement-before].readOutcome(raw)
	})
	if err == nil && trip.warned {
		err = replicated(ctx, b.pool)
	}
	if err == nil {
		shareLooks(items)
	}
	return err
}

// close waits for the batches under way; what still waits is answered by them.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.running.Wait()
}
