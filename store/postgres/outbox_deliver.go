package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
)

// The statements of workers. Most of them call SQL functions, which fix their plans, and which any program can call.
const (
	claimMessages  = `SELECT ` + messageColumns + `, number, lane FROM @outbox_claim($1, $2, $3, $4)`
	finishMessages = `SELECT id, token, lane FROM @outbox_finish($1::uuid[], $2, $3, $4, $5, $6, $7)`
	extendMessages = `SELECT id::text, token FROM @outbox_extend($1::uuid[], $2, $3)`
	// Usually no message waits for another one, and the function is not called.
	freeMessages = `SELECT @outbox_free($1) WHERE EXISTS (SELECT FROM @delivery WHERE state = 2 AND state > 1)`
	// 1000 lanes at most, so that it ends soon: the other lanes follow in the next round.
	freeStuckMessages = `SELECT @outbox_free_stuck(1000)`
	purgeMessages     = `SELECT @purge_outbox($1, $2)`
	recordEffect      = `UPDATE @delivery SET provider_id = coalesce($3, provider_id), answer = coalesce($4::bytea, answer)
		WHERE id = $1::uuid AND token = $2 AND state = 1`
	selectLanes = `SELECT lane FROM @delivery WHERE id = ANY ($1::uuid[])`
	lockMessage = `SELECT lane FROM @delivery WHERE id = $1::uuid AND token = $2 AND state = 1 FOR UPDATE`
)

// ClaimMessages implements [outbox.Store]. If all messages that it looked at have to wait, it looks further.
// If it finds fewer messages than requested, it promotes new messages, and claims them in the same step if
// nothing is in front of them.
func (s *Store) ClaimMessages(
	ctx context.Context, requests []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	c := &messageClaim{requests: requests, lease: lease, token: newToken()}
	for all := false; ; {
		found, err := s.claimPromoted(ctx, c)
		switch {
		case err != nil:
		case len(c.claimed) == 0 && len(found.behind)+len(found.damaged) > 0:
			continue // what they waited for may be gone, and unreadable messages are gone
		case all || !found.more || len(c.requests) == 0:
			return c.claimed, nil
		default:
			var ready bool
			ready, all, err = s.claimNew(ctx, c)
			if err == nil && (len(c.requests) == 0 || !ready && len(c.claimed) > 0) {
				return c.claimed, nil
			}
		}
		switch {
		case err != nil && len(c.claimed) > 0:
			return c.claimed, nil // the next call meets the error too
		case err != nil:
			return nil, unavailable(err)
		}
		all = all || len(c.claimed) > 0
	}
}

// messageClaim is one call of ClaimMessages, with the requests that are left and the messages that were claimed.
type messageClaim struct {
	requests []outbox.ClaimRequest
	lease    time.Duration
	token    int64
	claimed  []outbox.Claimed
	far      bool // new messages were promoted, and none of them was claimed
}

// add records claimed messages, and subtracts them from the requests.
func (c *messageClaim) add(claimed []outbox.Claimed) {
	c.claimed = append(c.claimed, claimed...)
	var left []outbox.ClaimRequest
	for _, request := range c.requests {
		for i := range claimed {
			if claimed[i].Topic == request.Topic {
				request.Limit--
			}
		}
		if request.Limit > 0 {
			left = append(left, request)
		}
	}
	c.requests = left
}

// args returns the topics that are wanted, and how many messages of each.
func (c *messageClaim) args() (topics []string, limits []int32) {
	topics, limits = make([]string, 0, len(c.requests)), make([]int32, 0, len(c.requests))
	for _, request := range c.requests {
		if request.Limit > 0 {
			topics, limits = append(topics, request.Topic), append(limits, int32(request.Limit))
		}
	}
	return topics, limits
}

// claimPromoted claims messages that were promoted earlier.
func (s *Store) claimPromoted(ctx context.Context, c *messageClaim) (found claimResult, err error) {
	topics, limits := c.args()
	err = repeatUndone(ctx, func() error {
		rows, err := s.own.Query(ctx, s.render(claimMessages), topics, limits, c.lease.Microseconds(), c.token)
		if err == nil {
			found, err = collectClaimed(rows, c.token)
		}
		return err
	})
	if err != nil {
		return claimResult{}, unavailable(err)
	}
	c.add(found.claimed)
	s.freeLanes(ctx, found.behind) // what they wait for may be gone by now, and no other worker would notice
	return found, s.bury(ctx, found.damaged)
}

// newToken returns a random token that was never used. Leases are compared by equality.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// bury turns messages that cannot be read into dead letters, so that they do not block other messages.
func (s *Store) bury(ctx context.Context, damaged []outbox.Outcome) error {
	if len(damaged) == 0 {
		return nil
	}
	_, err := s.FinishMessages(ctx, damaged)
	return err
}

