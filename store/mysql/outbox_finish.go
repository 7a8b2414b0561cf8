package mysql

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// The statements for the holders of leases. Each names the token of its lease.
const (
	selectHeld    = `SELECT 1 FROM @outbox WHERE id = ? AND token = ? AND state = 1`
	extendMessage = `UPDATE @outbox SET due = @now + ? WHERE id = ? AND token = ? AND state = 1`
	recordEffect  = `UPDATE @outbox SET provider_id = COALESCE(?, provider_id), answer = COALESCE(?, answer)
		WHERE id = ? AND token = ? AND state = 1`
	// finishMessage makes a message without a lane Ready instead of Behind, because nothing would free it.
	finishMessage = `UPDATE @outbox SET state = IF(? = 2 AND lane IS NULL, 0, ?), open_lane = IF(? IN (4, 5), NULL, lane),
			due = @now + ?, token = 0, attempts = ?, provider_id = COALESCE(?, provider_id),
			last_error = COALESCE(?, last_error)
		WHERE id = ? AND token = ? AND state = 1`
	selectLanes = `SELECT DISTINCT lane FROM @outbox WHERE lane IS NOT NULL AND id IN `

	replayMessage = `UPDATE @outbox SET state = 0, open_lane = lane, due = @now, attempts = 0, token = 0,
			answer = COALESCE(?, answer)
		WHERE id = ? AND state IN (3, 5)`
	// dropMessage marks a dead letter as given up, with a token that no lease has: it no longer waits for a decision.
	dropMessage = `UPDATE @outbox SET state = 5, open_lane = NULL, token = -1 WHERE id = ? AND state IN (3, 5)`
)

// The statements that free messages with nothing in front of them. A freed
// message is due as of its creation, so that it is taken before later messages.
const (
	freeRows = `UPDATE @outbox SET state = 0, due = created_at WHERE state = 2 AND id IN `
	// selectBehind reads an index of open messages.
	selectBehind = `SELECT DISTINCT open_lane FROM @outbox WHERE state = 2 AND open_lane IS NOT NULL`
)

// writeRows runs statements in one round trip and one transaction, and returns how many rows each statement found.
func (s *Store) writeRows(ctx context.Context, statements []statement) (found []int64, err error) {
	all := slices.Concat([]statement{stmt(`START TRANSACTION`)}, statements, []statement{commit})
	for n := 1; ; n++ {
		found, err = s.writeRowsOnce(ctx, all)
		again := undone(err) || locked(err) || notSent(err)
		if !again || n == maxRaces || !sqltx.PauseUndone(ctx, n) {
			return found, unavailable(err)
		}
	}
}

func (s *Store) writeRowsOnce(ctx context.Context, statements []statement) ([]int64, error) {
	l, err := connect(ctx, &s.ownGate, s.own, true)
	if err != nil {
		return nil, err
	}
	defer l.release()
	all, err := l.exec(sqltx.Undisturbed(ctx, settleTimeout), statements...)
	if err != nil {
		l.cut() // it may be in a transaction
		return nil, err
	}
	return all.rows[1 : len(all.rows)-1], nil
}

// unheld returns the leases whose statements found no row.
func unheld(leases []outbox.Lease, found []int64) (lost []outbox.Lease) {
	for i, l := range leases {
		if found[i] == 0 {
			lost = append(lost, l)
		}
	}
	return lost
}

// ExtendMessages implements [outbox.Store].
func (s *Store) ExtendMessages(
	ctx context.Context, leases []outbox.Lease, lease time.Duration,
) ([]outbox.Lease, error) {
	if err := errors.Join(s.writable(), left(ctx)); err != nil || len(leases) == 0 {
		return nil, err
	}
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b outbox.Lease) int { return strings.Compare(a.ID, b.ID) })
	statements := make([]statement, len(leases))
	for i, l := range leases {
		statements[i] = stmt(s.render(extendMessage), lease.Microseconds(), l.ID, l.Token)
	}
	found, err := s.writeRows(ctx, statements)
	if err != nil {
		return nil, err
	}
	return unheld(leases, found), nil
}

