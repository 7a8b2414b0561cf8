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

// The limits of a batch, in items and approximately in bytes. A larger batch would delay the items
// that wait for the next one.
const (
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// batchTimeout bounds a batch that the server does not answer. A caller that leaves does not end the batch.
	batchTimeout = 30 * time.Second
)

// batcher gathers the items of concurrent callers. A lane is a connection with a batch on the wire. An item that finds
// a free lane is sent at once. While all lanes are busy, items gather, and they are sent in one round trip when a lane
// is free. No timer delays an item.
type batcher struct {
	pool       *ownPool
	statements []*statement // indexed by shape
	unnamed    bool
	// lanes is the most batches that may be on the wire at once, and largest is the most items of a batch.
	lanes, largest int

	mu      sync.Mutex
	queue   []*item
	busy    int
	closed  bool
	running sync.WaitGroup
}

var errClosed = errors.New("the store is closed")

// do adds an item to the queue and waits for its answer. If ctx ends first, do removes the item if it is still in the
// queue; otherwise the answer is dropped.
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

// lane runs batches until the queue is empty.
func (b *batcher) lane() {
	for {
		items := b.take()
		if items == nil {
			return
		}
		b.run(items)
	}
}

// take removes the items of the next batch from the queue, or ends the lane if there are none. A statement writes a
// record once: of several items of one kind for the same record, the first is taken, and the others wait for the next
// batch. Reservations of one key are taken together, because they share a look.
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

// wanted identifies what an item writes.
type wanted struct {
	kind kind
	id   [16]byte
}

// hurry bounds how long an item that is retried waits for the lock of its record: its batch has already waited, and
// each item delays the items after it.
var hurry = statement{text: `SELECT set_config('lock_timeout', '20ms', true)`}

// run sends items and answers their callers. If a batch fails, its items are retried one by one, so that an item that
// the server refuses does not fail the others. Every kind of item may be repeated.
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

// attempt runs a batch, and repeats it if its connection turned out to be dead or the server undid it.
func (b *batcher) attempt(ctx context.Context, items []*item, hurried bool) error {
	resent, err := b.pool.repeated(ctx, func() error { return b.send(ctx, items, hurried) })
	if err == nil && resent {
		err = unavailable(replicated(ctx, b.pool)) // the second try may have found what the first one committed
	}
	return err
}

// lost reports whether an error means that the connection was lost, and not that the server refused a statement.
func lost(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true
	}
	severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity) // the other field may be translated
	return severity == "FATAL" || severity == "PANIC"
}

// send makes the round trip. If the statements that were prepared on the connection have been discarded, as by a hook
// that the store's pool has taken over from the application's pool, send prepares them again and repeats the round trip
// on the same connection, because any other connection may lack them too.
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

// sendOn makes the round trip: a statement for each kind of item in the batch, all in one transaction.
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

// close refuses new items, and waits until all queued items are answered.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.running.Wait()
}
