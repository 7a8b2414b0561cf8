package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// topic is the topic of most messages of the tests.
const topic = "charges"

// box returns the store as an [outbox.Store].
func (e *env) box() outbox.Store { return e.Store.(outbox.Store) }

// about returns a message about an aggregate, or a message without order if the aggregate is empty.
func about(aggregate, kind string) outbox.Message {
	return outbox.Message{
		Topic: topic, AggregateType: "payment", AggregateID: aggregate, Type: kind, Payload: []byte(`{}`),
	}
}

// adding returns work that adds messages, and appends their IDs to ids.
func (e *env) adding(ids *[]string, messages ...outbox.Message) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		box, err := outbox.New(e.box(), outbox.Config{})
		if err != nil {
			return err
		}
		for _, m := range messages {
			id, err := box.Add(ctx, e.tx(ctx), m)
			if err != nil {
				return fmt.Errorf("add %q: %w", m.Type, err)
			}
			*ids = append(*ids, id)
		}
		return nil
	}
}

// add commits messages, all in one transaction, and returns their IDs.
func (e *env) add(messages ...outbox.Message) []string {
	e.Helper()
	var ids []string
	e.committed(func(ctx context.Context) error {
		ids = ids[:0] // the store may call the work again
		return e.adding(&ids, messages...)(ctx)
	})
	return ids
}

// lane commits n messages about one aggregate, each in a transaction of its own and at a different time, so that the
// order of their ages is certain.
func (e *env) lane(aggregate string, n int) (ids []string) {
	e.Helper()
	for i := range n {
		ids = append(ids, e.add(about(aggregate, fmt.Sprint(aggregate, " ", i)))...)
		e.pass(e.resolution())
	}
	return ids
}

// claimFor claims messages for a lease.
func (e *env) claimFor(lease time.Duration, wants ...outbox.ClaimRequest) []outbox.Claimed {
	e.Helper()
	claimed, err := e.box().ClaimMessages(e.ctx, wants, lease)
	if err != nil {
		e.Fatalf("claim %v: %v", wants, err)
	}
	return claimed
}

// claim claims at most limit messages of the topic, for a lease that does not run out.
func (e *env) claim(limit int) []outbox.Claimed {
	e.Helper()
	return e.claimFor(calm, outbox.ClaimRequest{Topic: topic, Limit: limit})
}

// claimOne claims one message, which must be the given one.
func (e *env) claimOne(id, rule string) outbox.Claimed {
	e.Helper()
	claimed := e.claim(1)
	e.wantIDs(claimed, rule, id)
	return claimed[0]
}

// wantIDs checks which messages were claimed, in any order, and ends the test if they are others.
func (e *env) wantIDs(claimed []outbox.Claimed, rule string, want ...string) {
	e.Helper()
	if got := claimedIDs(claimed); !slices.Equal(sorted(got), sorted(want)) {
		e.Fatalf("%s: claimed %s, want %s", rule, e.describe(got), e.describe(want))
	}
}

// wantRun checks which messages were claimed, and their order.
func (e *env) wantRun(claimed []outbox.Claimed, rule string, want ...string) {
	e.Helper()
	if got := claimedIDs(claimed); !slices.Equal(got, want) {
		e.Fatalf("%s: claimed %s, want %s in this order", rule, e.describe(got), e.describe(want))
	}
}

func claimedIDs(claimed []outbox.Claimed) []string {
	ids := make([]string, len(claimed))
	for i := range claimed {
		ids[i] = claimed[i].ID
	}
	return ids
}

func sorted(ids []string) []string { return slices.Sorted(slices.Values(ids)) }

// describe returns the types and states of messages, which are more readable than their IDs.
func (e *env) describe(ids []string) string {
	if len(ids) == 0 {
		return "nothing"
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = "a message that is not there"
		if found, err := e.box().Messages(e.ctx, outbox.Filter{ID: id}); err == nil && len(found) == 1 {
			names[i] = fmt.Sprintf("%q (%s)", found[0].Type, found[0].State)
		}
	}
	return strings.Join(names, ", ")
}

// to returns an outcome with a state, and with the attempts that the store has counted for the claim.
func to(state outbox.State, c outbox.Claimed) outbox.Outcome {
	return outbox.Outcome{Lease: c.Lease(), State: state, Attempts: c.Attempts}
}

// finish ends leases, which must be held.
func (e *env) finish(outcomes ...outbox.Outcome) {
	e.Helper()
	fenced, err := e.box().FinishMessages(e.ctx, outcomes)
	e.must(err)
	if len(fenced) != 0 {
		e.Fatalf("O2: %d of %d leases that are held were said to be lost", len(fenced), len(outcomes))
	}
}

// done ends leases with the result that the messages were delivered.
func (e *env) done(claimed ...outbox.Claimed) {
	e.Helper()
	outcomes := make([]outbox.Outcome, len(claimed))
	for i := range claimed {
		outcomes[i] = to(outbox.StateDone, claimed[i])
	}
	e.finish(outcomes...)
}

// delivered claims and finishes messages until none is due, and returns their IDs in the order of delivery.
func (e *env) delivered() (ids []string) {
	e.Helper()
	for {
		claimed := e.claim(everything)
		if len(claimed) == 0 {
			return ids
		}
		e.done(claimed...)
		for _, c := range claimed {
			if slices.Contains(ids, c.ID) {
				e.Fatalf("O3: message %q was claimed again after it was done", c.Type)
			}
			ids = append(ids, c.ID)
		}
	}
}

// message returns a message as it is stored.
func (e *env) message(id string) outbox.Entry {
	e.Helper()
	found := e.listMessages(outbox.Filter{ID: id})
	if len(found) != 1 || found[0].ID != id {
		e.Fatalf("Messages of ID %s returned %d entries, want the one", id, len(found))
	}
	return found[0]
}

func (e *env) listMessages(f outbox.Filter) []outbox.Entry {
	e.Helper()
	found, err := e.box().Messages(e.ctx, f)
	e.must(err)
	return found
}

// wantMessage checks the state of a message.
func (e *env) wantMessage(id string, want outbox.State, rule string) outbox.Entry {
	e.Helper()
	got := e.message(id)
	if got.State != want {
		e.Errorf("%s: message %q is %s, want %s", rule, got.Type, got.State, want)
	}
	return got
}

// wantAttempts checks how often a delivery of a message was begun.
func (e *env) wantAttempts(got outbox.Entry, want int, rule string) {
	e.Helper()
	if got.Attempts != want {
		e.Errorf("%s: message %q was tried %d times, want %d", rule, got.Type, got.Attempts, want)
	}
}

// wantLost checks that a write of a worker was refused.
func (e *env) wantLost(err error, rule string) {
	e.Helper()
	if !errors.Is(err, outbox.ErrFenced) {
		e.Errorf("%s: got error %v, want outbox.ErrFenced", rule, err)
	}
}

// wantNotFound checks that there was nothing to act on.
func (e *env) wantNotFound(err error, rule string) {
	e.Helper()
	if !errors.Is(err, store.ErrNotFound) {
		e.Errorf("%s: got error %v, want onceward.ErrNotFound", rule, err)
	}
}

// uuid returns an ID like the IDs of the outbox.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x70, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