// claimResult is the result of a claim.
type claimResult struct {
	claimed []outbox.Claimed // in order
	behind  []int64          // the lanes of messages that have to wait
	damaged []outbox.Outcome // the outcomes of messages that cannot be read
	more    bool             // there are new messages to be promoted
}

func collectClaimed(rows pgx.Rows, token int64) (found claimResult, err error) {
	type numbered struct {
		outbox.Claimed
		number int64
	}
	all, err := pgx.AppendRows(make([]numbered, 0, 64), rows, func(row pgx.CollectableRow) (n numbered, err error) {
		if row.RawValues()[0] == nil {
			found.more = true
			return n, nil
		}
		var m messageRow
		var lane int64
		if err := row.Scan(append(m.dest(), &n.number, &lane)...); err != nil {
			return n, err
		}
		n.Token = token
		if n.Entry, err = m.entry(); err != nil {
			found.damaged = append(found.damaged,
				outbox.Outcome{Lease: n.Lease(), State: outbox.StateDead, Attempts: n.Attempts, Error: err.Error()})
			n.State = outbox.StateDead
		}
		if n.State == outbox.StateBehind {
			found.behind = append(found.behind, lane)
		}
		return n, nil
	})
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	found.claimed = make([]outbox.Claimed, 0, len(all))
	for i := range all {
		if all[i].State == outbox.StateLeased {
			found.claimed = append(found.claimed, all[i].Claimed)
		}
	}
	return found, err
}

// freeLanes makes messages ready that have no message in front of them any more. It is a separate statement after the
// one that removed a message or made a message wait: if two workers do these at the same time, the later one sees both
// changes. If it fails, the earlier changes remain, and FreeMessages frees the lanes later.
func (s *Store) freeLanes(ctx context.Context, lanes []int64) {
	lanes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(lanes))),
		func(lane int64) bool { return lane == 0 })
	if len(lanes) == 0 {
		return
	}
	free := func(batch *pgx.Batch) { batch.Queue(s.render(freeMessages), lanes) }
	if err := repeatUndone(ctx, func() error { return s.planned(ctx, free) }); err != nil {
		s.logger.Warn("onceward: messages of the outbox that nothing is in front of any more could not be freed: "+
			"they wait for the next round", "error", err)
	}
}

// ExtendMessages implements [outbox.Store].
func (s *Store) ExtendMessages(
	ctx context.Context, leases []outbox.Lease, lease time.Duration,
) (lost []outbox.Lease, err error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	ids, tokens := make([]string, len(leases)), make([]int64, len(leases))
	for i, l := range leases {
		ids[i], tokens[i] = l.ID, l.Token
	}
	args := []any{ids, tokens, lease.Microseconds()}
	held, err := collect(ctx, s.own, s.render(extendMessages), args, pgx.RowToStructByPos[outbox.Lease])
	if err != nil {
		return nil, unavailable(err)
	}
	return missing(leases, held), nil
}

// missing returns the leases that are not in held.
func missing(leases, held []outbox.Lease) (lost []outbox.Lease) {
	there := make(map[outbox.Lease]bool, len(held))
	for _, l := range held {
		there[l] = true
	}
	for _, l := range leases {
		if !there[l] {
			lost = append(lost, l)
		}
	}
	return lost
}

// RecordEffect implements [outbox.Store].
func (s *Store) RecordEffect(ctx context.Context, l outbox.Lease, providerID string, answer []byte) error {
	if err := s.writable(); err != nil {
		return err
	}
	tag, err := s.own.Exec(ctx, s.render(recordEffect), l.ID, l.Token, orNull(providerID),
		answerOrNull(answer))
	if err == nil && tag.RowsAffected() == 0 {
		return outbox.ErrFenced
	}
	return unavailable(err)
}

// FinishMessages implements [outbox.Store].
func (s *Store) FinishMessages(ctx context.Context, outcomes []outbox.Outcome) (fenced []outbox.Lease, err error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	// In a fixed order, because an earlier attempt whose reply was lost may still be running.
	outcomes = slices.SortedFunc(slices.Values(outcomes), func(a, b outbox.Outcome) int { return cmp.Compare(a.ID, b.ID) })
	finished, lanes, err := s.finish(ctx, outcomes)
	if err != nil {
		return nil, unavailable(err)
	}
	if len(finished) < len(outcomes) {
		leases := make([]outbox.Lease, len(outcomes))
		for i := range outcomes {
			leases[i] = outcomes[i].Lease
		}
		fenced = missing(leases, finished)
	}
	s.freeLanes(ctx, append(lanes, s.lanesOf(ctx, fenced)...))
	return fenced, nil
}

