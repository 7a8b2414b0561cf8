package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// addition is a message that is ready to be added.
type addition struct {
	kind, notifies  int
	id              string
	uuid            [16]byte // the same
	lane            int64
	delay           int64
	attempt         int64
	texts           [6]string // topic, aggregatetype, aggregateid, type, downstream, attributes
	origin, payload []byte
}

// args are the parameters of the statement as pgx and database/sql take them.
func (a *addition) args() []any {
	args := append(make([]any, 0, 12), a.id, a.lane, a.delay, a.attempt)
	for _, text := range a.texts {
		args = append(args, text)
	}
	return append(args, a.origin, a.payload)
}

// The most that is deferred in one transaction. It is kept in memory, and sent before anything is read.
const (
	maxDeferred      = 100
	maxDeferredBytes = 256 << 10
)

// owns reports whether that is the transaction of the handler, in one of its two forms. It does not wait for a statement
// that is under way.
func (g *gate) owns(tx any) bool {
	switch tx := tx.(type) {
	case handlerTx:
		return tx.gate == g
	case *sql.Tx:
		return tx != nil && tx == g.handle.Load()
	default:
		return false
	}
}

// deferMessage keeps a message until the transaction is settled: then it goes along with the answer and COMMIT, and costs no
// round trip of its own, and the lock on its lane is held for no longer than it takes to commit. It reports false where the
// message has to be added at once: what is added inside of a savepoint may be undone with that.
func (g *gate) deferMessage(ctx context.Context, tx any, a *addition) (bool, error) {
	if !g.t.defers || !g.owns(tx) && !g.hasLane(a.lane) {
		return false, nil
	}
	conn, err := g.enter()
	if err != nil {
		return false, err
	}
	defer g.leave()
	if !g.owns(tx) || len(g.messages) >= maxDeferred || g.deferredBytes >= maxDeferredBytes {
		// Those that are to come before it are added before it.
		return false, g.flush(ctx)
	}
	if g.atOnce && slices.ContainsFunc(g.messages, func(m addition) bool { return m.lane != 0 && m.lane == a.lane }) {
		// An earlier one could not be flushed. It goes with the answer, and this one must not come before it.
		return false, errors.New("postgres: an earlier message of the same aggregate could not be added before a savepoint: are rows still open?")
	}
	if g.atOnce || conn.PgConn().TxStatus() != statusInTx {
		return false, nil
	}
	g.messages = append(g.messages, *a)
	g.deferred.Store(true)
	g.deferredBytes += len(a.payload) + len(a.texts[5])
	return true, nil
}

// hasLane reports whether a message of the lane was deferred: one that goes another way, such as in a batch, has to come
// behind it.
func (g *gate) hasLane(lane int64) bool {
	if lane == 0 || !g.deferred.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.messages, func(a addition) bool { return a.lane == lane })
}

// flush adds what was deferred, before a statement of the handler that makes or ends a savepoint. From then on messages are
// added at once. What cannot be added now stays deferred: it came before the savepoint, and belongs to the transaction. The
// caller holds the gate.
func (g *gate) flush(ctx context.Context) error {
	g.atOnce = true
	for len(g.messages) > 0 {
		a := &g.messages[0]
		if _, err := g.t.conn.Exec(ctx, g.t.store.sql.add[a.kind][a.notifies].text, a.args()...); err != nil {
			g.noteStatus(err)
			return err
		}
		g.messages = g.messages[1:]
	}
	return nil
}

// foresee looks at a statement before it is run. The caller holds the gate.
func (g *gate) foresee(ctx context.Context, statement string) {
	g.ending.Store(mayEnd(statement) && !g.t.conn.IsClosed())
	if !g.atOnce && g.t.defers && mentionsSavepoint(statement) {
		_ = g.flush(ctx) // what could not be added goes with the answer
	}
}

// foreseeBatch looks at the statements of a batch. The caller holds the gate.
func (g *gate) foreseeBatch(ctx context.Context, batch *pgx.Batch) {
	ending := false
	for _, q := range batch.QueuedQueries {
		g.foresee(ctx, q.SQL)
		ending = ending || g.ending.Load()
	}
	g.ending.Store(ending)
}

// mentionsSavepoint is cautious: the word may as well stand in a text.
func mentionsSavepoint(statement string) bool {
	const word = "savepoint"
	for rest := statement; len(rest) >= len(word); rest = rest[1:] {
		next := strings.IndexAny(rest, "sS")
		if next < 0 || len(rest)-next < len(word) {
			return false
		}
		if rest = rest[next:]; strings.EqualFold(rest[:len(word)], word) {
			return true
		}
	}
	return false
}

// addDeferred puts the messages of the handler into the round trip that settles, sorted by their lanes: transactions that all take
// their locks in the same order do not stand in each other's way.
func (t *transaction) addDeferred(trip *pipeline) {
	slices.SortStableFunc(t.gate.messages, func(a, b addition) int { return cmp.Compare(a.lane, b.lane) })
	for i := range t.gate.messages {
		a := &t.gate.messages[i]
		parameters := [][]byte{a.uuid[:], trip.int64(a.lane), trip.int64(a.delay), trip.int64(a.attempt)}
		for _, text := range a.texts {
			parameters = append(parameters, []byte(text))
		}
		trip.add(&t.store.sql.add[a.kind][a.notifies], append(parameters, a.origin, a.payload)...)
	}
}

// prepareDeferred makes the statements of the handler's messages known to the connection.
func (t *transaction) prepareDeferred(trip *pipeline, deadline time.Time) error {
	for i := range t.gate.messages {
		a := &t.gate.messages[i]
		if err := trip.prepare(context.Background(), deadline, &t.store.sql.add[a.kind][a.notifies]); err != nil {
			return err
		}
	}
	return nil
}
