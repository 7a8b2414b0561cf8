package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
)

// testOutboxRandom sends random sequences of claims and outcomes to a few messages, and compares each answer and each
// message with a model (O2, O3).
func testOutboxRandom(t *testing.T, h Harness) {
	e := open(t, h)
	begin := e.moving()
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		begin()
		checks++
		now, err := e.clock()
		if err != nil {
			rt.Fatal(err)
		}
		w := &deliveryWalk{env: e, topic: fmt.Sprint("check ", checks), at: now, tokens: make(map[int64]bool)}
		w.addMove(rt)
		moves := w.moves()
		names := slices.Sorted(maps.Keys(moves))
		for range rapid.IntRange(1, 15).Draw(rt, "moves") {
			begin()
			moves[rapid.SampledFrom(names).Draw(rt, "move")](rt)
			w.compare(rt)
		}
	})
}

// deliveryWalk is one random sequence on a store that it shares with the earlier sequences; its messages have a topic
// of their own.
type deliveryWalk struct {
	*env
	topic string
	model deliveryModel
	// at is the time of the store's clock, which only the sequence moves.
	at time.Time
	// tokens are the tokens that were granted.
	tokens map[int64]bool
}

// moves returns the possible moves.
func (w *deliveryWalk) moves() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"add":         w.addMove,
		"claim":       w.claimMove,
		"claim again": w.claimMove, // the most frequent of all
		"finish":      w.finishMove,
		"finish more": w.finishMove,
		"extend":      w.extendMove,
		"replay": func(rt *rapid.T) {
			w.operatorMove(rt, func(ctx context.Context, id string) error {
				return w.box().ReplayMessage(ctx, id, nil)
			}, w.model.replay)
		},
		"drop": func(rt *rapid.T) { w.operatorMove(rt, w.box().DropMessage, w.model.drop) },
		"free": w.freeMove,
		"advance": func(rt *rapid.T) {
			d := rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, time.Minute}).Draw(rt, "time")
			w.Advance(d)
			w.at = w.at.Add(d)
		},
	}
}

func (w *deliveryWalk) addMove(rt *rapid.T) {
	var messages []outbox.Message
	for i := range rapid.IntRange(1, 5).Draw(rt, "messages") {
		m := about(rapid.SampledFrom([]string{"x", "x", "y", ""}).Draw(rt, "aggregate"), fmt.Sprint(len(w.model.all)+i))
		m.Topic = w.topic
		m.Delay = rapid.SampledFrom([]time.Duration{0, 0, 0, 30 * time.Second}).Draw(rt, "delay")
		messages = append(messages, m)
	}
	var ids []string
	err := w.inTx(func(ctx context.Context) error {
		ids = ids[:0] // the store may call the work again
		return w.adding(&ids, messages...)(ctx)
	})
	if err != nil {
		rt.Fatal(err)
	}
	for i, m := range messages {
		w.model.all = append(w.model.all,
			&modelMessage{id: ids[i], kind: m.Type, lane: m.AggregateID, due: w.at.Add(m.Delay)})
	}
}

func (w *deliveryWalk) claimMove(rt *rapid.T) {
	limit := rapid.SampledFrom([]int{1, 2, 3, everything}).Draw(rt, "limit")
	lease := rapid.SampledFrom([]time.Duration{30 * time.Second, time.Minute}).Draw(rt, "lease")
	claimed, err := w.box().ClaimMessages(w.ctx, []outbox.ClaimRequest{{Topic: w.topic, Limit: limit}}, lease)
	if err != nil {
		rt.Fatal(err)
	}
	if err := w.model.claim(claimed, limit, lease, w.at); err != nil {
		rt.Fatalf("O2: a claim of at most %d: %v", limit, err)
	}
	if len(claimed) == 0 {
		return
	}
	if w.tokens[claimed[0].Token] {
		rt.Fatalf("O2: token %d was given out twice", claimed[0].Token)
	}
	w.tokens[claimed[0].Token] = true
}

// drawLease returns a lease that a worker has or had, usually one that counts.
func (w *deliveryWalk) drawLease(rt *rapid.T) (*modelMessage, outbox.Lease) {
	candidates := w.model.all
	if leased := w.model.leased(); len(leased) > 0 && rapid.IntRange(0, 4).Draw(rt, "which") > 0 {
		candidates = leased
	}
	m := rapid.SampledFrom(candidates).Draw(rt, "message")
	token := m.token
	if len(m.old) > 0 && rapid.IntRange(0, 4).Draw(rt, "whose") == 0 {
		token = rapid.SampledFrom(m.old).Draw(rt, "token")
	}
	return m, outbox.Lease{ID: m.id, Token: token}
}

// finishMove ends a lease, which may be lost.
func (w *deliveryWalk) finishMove(rt *rapid.T) {
	m, lease := w.drawLease(rt)
	states := []outbox.State{outbox.StateDone, outbox.StateDone, outbox.StateDead, outbox.StateHolding, outbox.StateReady}
	if m.lane != "" {
		states = append(states, outbox.StateBehind) // a message without an aggregate cannot be behind
	}
	end := outbox.Outcome{
		Lease:      lease,
		State:      rapid.SampledFrom(states).Draw(rt, "state"),
		Attempts:   rapid.IntRange(0, 3).Draw(rt, "attempts"),
		ProviderID: rapid.SampledFrom([]string{"", "ch_1", "ch_2"}).Draw(rt, "provider's id"),
		Error:      "because",
	}
	if end.State == outbox.StateReady {
		end.After = rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(rt, "after")
	}
	fenced, err := w.box().FinishMessages(w.ctx, []outbox.Outcome{end})
	if err != nil {
		rt.Fatal(err)
	}
	if err := m.mayFence(lease.Token, len(fenced) == 1, w.at); err != nil {
		rt.Fatalf("O2: FinishMessages: %v", err)
	}
	if len(fenced) == 0 {
		m.end(end, w.at)
	}
	if end.State == outbox.StateBehind {
		w.freeMove(rt) // it may be behind nothing, which FreeMessages must find
	}
}

func (w *deliveryWalk) extendMove(rt *rapid.T) {
	m, lease := w.drawLease(rt)
	lost, err := w.box().ExtendMessages(w.ctx, []outbox.Lease{lease}, time.Minute)
	if err != nil {
		rt.Fatal(err)
	}
	if err := m.mayFence(lease.Token, len(lost) == 1, w.at); err != nil {
		rt.Fatalf("O2: ExtendMessages: %v", err)
	}
	if len(lost) == 0 {
		m.due = w.at.Add(time.Minute)
	}
}

// freeMove calls FreeMessages, which looks for messages behind nothing. The model has no such messages.
func (w *deliveryWalk) freeMove(rt *rapid.T) {
	if _, err := w.box().FreeMessages(w.ctx); err != nil {
		rt.Fatal(err)
	}
}

// compare compares every message with the model.
func (w *deliveryWalk) compare(rt *rapid.T) {
	found, err := w.box().Messages(w.ctx, outbox.Filter{Topic: w.topic, Limit: everything})
	if err != nil {
		rt.Fatal(err)
	}
	if len(found) != len(w.model.all) {
		rt.Fatalf("O1: %d messages are kept, want %d", len(found), len(w.model.all))
	}
	for _, got := range found {
		m := w.model.find(got.ID)
		if m == nil {
			rt.Fatalf("O1: message %q was never added", got.Type)
		}
		if err := m.same(got, w.at); err != nil {
			rt.Fatalf("O2: message %q of aggregate %q %v", m.kind, m.lane, err)
		}
	}
}