// RecordEffect implements [outbox.Store].
func (s *Store) RecordEffect(ctx context.Context, l outbox.Lease, providerID string, answer []byte) error {
	if err := errors.Join(s.writable(), left(ctx)); err != nil {
		return err
	}
	kept := stmt(s.render(recordEffect), nullable([]byte(providerID)), nullable(bytes.Clone(answer)), l.ID, l.Token)
	found, err := s.writeRows(ctx, []statement{kept})
	if err == nil && found[0] == 0 {
		return outbox.ErrFenced
	}
	return err
}

// FinishMessages implements [outbox.Store]. The messages behind the finished ones
// are freed afterwards: if the program ends in between, [Store.FreeMessages] frees
// them. The messages are written in the order of their IDs, as in all other calls.
func (s *Store) FinishMessages(ctx context.Context, outcomes []outbox.Outcome) ([]outbox.Lease, error) {
	if err := errors.Join(s.writable(), checkOutcomes(outcomes...), left(ctx)); err != nil || len(outcomes) == 0 {
		return nil, err
	}
	outcomes = slices.Clone(outcomes)
	slices.SortFunc(outcomes, func(a, b outbox.Outcome) int { return strings.Compare(a.ID, b.ID) })
	leases := make([]outbox.Lease, len(outcomes))
	ids := make([]string, len(outcomes))
	statements := make([]statement, len(outcomes))
	for i := range outcomes {
		leases[i], ids[i], statements[i] = outcomes[i].Lease, outcomes[i].ID, s.finishing(&outcomes[i])
	}
	found, err := s.writeRows(ctx, statements)
	if err != nil {
		return nil, err
	}
	return unheld(leases, found), s.freeBehind(ctx, ids...)
}

// finishing returns the statement that ends a lease.
func (s *Store) finishing(o *outbox.Outcome) statement {
	after := int64(0)
	if o.State == outbox.StateReady {
		after = o.After.Microseconds()
	}
	state := int(o.State)
	return stmt(s.render(finishMessage), state, state, state, after, o.Attempts, nullable([]byte(o.ProviderID)),
		nullable([]byte(o.Error)),
		o.ID, o.Token)
}

// checkOutcomes returns an error for a state that is not an outcome of a delivery.
func checkOutcomes(outcomes ...outbox.Outcome) error {
	for _, e := range outcomes {
		switch e.State {
		case outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady, outbox.StateBehind:
		default:
			return fmt.Errorf("mysql: a delivery cannot end as %s", e.State)
		}
	}
	return nil
}

// FinishMessageTx implements [outbox.Store]. The row of the message
// stays unlocked until the end, so that the lease can be extended.
func (s *Store) FinishMessageTx(
	ctx context.Context, outcome outbox.Outcome, work func(ctx context.Context) error,
) error {
	if err := errors.Join(s.writable(), checkOutcomes(outcome)); err != nil {
		return err
	}
	err := retry(ctx, false, func(ctx context.Context) error {
		x := &messagePlan{plainPlan: plainPlan{transaction: transaction{store: s}, run: work}, outcome: outcome}
		x.plan = x
		return x.try(ctx)
	})
	if err != nil {
		return err
	}
	// The message is finished even if freeing the messages behind it fails: FreeMessages frees them later.
	_ = s.freeBehind(ctx, outcome.ID)
	return nil
}

// messagePlan is the plan of [Store.FinishMessageTx]: work and the end of a lease.
type messagePlan struct {
	plainPlan
	outcome outbox.Outcome
	held    bool
}

func (x *messagePlan) claim() []statement {
	return []statement{stmt(x.store.render(selectHeld), x.outcome.ID, x.outcome.Token)}
}

func (x *messagePlan) read([]sqldriver.Value) error {
	x.held = true
	return nil
}

// decide returns an error if the lease is no longer held.
func (x *messagePlan) decide(cause error) (run bool, err error) {
	if cause == nil && !x.held {
		cause = outbox.ErrFenced
	}
	return cause == nil, cause
}

// write ends the lease, if it is still held.
func (x *messagePlan) write() []statement {
	return []statement{x.store.finishing(&x.outcome), exactlyOne}
}

// learned returns [outbox.ErrFenced] if the lease was lost in the meantime.
func (x *messagePlan) learned(ctx context.Context, cause error) error {
	err := x.believe(cause)
	if mysqlNumber(cause) == errorTwoRows {
		return outbox.ErrFenced
	}
	return err
}

