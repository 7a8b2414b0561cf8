package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/internal/sqltx"
)

// The limits of a batch: so many items, and about so many bytes, that it does not hold up those behind it.
const (
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// batchTimeout ends a batch that the server does not answer. It is the batch's own: no caller who leaves ends it.
	batchTimeout = 30 * time.Second
)

// batcher gathers the items of concurrent callers. A lane is a connection with a batch on the wire: while it is busy,
// what arrives gathers, and goes in one round trip when it is free. Nothing is held back by a timer: a lone caller goes
// at once. A further lane opens when so many wait that they are worth a round trip of their own, when an item waits for
// a batch that does not come back, or at once where a round trip takes long whatever is in it.
type batcher struct {
	pool       *ownPool
	statements []*statement // by their shapes
	unnamed    bool
	// lanes is how many there are at most, and farLanes how many where a round trip takes long.
	lanes, farLanes int
	largest         int
	worth           int
	// fewReserve and fewComplete are up to how many items of a kind go as a statement each.
	fewReserve, fewComplete int
	// patience is how long an item waits for the batch before it, until a further lane is opened for it.
	patience time.Duration

	mu sync.Mutex
	// shortest is the time that round trips took lately at least.
	shortest time.Duration
	// replays is how many reservations found their record, one after the other, and unsure for how many more it is not
	// guessed what they find.
	replays, unsure int
	queue           []*item
	busy            int
	closed          bool
	patient         *time.Timer // fires when an item has waited too long; nil if none waits
	running         sync.WaitGroup
}

const (
	// laneWorth is how many waiting items open a further lane.
	laneWorth = 12
	// farTrip is from when on a round trip takes so long that waiting for it costs more than a batch saves.
	farTrip = time.Millisecond
	// manyReplays is how many reservations in a row find their record before the next ones only look.
	manyReplays = 64
	// longUnsure is for how many reservations every case is thought of after one that had to be sent again.
	longUnsure = 32
	// extraLanes is how many lanes open for items that have lost patience.
	extraLanes = 2
)

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
	far := b.shortest >= farTrip
	switch {
	case b.busy == 0, b.busy < b.lanes && len(b.queue) >= b.worth, far && b.busy < b.farLanes:
		b.open()
	case b.patient == nil:
		b.patient = time.AfterFunc(b.patience, b.lostPatience)
	}
	return nil
}

// open starts a lane. The caller holds the lock.
func (b *batcher) open() {
	b.busy++
	b.running.Go(b.lane)
}

// lostPatience opens a lane for those who wait for a batch that does not come back: a record may be locked, or a
// connection silent.
func (b *batcher) lostPatience() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.patient = nil
	if len(b.queue) > 0 && b.busy < max(b.lanes, b.farLanes)+extraLanes && !b.closed {
		b.open()
	}
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

// take takes what has gathered, or ends the lane. A statement writes a record once: of several reservations of one key
// the first may write and the others look, and a second write of another kind stays for the next batch.
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
		_, t.look = taken[want]
		if t.look && t.kind != kindReserve {
			rest = append(rest, t)
			continue
		}
		taken[want] = struct{}{}
		items = append(items, t)
		bytes += t.size()
	}
	clear(b.queue[len(rest):])
	b.queue = rest
	if b.patient != nil && len(rest) == 0 {
		b.patient.Stop()
		b.patient = nil
	}
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

