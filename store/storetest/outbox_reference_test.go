package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// reference keeps messages and events in memory, the plain way: it is there to show that the suite passes an honest
// store, and fails one that breaks a promise.
type reference struct {
	*memory.Store
	clock func() time.Time
	// broken names the promise that this store breaks. It is empty in an honest one.
	broken string

	mu       sync.Mutex
	messages []*storedMessage // in the order of commits
	token    int64
	events   map[[2]string]time.Time
	watchers map[chan struct{}]bool
	open     map[*sql.Tx]*fakeTx
	locks    map[string]*fakeTx
	unlocked *sync.Cond
}

// storedMessage is a message with what the claims need.
type storedMessage struct {
	outbox.Entry
	token int64
	added int64 // its place among those that were added
}

// nextToken returns a number that is larger than those before.
func (r *reference) nextToken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token++
	return r.token
}

func newReference(clock func() time.Time, broken string) *reference {
	r := &reference{
		Store: memory.New(memory.WithClock(clock)), clock: clock, broken: broken,
		events: make(map[[2]string]time.Time), watchers: make(map[chan struct{}]bool), locks: make(map[string]*fakeTx),
		open: make(map[*sql.Tx]*fakeTx),
	}
	r.unlocked = sync.NewCond(&r.mu)
	return r
}

// AddMessage implements [outbox.Store].
func (r *reference) AddMessage(_ context.Context, tx *sql.Tx, e *outbox.Entry) error {
	t, err := r.join(tx)
	if err != nil {
		return err
	}
	const byAdding = "the order is that of adding"
	if e.Ordered() && r.broken != byAdding {
		r.lock(t, fmt.Sprintf("aggregate %q", lane(e)))
	}
	m := &storedMessage{Entry: *e}
	m.CreatedAt = r.clock()
	m.Due, m.State = m.CreatedAt.Add(m.Delay), outbox.StateReady
	if m.Topic == "" {
		m.State = outbox.StateCaptured
	}
	insert := func() { r.messages = append(r.messages, m) }
	if r.broken == byAdding {
		m.added = r.nextToken()
		insert = func() {
			later := slices.IndexFunc(r.messages, func(other *storedMessage) bool { return other.added > m.added })
			if later < 0 {
				later = len(r.messages)
			}
			r.messages = slices.Insert(r.messages, later, m)
		}
	}
	if r.broken == "rolled-back messages are visible" {
		r.mu.Lock()
		defer r.mu.Unlock()
		insert()
		return nil
	}
	t.onCommit = append(t.onCommit, insert)
	if r.broken == "a late commit is skipped" {
		m.token = -r.nextToken() // the number that it drew when it was added
	}
	return nil
}

// lane names the order that a message is in.
func lane(e *outbox.Entry) [3]string { return [3]string{e.Topic, e.AggregateType, e.AggregateID} }

// lanes holds the orders in which something is in front of what comes next.
type lanes map[[3]string]bool

// waits reports whether a message has to wait for one before it. The messages are passed in their order.
func (l lanes) waits(r *reference, m *storedMessage) bool {
	return m.Ordered() && l[lane(&m.Entry)] && r.broken != "claims ignore order"
}

// pass notes a message that stays where it is.
func (l lanes) pass(m *storedMessage) {
	if m.Ordered() && m.State <= outbox.StateHolding {
		l[lane(&m.Entry)] = true
	}
}

// due reports whether a message is a candidate of a claim. The caller holds mu.
func (r *reference) due(m *storedMessage, now time.Time) bool {
	if r.broken == "done messages are claimed again" && m.State == outbox.StateDone {
		return true
	}
	if r.broken == "a late commit is skipped" && m.token < 0 && -m.token < r.highest() {
		return false
	}
	return m.State <= outbox.StateLeased && !m.Due.After(now) && r.locks["message "+m.ID] == nil
}

// highest returns the largest number of a message that was ever claimed, as far as the mutant remembers.
func (r *reference) highest() (highest int64) {
	for _, m := range r.messages {
		if m.State == outbox.StateDone {
			highest = max(highest, m.token)
		}
	}
	return highest
}

// ClaimMessages implements [outbox.Store].
func (r *reference) ClaimMessages(ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration) ([]outbox.Claimed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	var taken []*storedMessage
	for _, want := range wants {
		taken = append(taken, r.candidates(want, now)...)
	}
	if r.broken == "claims are not atomic" {
		r.mu.Unlock()
		runtime.Gosched()
		r.mu.Lock()
	}
	r.token++
	claimed := make([]outbox.Claimed, 0, len(taken))
	begun := make(lanes)
	for _, m := range taken {
		if r.broken == "the whole run is counted" || r.broken != "attempts are not counted" && !begun.waits(r, m) {
			m.Attempts++
		}
		m.State, m.Due, m.token = outbox.StateLeased, now.Add(lease), r.token
		begun.pass(m)
		claimed = append(claimed, outbox.Claimed{Entry: m.Entry, Token: m.token})
	}
	return claimed, nil
}