// ReplayMessage implements [outbox.Store].
func (s *Store) ReplayMessage(ctx context.Context, id string, answer []byte) error {
	return s.operate(ctx, replayMessage, nullable(bytes.Clone(answer)), id)
}

// DropMessage implements [outbox.Store].
func (s *Store) DropMessage(ctx context.Context, id string) error {
	if err := s.operate(ctx, dropMessage, id); err != nil {
		return err
	}
	return s.freeBehind(ctx, id)
}

// operate changes a dead letter.
func (s *Store) operate(ctx context.Context, text string, args ...any) error {
	if err := errors.Join(s.writable(), left(ctx)); err != nil {
		return err
	}
	found, err := s.writeRows(ctx, []statement{stmt(s.render(text), args...)})
	if err == nil && found[0] == 0 {
		return store.ErrNotFound
	}
	s.messages.Wake()
	return err
}

// freeBehind frees the messages behind the given messages.
func (s *Store) freeBehind(ctx context.Context, ids ...string) error {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	lanes, err := s.lanes(ctx, selectLanes+marks(len(ids)), args...)
	if err != nil {
		return err
	}
	_, err = s.free(ctx, lanes)
	return err
}

// lanes runs a query that returns lanes.
func (s *Store) lanes(ctx context.Context, query string, args ...any) (map[int64]bool, error) {
	found := make(map[int64]bool)
	err := s.with(ctx, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.renderOnce(query), args...)
		if err != nil {
			return err
		}
		return eachRow(rows, func() error {
			var lane int64
			err := rows.Scan(&lane)
			found[lane] = true
			return err
		})
	})
	return found, unavailable(err)
}

// free makes messages of lanes Ready if they are Behind nothing, at most maxFreed of each lane, and returns how many.
// If the rows have changed since it read them, that does no harm: a claim checks the order again.
func (s *Store) free(ctx context.Context, lanes map[int64]bool) (freed int, err error) {
	if len(lanes) == 0 {
		return 0, nil
	}
	behind, err := s.behindNothing(ctx, lanes)
	if err != nil || len(behind) == 0 {
		return 0, unavailable(err)
	}
	slices.Sort(behind)
	args := make([]any, len(behind))
	for i, id := range behind {
		args[i] = id
	}
	found, err := s.writeRows(ctx, []statement{stmt(s.render(freeRows)+marks(len(behind)), args...)})
	if err != nil || found[0] == 0 {
		return 0, err
	}
	s.messages.Wake()
	return int(found[0]), nil
}

// behindNothing returns the first messages of each lane that are Behind, up to the first message in another state.
func (s *Store) behindNothing(ctx context.Context, lanes map[int64]bool) (ids []string, err error) {
	var parts []string
	var args []any
	for lane := range lanes {
		parts = append(parts, s.render(selectFront))
		args = append(args, lane, maxFreed, 0)
	}
	blocked := make(map[int64]bool)
	err = s.with(ctx, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, strings.Join(parts, " UNION ALL "), args...)
		if err != nil {
			return err
		}
		ids = nil
		clear(blocked)
		return eachRow(rows, func() error {
			var lane int64
			var id string
			var state outbox.State
			err := rows.Scan(&lane, &id, &state)
			blocked[lane] = blocked[lane] || state != outbox.StateBehind
			if !blocked[lane] {
				ids = append(ids, id)
			}
			return err
		})
	})
	return ids, err
}

// FreeMessages implements [outbox.Store].
func (s *Store) FreeMessages(ctx context.Context) (freed int, err error) {
	if err := errors.Join(s.writable(), left(ctx)); err != nil {
		return 0, err
	}
	lanes, err := s.lanes(ctx, selectBehind)
	if err != nil {
		return 0, err
	}
	for batch := range batches(lanes) {
		n, err := s.free(ctx, batch)
		freed += n
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// batches divides lanes into batches, so that a statement about a batch stays of a reasonable size.
func batches(lanes map[int64]bool) func(yield func(map[int64]bool) bool) {
	return func(yield func(map[int64]bool) bool) {
		batch := make(map[int64]bool)
		for lane := range lanes {
			batch[lane] = true
			if len(batch) == maxFreed {
				if !yield(batch) {
					return
				}
				batch = make(map[int64]bool)
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}