// run answers items. What fails together is tried again one by one, so that one that the server refuses does not fail
// its neighbours; every kind of item may be repeated.
func (b *batcher) run(items []*item) {
	slices.SortStableFunc(items, compareItems)
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	err := b.attempt(ctx, items)
	if err != nil && len(items) > 1 && !lost(err) && !fromStandby(err) {
		for _, t := range items {
			t.err = b.attempt(ctx, []*item{t})
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
func (b *batcher) attempt(ctx context.Context, items []*item) error {
	return repeated(ctx, b.pool, func() error { return b.send(ctx, items) })
}

// repeated does what may be done again: once more if a connection turned out dead, and some times if the server undid
// it. Where no connection can be made the next one cannot be made either.
func repeated(ctx context.Context, pool *ownPool, do func() error) error {
	dead := false
	for tries := 1; ; tries++ {
		err := do()
		if err == nil && dead {
			err = replicated(ctx, pool.Pool) // it may have found what the first one did
		}
		switch {
		case err == nil || ctx.Err() != nil || fromStandby(err):
			return unavailable(err)
		case undone(err) && tries < sqltx.MaxUndone && sqltx.PauseUndone(ctx, tries):
		case lost(err) && !dead && !errors.Is(err, errUnconnected):
			dead = true
			pool.Reset() // the others are likely dead too
		default:
			return unavailable(err)
		}
	}
}

// lost reports whether an error came from the connection, not from the server's judgement.
func lost(err error) bool {
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || pg.Severity == "FATAL" || pg.Severity == "PANIC"
}

// send makes the round trip, and again if what was prepared on its connection has been discarded, as by a hook of the
// pool that the connections of the store were made after. Any other one may lack it too.
func (b *batcher) send(ctx context.Context, items []*item) error {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	trip := pipeline{conn: conn.Conn(), unnamed: b.unnamed}
	if err = b.sendOn(ctx, trip, items); trip.discarded(err, b.statements[shapes-1]) {
		err = b.sendOn(ctx, trip, items)
	}
	noteStandby(conn.Conn(), err)
	return err
}

// sendOn makes the round trip: the statements of each kind that is there, all in one transaction.
func (b *batcher) sendOn(ctx context.Context, trip pipeline, items []*item) error {
	deadline, _ := ctx.Deadline()
	if err := trip.prepare(ctx, deadline, b.statements...); err != nil {
		return err
	}
	sent := b.plan(items)
	for i := range sent {
		trip.add(b.statements[sent[i].shape], sent[i].arguments(&trip)...)
	}
	began := time.Now()
	_, err := trip.run(deadline, func(statement int, raw [][]byte) error { return sent[statement].readOutcome(raw) })
	if err == nil && slices.ContainsFunc(items, (*item).unanswered) {
		err = trip.broken(errForeignReply)
	}
	if err == nil {
		b.learn(items, time.Since(began))
	}
	if err == nil && trip.warned {
		err = replicated(ctx, b.pool.Pool)
	}
	return err
}

// plan chooses the statements of a round trip, for items that are in their order.
func (b *batcher) plan(items []*item) (sent []sending) {
	b.mu.Lock()
	likely := b.guess()
	b.mu.Unlock()
	few := [kinds]int{kindReserve: b.fewReserve, kindComplete: b.fewComplete}
	sent = make([]sending, 0, len(items))
	for len(items) > 0 {
		k, n := items[0].kind, 0
		for n < len(items) && items[n].kind == k {
			items[n].outcome, items[n].partly = outcomeRefused, false
			n++
		}
		sent = sendings(sent, items[:n:n], few[k], likely)
		items = items[n:]
	}
	return sent
}

// guess is what the next reservations are likely to find. The caller holds the lock.
func (b *batcher) guess() guess {
	switch {
	case b.unsure > 0:
		return guessNothing
	case b.replays >= manyReplays:
		return guessReplay
	default:
		return guessNew
	}
}

// learn keeps what a round trip shows: how long one takes, and what reservations find.
func (b *batcher) learn(items []*item, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shortest == 0 {
		b.shortest = took
	}
	b.shortest = min(took, b.shortest+b.shortest/8)
	for _, t := range items {
		if t.kind != kindReserve {
			continue
		}
		b.unsure = max(b.unsure-1, 0)
		if t.whole {
			b.unsure = longUnsure
		}
		b.replays++
		if t.outcome != outcomeRead {
			b.replays = 0
		}
	}
}

// close waits for the batches under way; what still waits is answered by them.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.running.Wait()
}
