package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// deliveryModel is the expected content of the outbox. It holds the messages in the order in which they were committed.
type deliveryModel struct{ all []*modelMessage }

// modelMessage is one message. Its state is Ready even if the store may record it as Behind: whether and when a store
// does so is its own choice, as long as no worker gets the message too early and some worker gets it in the end.
type modelMessage struct {
	id, kind, lane string
	state          outbox.State
	// due is when the message is due, or when its lease ends.
	due      time.Time
	attempts int
	// token is the token of the last lease, and old are the tokens before it.
	token      int64
	old        []int64
	providerID string
	// lastError is the error of the last outcome. It is empty if there was none since the message was added or
	// replayed.
	lastError string
}

func (d *deliveryModel) find(id string) *modelMessage {
	i := slices.IndexFunc(d.all, func(m *modelMessage) bool { return m.id == id })
	if i < 0 {
		return nil
	}
	return d.all[i]
}

// leased returns the messages that a worker has, or had and did not end.
func (d *deliveryModel) leased() (leased []*modelMessage) {
	for _, m := range d.all {
		if m.state == outbox.StateLeased {
			leased = append(leased, m)
		}
	}
	return leased
}

func (m *modelMessage) open() bool {
	return m.state == outbox.StateReady || m.state == outbox.StateLeased || m.state == outbox.StateHolding
}

// ripe reports whether the message may be claimed if there is no open message in front of it.
func (m *modelMessage) ripe(now time.Time) bool {
	return (m.state == outbox.StateReady || m.state == outbox.StateLeased) && !now.Before(m.due)
}

// inFront returns the open messages that a message waits for.
func (d *deliveryModel) inFront(m *modelMessage) (front []*modelMessage) {
	for _, other := range d.all {
		if other == m {
			break
		}
		if m.lane != "" && other.lane == m.lane && other.open() {
			front = append(front, other)
		}
	}
	return front
}

// claim checks what a store claimed, and applies it to the model. A claim takes at least one message if there is any to
// take. If the limit is not reached it takes at least the first message of each aggregate; how many of the following
// messages it takes too is its choice.
func (d *deliveryModel) claim(claimed []outbox.Claimed, limit int, lease time.Duration, now time.Time) error {
	taken := make(map[*modelMessage]bool)
	for _, c := range claimed {
		m := d.find(c.ID)
		if m == nil || taken[m] || !m.ripe(now) {
			return fmt.Errorf("took message %q, which is not there, not due, or taken twice", c.Type)
		}
		front := d.inFront(m)
		for _, other := range front {
			if !taken[other] {
				return fmt.Errorf("took message %q of aggregate %q before %q, which is %s", m.kind, m.lane, other.kind, other.state)
			}
		}
		want := m.attempts
		if len(front) == 0 {
			want++
		}
		if c.Attempts != want || c.State != outbox.StateLeased || c.Token != claimed[0].Token ||
			c.ProviderID != m.providerID {
			return fmt.Errorf("took message %q as (%s, attempt %d, token %d, provider's id %q), want (leased, "+
				"attempt %d, token %d, provider's id %q)",
				m.kind, c.State, c.Attempts, c.Token, c.ProviderID, want, claimed[0].Token, m.providerID)
		}
		taken[m] = true
	}
	if err := d.enough(taken, limit, now); err != nil {
		return err
	}
	for _, c := range claimed {
		m := d.find(c.ID)
		m.old = append(m.old, m.token)
		m.state, m.due, m.attempts, m.token = outbox.StateLeased, now.Add(lease), c.Attempts, c.Token
	}
	return nil
}

// enough checks that a claim left no message that it should have taken.
func (d *deliveryModel) enough(taken map[*modelMessage]bool, limit int, now time.Time) error {
	if len(taken) > limit {
		return fmt.Errorf("took %d messages", len(taken))
	}
	for _, m := range d.all {
		if first := m.ripe(now) && len(d.inFront(m)) == 0; first && !taken[m] && (len(taken) == 0 || limit == everything) {
			return fmt.Errorf("took %d messages, but not %q of aggregate %q, which is due and waits for nothing", len(taken),
				m.kind, m.lane)
		}
	}
	return nil
}

// mayFence checks whether a lease was correctly reported as lost. A lease that ran out, and whose message no worker
// took, may be reported either way.
func (m *modelMessage) mayFence(token int64, fenced bool, now time.Time) error {
	current := m.state == outbox.StateLeased && m.token == token
	switch {
	case current && now.Before(m.due) && fenced:
		return fmt.Errorf("the lease on %q was said to be lost, but is held", m.kind)
	case !current && !fenced:
		return fmt.Errorf("the lease on %q was said to be held, but the message is %s, under token %d and not %d", m.kind,
			m.state, m.token, token)
	default:
		return nil
	}
}

// end ends a lease.
func (m *modelMessage) end(e outbox.Outcome, now time.Time) {
	m.state, m.due, m.attempts, m.lastError = e.State, now.Add(e.After), e.Attempts, e.Error
	if e.State == outbox.StateBehind {
		m.state = outbox.StateReady
	}
	if e.ProviderID != "" {
		m.providerID = e.ProviderID
	}
}

// replay makes a dead letter ready, and reports whether the message is a dead letter.
func (d *deliveryModel) replay(m *modelMessage, now time.Time) bool {
	if m.state != outbox.StateDead && m.state != outbox.StateHolding {
		return false
	}
	m.state, m.due, m.attempts, m.lastError = outbox.StateReady, now, 0, ""
	return true
}

// drop stops a dead letter from holding up its aggregate, and reports whether the message is a dead letter.
func (d *deliveryModel) drop(m *modelMessage, _ time.Time) bool {
	if m.state != outbox.StateDead && m.state != outbox.StateHolding {
		return false
	}
	m.state = outbox.StateDead
	return true
}

// operatorMove makes an operator act on a message.
func (w *deliveryWalk) operatorMove(
	rt *rapid.T, act func(context.Context, string) error, model func(*modelMessage, time.Time) bool,
) {
	m := rapid.SampledFrom(w.model.all).Draw(rt, "message")
	before := m.state
	err := act(w.ctx, m.id)
	if done := model(m, w.at); done && err != nil || !done && !errors.Is(err, store.ErrNotFound) {
		rt.Fatalf("O3: to replay or drop a message that was %s got the error %v", before, err)
	}
}

// same compares a message with the stored one.
func (m *modelMessage) same(got outbox.Entry, now time.Time) error {
	state := got.State
	if state == outbox.StateBehind {
		state = outbox.StateReady
	}
	// A lease that ran out may be recorded as such.
	lapsed := m.state == outbox.StateLeased && !now.Before(m.due) && state == outbox.StateReady
	if state != m.state && !lapsed {
		return fmt.Errorf("is %s, want %s", got.State, m.state)
	}
	if m.state == outbox.StateLeased && !lapsed && !got.Due.Equal(m.due) {
		return fmt.Errorf("is leased until %s, want until %s", got.Due, m.due)
	}
	// A message that waited for another one may be due from the time when the wait was over.
	if got.State == outbox.StateReady && got.Due.After(now) && !got.Due.Equal(m.due) {
		return fmt.Errorf("is due at %s, want at %s", got.Due, m.due)
	}
	if got.Attempts != m.attempts || got.ProviderID != m.providerID || got.LastError != m.lastError && m.lastError != "" {
		return fmt.Errorf("has (%d attempts, provider's id %q, error %q), want (%d, %q, %q)",
			got.Attempts, got.ProviderID, got.LastError, m.attempts, m.providerID, m.lastError)
	}
	return nil
}
