package storetest

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
)

// testOutboxTransactions checks that a message is there if and only if its transaction was committed, and that the
// order of messages is the order of commits (O1, O2, I10).
func testOutboxTransactions(t *testing.T, h Harness) {
	h.test(t, "rolled back", rolledBackMessages)
	h.test(t, "several in one transaction", func(e *env) {
		ids := e.add(about("x", "0"), about("y", "0"), about("", "free"), about("x", "1"))
		e.wantIDs(e.claim(everything), "O1: all messages of a transaction", ids...)
	})
	h.test(t, "no transaction", withoutTx)
	h.test(t, "a transaction that is over", endedTx)
	if h.Features.ConcurrentTx {
		h.test(t, "not before the commit", uncommittedMessages)
		h.test(t, "begun first, added last", beganFirst)
		h.test(t, "added first, committed last", lateCommit)
		h.test(t, "two that add for one aggregate", func(e *env) { addsAtOnce(e, nil) })
		h.test(t, "two that add for one aggregate, the first undone", func(e *env) { addsAtOnce(e, errUndone) })
	}
}

func rolledBackMessages(e *env) {
	var ids []string
	e.rolledBack(e.adding(&ids, about("x", "undone"), about("", "undone, too")))
	e.wantIDs(e.claim(everything), "I10: what was rolled back is never delivered")
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("I10: %d messages of a transaction that was rolled back are kept", len(found))
	}
	kept := e.add(about("x", "kept"))[0]
	e.wantIDs(e.claim(everything), "I10: a message behind one that was rolled back waits for nothing", kept)
}

// withoutTx passes no transaction: a message that is written outside the transaction would be delivered even if the
// transaction is undone.
func withoutTx(e *env) {
	entry := fullEntry()
	if err := e.box().AddMessage(e.ctx, nil, &entry); err == nil {
		e.Error("O1: AddMessage took nil for a transaction")
	}
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("O1: %d messages were added without a transaction", len(found))
	}
}

// endedTx adds a message through a transaction after its end.
func endedTx(e *env) {
	for _, end := range []error{nil, errUndone} {
		var kept context.Context
		var tx *sql.Tx
		if err := e.inTx(func(ctx context.Context) error {
			kept, tx = ctx, e.tx(ctx)
			return end
		}); !errors.Is(err, end) {
			e.Fatal(err)
		}
		entry := fullEntry()
		if err := e.box().AddMessage(kept, tx, &entry); err == nil {
			e.Errorf("O1: a message was added to a transaction that had ended with %v", end)
		}
	}
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("O1: %d messages were added to transactions that had ended", len(found))
	}
}

// uncommittedMessages reads messages from outside while a transaction is open.
func uncommittedMessages(e *env) {
	var ids []string
	end := e.begin(e.adding(&ids, about("x", "0"), about("", "free")))
	e.wantIDs(e.claim(everything), "I10: before the commit")
	if found := e.listMessages(outbox.Filter{}); len(found) > 0 {
		e.Errorf("I10: before the commit %d messages are shown", len(found))
	}
	e.must(end(nil))
	e.wantIDs(e.claim(everything), "O1: after the commit", ids...)
}

// lateCommit makes a transaction add first and commit last, for another aggregate and for none (scenario 28).
func lateCommit(e *env) {
	var late []string
	end := e.begin(e.adding(&late, about("late", "added first"), about("", "added first, unordered")))
	early := e.add(about("early", "committed first"), about("", "committed first, unordered"))
	claimed := e.claim(everything)
	e.wantIDs(claimed, "O2: what is committed, while an earlier transaction is open", early...)
	e.done(claimed...)
	e.pass(e.resolution())
	e.wantIDs(e.claim(everything), "O2: what is not committed")
	e.must(end(nil))
	e.wantIDs(e.claim(everything), "scenario 28: messages that were added before others and committed after them", late...)
}

// beganFirst begins a transaction, lets another one add and commit, and only then adds in the first.
func beganFirst(e *env) {
	var own, last []string
	began, over, others := make(chan struct{}, 1), make(chan error, 1), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(others) })
	e.Cleanup(goOn) // for a test that fails in between
	go func() {
		over <- e.inTx(func(ctx context.Context) error {
			own, last = nil, nil // the store may call the work again
			if err := e.adding(&own, about("own", "of the transaction that began first"))(ctx); err != nil {
				return err
			}
			select {
			case began <- struct{}{}:
			default:
			}
			<-others
			return e.adding(&last, about("x", "committed last"))(ctx)
		})
	}()
	select {
	case <-began:
	case err := <-over:
		e.Fatalf("O2: a transaction ended before its work did: %v", err)
	case <-e.ctx.Done():
		e.Fatal("O2: a transaction did not get its work done")
	}
	e.pass(e.resolution())
	first := e.add(about("x", "committed first"))
	goOn()
	e.must(await.Value(e, "the end of the transaction that began first", over))
	e.pass(e.resolution())
	got := slices.DeleteFunc(e.delivered(), func(id string) bool { return slices.Contains(own, id) })
	if want := append(first, last...); !slices.Equal(got, want) {
		e.Errorf("O2: the order of an aggregate is that of commits, but %s was delivered, want %s", e.describe(got),
			e.describe(want))
	}
}

// addsAtOnce makes a transaction add for an aggregate while another transaction that did so has not ended; that one
// then ends with verdict. The second may wait for the first, or be committed before it: the order of their messages
// must match.
func addsAtOnce(e *env, verdict error) {
	const rule = "O2: two transactions that add for one aggregate"
	var first, second []string
	adding := func(ids *[]string, m outbox.Message) func(context.Context) error {
		return func(ctx context.Context) error {
			*ids = nil // the store may call the work again
			return e.adding(ids, m)(ctx)
		}
	}
	end := e.begin(adding(&first, about("x", "added first")))
	done := make(chan error, 1)
	go func() { done <- e.inTx(adding(&second, about("x", "added second"))) }()
	overtook := false
	select {
	case err := <-done:
		overtook = true
		e.must(err)
	case <-time.After(10 * glance): // work that does not wait is not slower than that
	}
	if err := end(verdict); !errors.Is(err, verdict) {
		e.Errorf("%s: the first ended with %v, want %v", rule, err, verdict)
	}
	if !overtook {
		select {
		case err := <-done:
			e.must(err)
		case <-e.ctx.Done():
			e.Fatalf("%s: the second still waits after the end of the first", rule)
		}
	}
	claimed := e.claim(everything)
	switch {
	case verdict != nil:
		e.wantRun(claimed, rule+", the first undone", second...)
	case overtook:
		e.wantRun(claimed, rule+", the second committed before the first", append(second, first...)...)
	default:
		e.wantRun(claimed, rule+", the second waited for the first", append(first, second...)...)
	}
}
