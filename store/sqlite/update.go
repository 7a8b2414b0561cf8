package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Update runs f in a transaction of the writer, for business writes outside of a protected handler. It commits if f returns
// nil. Like a handler, f does not end the transaction itself, and may be called again after a rollback that was not its
// own doing. Everybody waits for f, for as long as it takes. Called inside a transactional handler it waits for itself: use
// the handler's own transaction there.
func (s *Store) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.inTurn(ctx, newMember(0, nil), func(ctx context.Context) error { return f(onceward.Tx(ctx)) })
}

// InTx implements [inbox.Store]: it is [Store.Update] for work that takes the transaction from its context, with
// [onceward.Tx]. If the context has a deadline, the transaction is taken back soon after that.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	return s.inTurn(ctx, newMember(timeLeft(ctx), nil), work)
}

// inTurn runs work in a turn of the writer, and commits if it returns nil.
func (s *Store) inTurn(ctx context.Context, m *member, work func(ctx context.Context) error) error {
	var failure error
	t := &task{member: m, done: make(chan struct{})}
	err := s.writer.host(ctx, t, func(ctx context.Context, _ store.Verdict) store.Settlement {
		if failure = work(ctx); failure != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit}
	})
	if err == nil {
		err = failure
	}
	return err
}

// timeLeft is how long work may take by its context, or zero for no limit.
func timeLeft(ctx context.Context) time.Duration {
	until, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	return max(time.Until(until), time.Millisecond)
}

// prepare runs what comes before the work.
func (m *member) prepare(w *writer, now time.Time) error {
	if m.begin == nil {
		return nil
	}
	return m.begin(w.records, now)
}

// conclude runs what comes after the work.
func (m *member) conclude(w *writer) error {
	if m.end == nil {
		return nil
	}
	return m.end(w.records, w.now())
}