// candidates chooses what to claim of a topic, and notes what has to wait. The caller holds mu.
func (r *reference) candidates(want outbox.ClaimRequest, now time.Time) (taken []*storedMessage) {
	blocked, limit := make(lanes), want.Limit
	for _, m := range r.messages {
		if want.Topic == "" || m.Topic != want.Topic {
			continue
		}
		due, waits := r.due(m, now), blocked.waits(r, m)
		if due && !waits && len(taken) < limit {
			taken = append(taken, m)
			continue
		}
		if due && waits {
			m.State = outbox.StateBehind
			if r.broken == "a poison message fills the claim" {
				limit--
			}
		}
		blocked.pass(m)
	}
	return taken
}

// held returns the message of a lease, or nil. The caller holds mu.
func (r *reference) held(l outbox.Lease) *storedMessage {
	for _, m := range r.messages {
		if m.ID == l.ID && m.State == outbox.StateLeased && (m.token == l.Token || r.broken == "fencing by id only") {
			return m
		}
	}
	return nil
}

// ExtendMessages implements [outbox.Store].
func (r *reference) ExtendMessages(_ context.Context, leases []outbox.Lease, lease time.Duration) (lost []outbox.Lease, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range leases {
		if m := r.held(l); m != nil {
			m.Due = r.clock().Add(lease)
		} else {
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// RecordEffect implements [outbox.Store].
func (r *reference) RecordEffect(_ context.Context, l outbox.Lease, providerID string, answer []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.held(l)
	if m == nil {
		return outbox.ErrFenced
	}
	if providerID != "" {
		m.ProviderID = providerID
	}
	r.keepAnswer(m, answer)
	return nil
}

// keepAnswer keeps an answer unless it is empty. The caller holds mu.
func (r *reference) keepAnswer(m *storedMessage, answer []byte) {
	if len(answer) > 0 || r.broken == "an empty answer overwrites the one before" {
		m.Answer = bytes.Clone(answer)
	}
}

// FinishMessages implements [outbox.Store].
func (r *reference) FinishMessages(_ context.Context, outcomes []outbox.Outcome) (fenced []outbox.Lease, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, end := range outcomes {
		if !r.end(end) {
			fenced = append(fenced, end.Lease)
		}
	}
	return fenced, nil
}

// end ends a lease. The caller holds mu.
func (r *reference) end(end outbox.Outcome) bool {
	m := r.held(end.Lease)
	if m == nil {
		return false
	}
	m.State, m.Due, m.Attempts, m.LastError = end.State, r.clock().Add(end.After), end.Attempts, end.Error
	if end.ProviderID != "" {
		m.ProviderID = end.ProviderID
	}
	if end.State == outbox.StateDone || end.State == outbox.StateDead {
		r.free()
	}
	return true
}

// free makes those ready that are behind nothing. The caller holds mu.
func (r *reference) free() (freed int) {
	if r.broken == "those behind are never freed" {
		return 0
	}
	blocked := make(lanes)
	for _, m := range r.messages {
		if m.State == outbox.StateBehind && !blocked.waits(r, m) {
			m.State = outbox.StateReady
			freed++
		}
		blocked.pass(m)
	}
	return freed
}

// FinishMessageTx implements [outbox.Store].
func (r *reference) FinishMessageTx(ctx context.Context, end outbox.Outcome, work func(ctx context.Context) error) error {
	return r.InTx(ctx, func(ctx context.Context) error {
		t, err := r.join(onceward.Tx(ctx))
		if err != nil {
			return err
		}
		r.mu.Lock()
		lost := r.held(end.Lease) == nil
		r.mu.Unlock()
		if lost && r.broken != "the work of a fenced worker is committed" {
			return outbox.ErrFenced
		}
		if r.broken == "the end of a message is not undone with its work" {
			_, _ = r.FinishMessages(ctx, []outbox.Outcome{end})
		}
		r.lock(t, "message "+end.ID)
		if err := work(ctx); err != nil {
			return err
		}
		t.onCommit = append(t.onCommit, func() { r.end(end) })
		if lost {
			t.verdict = outbox.ErrFenced
		}
		return nil
	})
}

// FreeMessages implements [outbox.Store].
func (r *reference) FreeMessages(context.Context) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.free(), nil
}

// join returns the transaction that a caller handed over.
func (r *reference) join(tx *sql.Tx) (*fakeTx, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.open[tx]
	if t == nil {
		return nil, errNotTx
	}
	return t, nil
}

// deadLetter returns a dead letter. The caller holds mu.
func (r *reference) deadLetter(id string) (*storedMessage, error) {
	for _, m := range r.messages {
		if m.ID == id && (m.State == outbox.StateDead || m.State == outbox.StateHolding) {
			return m, nil
		}
	}
	return nil, store.ErrNotFound
}
