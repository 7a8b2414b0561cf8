package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
)

// TestPoison is scenario 27: a message that always fails holds up no other, and after it is given up not even its own
// aggregate.
func TestPoison(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: fails(errDown, "poison")}
		ids := b.add(about("a", "poison"), about("a", "behind-1"), about("a", "behind-2"),
			about("b", "other"), about("", "free"))
		w := b.worker(b.store, outbox.Route{Handler: mail.deliver, MaxAttempts: 3})
		b.run(w, outbox.Report{Delivered: 2, Retried: 1})
		b.wantStates("nobody else waits", ids,
			outbox.StateReady, outbox.StateBehind, outbox.StateBehind, outbox.StateDone, outbox.StateDone)
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Retried: 1})
		time.Sleep(2 * time.Second)
		b.run(w, outbox.Report{Delivered: 2, DeadLetters: 1})
		b.wantStates("its aggregate goes on", ids,
			outbox.StateDead, outbox.StateDone, outbox.StateDone, outbox.StateDone, outbox.StateDone)
		seen := mail.deliveries()
		if tail := fmt.Sprint(seen[len(seen)-3:]); tail != "[poison behind-1 behind-2]" {
			b.Errorf("the aggregate went on with %s", tail)
		}
	})
}

// TestManyPoisons: more of them than can be under way at one time keep the others waiting no longer than for a moment.
func TestManyPoisons(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := &clerk{does: fails(errDown, "poison")}
		for range 20 {
			b.add(about("", "poison"))
		}
		id := b.add(about("", "good"))
		w := b.worker(b.store, outbox.Route{Handler: mail.deliver, Concurrency: 2, MaxAttempts: 100})
		stop := b.start(w)
		time.Sleep(time.Second)
		b.wantStates("others get through", id, outbox.StateDone)
		stop()
	})
}

// stricts leaves a dead letter in a strict route, with others behind it. The handler succeeds from now on.
func stricts(b *bench) (mail *clerk, w *outbox.Worker, operator *outbox.Operator, ids []string) {
	b.Helper()
	mail = &clerk{does: fails(outbox.Permanent(errDown), "poison")}
	ids = b.add(about("a", "poison"), about("a", "behind-1"), about("a", "behind-2"), about("b", "other"))
	w = b.worker(b.store, outbox.Route{Handler: mail.deliver, BlockOnDeadLetter: true})
	b.run(w, outbox.Report{Delivered: 1, DeadLetters: 1})
	time.Sleep(time.Hour)
	b.run(w, outbox.Report{})
	b.wantStates("strict", ids, outbox.StateHolding, outbox.StateBehind, outbox.StateBehind, outbox.StateDone)
	operator, err := outbox.NewOperator(b.store)
	b.must(err)
	mail.does = nil
	return mail, w, operator, ids
}

// TestStrictReplayed: the aggregate goes on when its dead letter was delivered after all, and in its order.
func TestStrictReplayed(t *testing.T) {
	inTime(t, func(b *bench) {
		mail, w, operator, ids := stricts(b)
		mail.does = fails(outbox.Permanent(errDown), "poison")
		b.must(operator.Replay(b.Context(), "zoe", "the bank is back", ids[0]))
		b.run(w, outbox.Report{DeadLetters: 1}) // it is not
		b.wantStates("failed again", ids, outbox.StateHolding, outbox.StateBehind, outbox.StateBehind, outbox.StateDone)
		mail.does, mail.seen = nil, nil
		b.must(operator.Replay(b.Context(), "zoe", "now it is", ids[0]))
		b.run(w, outbox.Report{Delivered: 3})
		mail.want(b, "in order", "poison behind-1 behind-2")
	})
}

// TestStrictDropped: the aggregate goes on without what an operator has given up.
func TestStrictDropped(t *testing.T) {
	inTime(t, func(b *bench) {
		mail, w, operator, ids := stricts(b)
		mail.seen = nil
		stop := b.start(w)
		defer stop()
		b.must(operator.Drop(b.Context(), "zoe", "it was a test", ids[0]))
		synctest.Wait() // a worker that runs is told
		mail.want(b, "without it", "behind-1 behind-2")
		b.wantStates("dropped", ids, outbox.StateDead, outbox.StateDone, outbox.StateDone, outbox.StateDone)
	})
}

// TestStrictWithoutAnAggregate: there is nothing to hold up.
func TestStrictWithoutAnAggregate(t *testing.T) {
	inTime(t, func(b *bench) {
		ids := b.add(about("", "poison"), about("", "other"))
		w := b.worker(b.store, outbox.Route{Handler: fails(outbox.Permanent(errDown), "poison"), BlockOnDeadLetter: true})
		b.run(w, outbox.Report{Delivered: 1, DeadLetters: 1})
		b.wantStates("strict", ids, outbox.StateDead, outbox.StateDone)
	})
}

// TestBegunTooOften: a message that kills its worker again and again becomes a dead letter without another delivery.
func TestBegunTooOften(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		ids := b.add(about("a", "killer"), about("a", "behind"))
		for range 3 {
			b.crash(1)
		}
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver, MaxAttempts: 3}),
			outbox.Report{Delivered: 1, DeadLetters: 1})
		mail.want(b, "the killer is left alone", "behind")
		e := b.entry(ids[0])
		if e.State != outbox.StateDead || e.Attempts != 3 ||
			e.LastError != "outbox: the message cannot be delivered: a delivery was begun 3 times, and did not come to an end" {
			b.Errorf("it is %s after %d tries: %q", e.State, e.Attempts, e.LastError)
		}
	})
}

// TestAfterACrash is scenario 26: what a dead worker had begun is delivered again, alone, and those behind it after it.
func TestAfterACrash(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		ids := b.add(about("a", "first"), about("a", "second"), about("a", "third"))
		b.crash(1)
		letGo := make(chan struct{})
		mail.does = func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			if d.Type == "first" {
				<-letGo
			}
			return outbox.Result{}, nil
		}
		stop := b.start(b.worker(b.store, outbox.Route{Handler: mail.deliver}))
		defer stop()
		synctest.Wait()
		b.wantStates("alone", ids, outbox.StateLeased, outbox.StateBehind, outbox.StateBehind)
		if e := b.entry(ids[1]); e.Attempts != 0 {
			b.Errorf("what was not begun counts as tried %d times", e.Attempts)
		}
		close(letGo)
		time.Sleep(time.Second) // a file that is busy for a moment makes the worker wait, which ends no synctest.Wait
		mail.want(b, "in order", "first second third")
		b.wantStates("all", ids, outbox.StateDone, outbox.StateDone, outbox.StateDone)
	})
}
