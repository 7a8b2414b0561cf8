package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// audit returns what the audit says about a key, one line for each entry.
func (b *bench) audit(id store.ID) string {
	b.Helper()
	entries, err := b.store.Audit(b.Context(), id)
	b.must(err)
	var lines []string
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("%s: %s, %s [%s]", e.Actor, e.Action, e.Reason, e.Outcome))
	}
	return strings.Join(lines, "\n")
}

func (b *bench) wantAudit(id store.ID, want ...string) {
	b.Helper()
	if got := b.audit(id); got != strings.Join(want, "\n") {
		b.Errorf("the audit says\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func (b *bench) operator(store outbox.Store) *outbox.Operator {
	b.Helper()
	operator, err := outbox.NewOperator(store)
	b.must(err)
	return operator
}

// kill makes messages dead letters.
func (b *bench) kill(messages ...outbox.Message) []string {
	b.Helper()
	ids := b.add(messages...)
	dies := func(context.Context, *outbox.Delivery) (outbox.Result, error) {
		return outbox.Result{}, outbox.Permanent(errDown)
	}
	b.run(b.worker(b.store, outbox.Route{Handler: dies}), outbox.Report{DeadLetters: len(ids)})
	return ids
}

// TestReplay: a dead letter is delivered again under its old name, with all its tries before it, and the audit knows
// who wanted that.
func TestReplay(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.kill(about("a", "m"))[0]
		before := b.entry(id)
		b.must(b.operator(b.store).Replay(b.Context(), "zoe", "the bank is back", id))
		if e := b.entry(id); e.State != outbox.StateReady || e.Attempts != 0 || e.DownstreamKey != before.DownstreamKey {
			b.Errorf("it is %s after %d tries, under %s", e.State, e.Attempts, e.DownstreamKey)
		}
		b.wantAudit(store.ID{Key: id}, "zoe: outbox replay "+id+", the bank is back []",
			"zoe: outbox replay "+id+", the bank is back [done]")
		b.run(b.worker(b.store, outbox.Route{Handler: new(clerk).deliver}), outbox.Report{Delivered: 1})
	})
}

// TestDeskAboutAnOperation: the audit is that of the operation that added the message.
func TestOperatorAboutAnOperation(t *testing.T) {
	inTime(t, func(b *bench) {
		post(adding(b, b.box, about("a", "m")), "k")
		b.run(b.worker(b.store, outbox.Route{Handler: fails(outbox.Permanent(errDown), "m")}), outbox.Report{DeadLetters: 1})
		letters, err := b.operator(b.store).DeadLetters(b.Context(), "", 10)
		b.must(err)
		id := letters[0].ID
		b.must(b.operator(b.store).Drop(b.Context(), "zoe", "a test", id))
		b.wantAudit(store.ID{Scope: "shop", Key: "k"}, "zoe: outbox drop "+id+", a test []",
			"zoe: outbox drop "+id+", a test [done]")
	})
}

// TestDrop: a dead letter that holds up no message stays as it is, and is still listed.
func TestDrop(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.kill(about("", "m"))
		b.must(b.operator(b.store).Drop(b.Context(), "zoe", "a test", ids[0]))
		b.wantStates("dropped", ids, outbox.StateDead)
		b.wantAudit(store.ID{Key: ids[0]}, "zoe: outbox drop "+ids[0]+", a test []",
			"zoe: outbox drop "+ids[0]+", a test [done]")
		letters, err := b.operator(b.store).DeadLetters(b.Context(), "", 10)
		if err != nil || len(letters) != 1 || letters[0].ID != ids[0] {
			b.Errorf("the dead letters are %+v, %v", letters, err)
		}
	})
}

// TestDeadLetters: they come in pages, the oldest first, and none is left out.
func TestDeadLetters(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.kill(about("", "1"), about("a", "2"), about("b", "3"), about("", "4"), about("", "5"))
		b.add(about("", "alive"))
		var found []string
		for after := ""; ; after = found[len(found)-1] {
			page, err := b.operator(b.store).DeadLetters(b.Context(), after, 2)
			b.must(err)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				found = append(found, e.ID)
			}
		}
		if !slices.Equal(found, ids) {
			b.Errorf("found were %q, want %q", found, ids)
		}
	})
}

// TestRefusedActs: nothing is done for a person without a name or a reason, nor to a message that there is not.
func TestRefusedActs(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.kill(about("a", "m"))[0]
		operator := b.operator(b.store)
		for _, by := range [][2]string{{"", "why"}, {"who", ""}, {" ", "why"}, {"who", "\t"}} {
			for _, act := range []func(ctx context.Context, who, why, id string) error{operator.Replay, operator.Drop} {
				if err := act(b.Context(), by[0], by[1], id); err == nil ||
					!strings.Contains(err.Error(), "needs to say who acts and why") {
					b.Errorf("by %q because %q: %v", by[0], by[1], err)
				}
			}
		}
		if err := operator.Replay(b.Context(), "zoe", "why", "no such id"); !errors.Is(err, store.ErrNotFound) ||
			!strings.Contains(err.Error(), "there is no message no such id") {
			b.Errorf("an unknown message: %v", err)
		}
		b.wantStates("untouched", []string{id}, outbox.StateDead)
		b.wantAudit(store.ID{Key: id})
	})
}

// TestActsThatFail: the audit knows of those too.
func TestActsThatFail(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("a", "m"))[0]
		if err := b.operator(b.store).Replay(b.Context(), "zoe", "why", id); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("a message that is no dead letter: %v", err)
		}
		b.wantAudit(store.ID{Key: id}, "zoe: outbox replay "+id+", why []",
			"zoe: outbox replay "+id+", why [failed: outbox: message "+id+" is ready, not a dead letter: "+
				store.ErrNotFound.Error()+"]")
	})
}

// auditStore is a store whose audit fails from a certain entry on.
type auditStore struct {
	*sqlite.Store
	left int
}

func (s *auditStore) AddAudit(ctx context.Context, e store.AuditEntry) error {
	if s.left--; s.left < 0 {
		return errDown
	}
	return s.Store.AddAudit(ctx, e)
}

// TestNothingWithoutAnAudit: what cannot be written down before is not done, and what cannot be written down after is
// said.
func TestNothingWithoutAnAudit(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.kill(about("a", "m"))
		err := b.operator(&auditStore{Store: b.store}).Replay(b.Context(), "zoe", "why", ids[0])
		if !errors.Is(err, errDown) || !strings.Contains(err.Error(), "nothing was done") {
			b.Errorf("without an audit: %v", err)
		}
		b.wantStates("not done", ids, outbox.StateDead)
		err = b.operator(&auditStore{Store: b.store, left: 1}).Replay(b.Context(), "zoe", "why", ids[0])
		if !errors.Is(err, errDown) || !strings.Contains(err.Error(), "how the act ended could not be written") {
			b.Errorf("without the second entry: %v", err)
		}
		b.wantStates("done", ids, outbox.StateReady)
		if _, err := outbox.NewOperator(new(spyStore)); !errors.Is(err, errors.ErrUnsupported) {
			b.Errorf("a store that keeps no audit: %v", err)
		}
	})
}
