package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const stepItems = `SELECT o_item, o_outcome, o_now, o_attempt, o_due, o_retention, o_answer, o_queue, o_request, o_more, pg_is_in_recovery()
	FROM @step_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// The limits of a batch: so many items, and about so many bytes, that it does not hold up those behind it.
const (
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// batchTimeout ends a batch that the server does not answer. It is the batch's own: no caller who leaves ends it.
	batchTimeout = 30 * time.Second
)

// batcher gathers the items of concurrent callers. A lane is a connection with a statement on the wire: while all lanes
// are busy, what arrives gathers, and goes as one statement when a lane is free. There is no timer, and a lone caller goes
// at once.
type batcher struct {
	pool    *pgxpool.Pool
	text    string
	channel string
	lanes   int
	largest int

	mu      sync.Mutex
	queue   []*item
	busy    int
	closed  bool
	running sync.WaitGroup
}

var errClosed = errors.New("the store is closed")

// do hands an item in and waits for its answer. A caller who leaves takes its item along if that is still waiting; else
// it is answered to nobody.
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

// take takes what has gathered, or ends the lane.
func (b *batcher) take() []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < len(b.queue) && n < b.largest {
		if bytes += b.queue[n].size(); n > 0 && bytes > maxBatchBytes {
			break
		}
		n++
	}
	if n == 0 {
		b.busy--
		return nil
	}
	items := slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	return items
}

// run answers items. What fails together is tried again one by one, so that one that the server refuses does not fail its
// neighbours; every kind of item may be repeated.
func (b *batcher) run(items []*item) {
	slices.SortStableFunc(items, compareItems)
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	err := b.attempt(ctx, items)
	if err != nil && len(items) > 1 && !lost(err) {
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

// attempt runs a batch, and once more if its connection turned out dead or the server undid it.
func (b *batcher) attempt(ctx context.Context, items []*item) error {
	err := b.send(ctx, items)
	if err != nil && (lost(err) || undone(err)) && ctx.Err() == nil {
		err = b.send(ctx, items)
	}
	return unavailable(err)
}

// lost reports whether an error came from the connection, not from the server's judgement.
func lost(err error) bool {
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || pg.Severity == "FATAL" || pg.Severity == "PANIC"
}

func (b *batcher) send(ctx context.Context, items []*item) error {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, b.text, append(columns(items), b.channel)...)
	if err != nil {
		return err
	}
	return readOutcomes(rows, items)
}

// columns turns items into one array for each argument.
func columns(items []*item) []any {
	n := len(items)
	kinds, ids, attempts, spans := make([]int16, n), make([][16]byte, n), make([]int64, n), make([]int64, n)
	retentions, queues := make([]int32, n), make([]int16, n)
	answers, requests, mores := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, t := range items {
		kinds[i], ids[i], attempts[i], spans[i] = t.kind, t.id, t.attempt, t.span
		retentions[i], queues[i] = t.retention, t.queue
		answers[i], requests[i], mores[i] = t.answer, t.request, t.more
	}
	return []any{kinds, ids, attempts, spans, retentions, queues, answers, requests, mores}
}

// readOutcomes gives each item its answer.
func readOutcomes(rows pgx.Rows, items []*item) error {
	defer rows.Close()
	answered := 0
	for rows.Next() {
		if err := readOutcome(rows.RawValues(), items); err != nil {
			return err
		}
		answered++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if answered != len(items) {
		return fmt.Errorf("%d of %d items were answered", answered, len(items))
	}
	return nil
}

// close waits for the batches under way; what still waits is answered by them.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.running.Wait()
}