// finish ends the leases that are still held, and returns them with the lanes of their messages. The server sends three
// arrays, because reading as many rows would take longer than writing them.
func (s *Store) finish(ctx context.Context, outcomes []outbox.Outcome) (held []outbox.Lease, lanes []int64, err error) {
	const arrays = `SELECT array_agg(id), array_agg(token), array_agg(lane) FROM (` + finishMessages + `) AS finished`
	var ids []pgtype.UUID
	var tokens []int64
	err = s.own.QueryRow(ctx, s.render(arrays), finishArgs(outcomes)...).Scan(&ids, &tokens, &lanes)
	for i := range ids {
		held = append(held, outbox.Lease{ID: ids[i].String(), Token: tokens[i]})
	}
	return held, lanes, err
}

// lanesOf returns the lanes of messages whose lease was no longer held. An earlier attempt may have finished the
// messages, and its reply with the lanes was lost.
func (s *Store) lanesOf(ctx context.Context, fenced []outbox.Lease) []int64 {
	if len(fenced) == 0 {
		return nil
	}
	ids := make([]string, 0, len(fenced))
	for _, l := range fenced {
		if isUUID(l.ID) {
			ids = append(ids, l.ID)
		}
	}
	lanes, _ := collect(ctx, s.own, s.render(selectLanes), []any{ids}, pgx.RowTo[int64])
	return lanes // FreeMessages frees lanes that are missing here
}

// finishArgs returns the arguments of the function that finishes messages, one array for each column.
func finishArgs(outcomes []outbox.Outcome) []any {
	n := len(outcomes)
	ids, tokens, states := make([]string, n), make([]int64, n), make([]int16, n)
	waits, attempts := make([]int64, n), make([]int32, n)
	providers, failures := make([]*string, n), make([]*string, n)
	for i := range outcomes {
		e := &outcomes[i]
		ids[i], tokens[i], states[i] = e.ID, e.Token, int16(e.State)
		waits[i], attempts[i] = e.After.Microseconds(), int32(e.Attempts)
		providers[i], failures[i] = orNull(e.ProviderID), orNull(e.Error)
	}
	return []any{ids, tokens, states, waits, attempts, providers, failures}
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// FinishMessageTx implements [outbox.Store]. The message is locked from the start, so that no worker takes
// it while work is running.
func (s *Store) FinishMessageTx(
	ctx context.Context, outcome outbox.Outcome, work func(ctx context.Context) error,
) error {
	var lane int64
	err := s.InTx(ctx, func(ctx context.Context) error {
		tx := Tx(ctx)
		err := tx.QueryRow(ctx, s.render(lockMessage), outcome.ID, outcome.Token).Scan(&lane)
		if errors.Is(err, pgx.ErrNoRows) {
			return outbox.ErrFenced
		}
		if err != nil {
			return unavailable(err)
		}
		if err := work(ctx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, s.render(finishMessages), finishArgs([]outbox.Outcome{outcome})...)
		if err == nil && tag.RowsAffected() != 1 {
			return errors.New("postgres: the message was changed by the work that finishes it")
		}
		return unavailable(err)
	})
	if err == nil {
		s.freeLanes(ctx, []int64{lane})
	}
	return err
}

// FreeMessages implements [outbox.Store].
func (s *Store) FreeMessages(ctx context.Context) (freed int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	err = s.own.QueryRow(ctx, s.render(freeStuckMessages)).Scan(&freed)
	return freed, unavailable(err)
}

// PurgeMessages implements [outbox.Store] with the SQL function that a scheduler may also call.
func (s *Store) PurgeMessages(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.purge(ctx, purgeMessages, age, limit)
}

// notifyPause is the shortest time between two messages that send a notification. Notifications make commits wait
// for each other, so not every message sends one: a worker that was woken continues to look for messages for longer
// than this before it sleeps.
const notifyPause = 50 * time.Millisecond

// announcer announces that there may be new messages: to other processes not too often, and to all
// watchers in this process.
type announcer struct {
	sqltx.Hints
	last atomic.Int64
}

// due reports whether it is time to send a notification. If it is, due records that the notification is sent.
func (a *announcer) due(now time.Time) bool {
	last := a.last.Load()
	return now.UnixNano()-last >= int64(notifyPause) && a.last.CompareAndSwap(last, now.UnixNano())
}

// WatchMessages implements [outbox.Store].
func (s *Store) WatchMessages() (hints <-chan struct{}, stop func()) { return s.messages.Watch() }

// HearsMessages implements [outbox.Store]: notifications arrive while the listener is connected.
func (s *Store) HearsMessages() bool { return s.waits.listen.healthy() }
