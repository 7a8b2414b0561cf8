package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// testOutboxAnswer checks that messages that a handler adds to its answer are there if and only if the answer was
// committed together with the handler's writes, and that they keep their order (O1, O2, I10).
func testOutboxAnswer(t *testing.T, h Harness) {
	h.test(t, "outside of a handler", answerOutside)
	if !has[outbox.AnswerStore](h.probe) {
		return // adding must fail, as tested above; nothing else is required
	}
	h.test(t, "committed", answerCommitted)
	h.test(t, "content", answerContent)
	h.test(t, "undone", func(e *env) { answerUndone(e, store.TxRollback) })
	h.test(t, "undone, with the answer kept", func(e *env) { answerUndone(e, store.TxCommitAnswer) })
	h.test(t, "not for a replay", answerReplayed)
	h.test(t, "a savepoint does not touch it", answerSavepoint)
	h.test(t, "behind what was written at once", answerBehind)
	h.test(t, "its bounds", answerBounds)
	h.test(t, "after the handler has returned", answerReturned)
	h.test(t, "while the handler returns", answerReturning)
	h.test(t, "of an operation inside the handler", answerInside)
	h.test(t, "many at once", answerCrowd)
	h.test(t, "heard of", answerHeard)
}

// toAnswer returns work that adds messages to the answer, appends their IDs to ids, and ends with end.
func (e *env) toAnswer(ids *[]string, end store.TxAction, messages ...outbox.Message) work {
	return func(ctx context.Context, _ store.Verdict) store.Settlement {
		*ids = (*ids)[:0] // the store may call the work again
		for _, m := range messages {
			id, err := e.outbox().AddToAnswer(ctx, m)
			if err != nil {
				e.Errorf("O1: %q was not added to the answer: %v", m.Type, err)
			}
			*ids = append(*ids, id)
		}
		return store.Settlement{Action: end, Completion: *answer("done")}
	}
}

// outbox returns an outbox over the store.
func (e *env) outbox() *outbox.Outbox {
	box, err := outbox.New(e.box(), outbox.Config{})
	if err != nil {
		e.Error(err)
	}
	return box
}

// statement runs a statement on the transaction of the work.
func (e *env) statement(ctx context.Context, text string) {
	e.Helper()
	if _, err := e.tx(ctx).ExecContext(ctx, text); err != nil {
		e.Errorf("%s: %v", text, err)
	}
}

func answerCommitted(e *env) {
	var ids []string
	messages := []outbox.Message{about("x", "0"), about("y", "0"), about("", "free"), about("x", "1")}
	adding := e.toAnswer(&ids, store.TxCommit, messages...)
	e.transacted(request(id("key")), e.inserting("row", func(ctx context.Context, v store.Verdict) store.Settlement {
		settlement := adding(ctx, v)
		if found := e.listMessages(outbox.Filter{}); len(found) > 0 {
			e.Errorf("I10: before the commit %d messages are shown", len(found))
		}
		return settlement
	}), store.DecisionExecute, "O1")
	e.wantRows("row", 1, "O1")
	claimed := e.claim(everything)
	e.wantIDs(claimed, "O1: all messages of an answer", ids...)
	var ofX []outbox.Claimed
	for _, c := range claimed {
		if c.AggregateID == "x" {
			ofX = append(ofX, c)
		}
	}
	e.wantRun(ofX, "O2: messages of one aggregate", ids[0], ids[3])
}

// answerContent checks that a message is kept as it was when it was added, whatever the handler does with it later.
func answerContent(e *env) {
	want := fullEntry()
	given := want
	given.Payload = append([]byte(nil), want.Payload...)
	e.transacted(request(want.Origin), func(ctx context.Context, _ store.Verdict) store.Settlement {
		if err := e.box().(outbox.AnswerStore).AddToAnswer(ctx, &given); err != nil {
			e.Error(err)
		}
		clear(given.Payload)
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}, store.DecisionExecute, "O1")
	kept := e.message(want.ID)
	want.State, want.CreatedAt, want.Due = outbox.StateReady, kept.CreatedAt, kept.CreatedAt
	if diff := diffEntries(kept, want); diff != "" {
		e.Errorf("O3: a message is kept as it was added, but has %s", diff)
	}
}

func answerUndone(e *env, end store.TxAction) {
	var undone, kept []string
	adding := e.toAnswer(&undone, end, about("x", "undone"), about("", "undone, too"))
	e.transacted(request(id("key")), e.inserting("row", adding), store.DecisionExecute, "O1")
	e.wantRows("row", 0, "O1")
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("I10: %d messages of work that was undone are kept", len(found))
	}
	e.transacted(request(id("other")), e.toAnswer(&kept, store.TxCommit, about("x", "kept")), store.DecisionExecute, "O1")
	e.wantIDs(e.claim(everything), "I10: a message behind one that was undone waits for nothing", kept...)
}

func answerReplayed(e *env) {
	var ids []string
	e.transacted(request(id("key")), e.toAnswer(&ids, store.TxCommit, about("x", "once")), store.DecisionExecute, "O1")
	e.transacted(request(id("key")), e.refusing("I1: a replay"), store.DecisionReplay, "I1")
	e.wantIDs(e.claim(everything), "O1: one answer, one message", ids...)
}

// answerSavepoint rolls back to a savepoint: messages that were written directly since then are gone, messages of the
// answer are not.
func answerSavepoint(e *env) {
	var written, ids []string
	adding := e.toAnswer(&ids, store.TxCommit, about("x", "to the answer"))
	e.transacted(request(id("key")), func(ctx context.Context, v store.Verdict) store.Settlement {
		e.statement(ctx, "SAVEPOINT tested")
		if err := e.adding(&written, about("x", "written and undone"))(ctx); err != nil {
			e.Error(err)
		}
		settlement := adding(ctx, v)
		e.statement(ctx, "ROLLBACK TO SAVEPOINT tested")
		return settlement
	}, store.DecisionExecute, "O1")
	e.wantIDs(e.claim(everything), "O1: after a rollback to a savepoint", ids...)
}

// answerBehind adds to the answer first, and then writes a message about the same aggregate.
func answerBehind(e *env) {
	var written, ids []string
	adding := e.toAnswer(&ids, store.TxCommit, about("x", "to the answer, first"), about("x", "to the answer, second"))
	e.transacted(request(id("key")), func(ctx context.Context, v store.Verdict) store.Settlement {
		settlement := adding(ctx, v)
		written = written[:0]
		if err := e.adding(&written, about("x", "written at once"))(ctx); err != nil {
			e.Error(err)
		}
		return settlement
	}, store.DecisionExecute, "O1")
	e.wantRun(e.claim(everything), "O2: the order within one transaction", append(written, ids...)...)
}

// answerBounds adds more messages than an answer accepts: the excess is refused, and the rest committed.
func answerBounds(e *env) {
	for name, m := range map[string]outbox.Message{
		"many":  about("x", "small"),
		"large": {Topic: topic, Type: "large", Payload: []byte(strings.Repeat("x", outbox.MaxPayload))},
	} {
		added := 0
		e.transacted(request(id(name)), func(ctx context.Context, _ store.Verdict) store.Settlement {
			added = 0
			for {
				_, err := e.outbox().AddToAnswer(ctx, m)
				if err == nil {
					added++
					continue
				}
				if !errors.Is(err, outbox.ErrAnswerFull) {
					e.Errorf("O1: an answer that is full: %v, want ErrAnswerFull", err)
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			}
		}, store.DecisionExecute, "O1")
		if want := map[string]int{"many": outbox.MaxAnswerMessages, "large": 1}[name]; added != want {
			e.Errorf("O1: an answer took %d messages (%s), want %d", added, name, want)
		}
		if claimed := e.claim(everything); len(claimed) != added {
			e.Errorf("O1: %d messages of %d that were added to an answer are there", len(claimed), added)
		}
	}
}

// answerReturned adds a message with the context of a handler that has returned.
func answerReturned(e *env) {
	var kept context.Context
	e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
		kept = ctx
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}, store.DecisionExecute, "O1")
	if _, err := e.outbox().AddToAnswer(kept, about("x", "late")); err == nil {
		e.Error("O1: a message was added to an answer that had been sent")
	}
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("O1: %d messages were added to an answer that had been sent", len(found))
	}
}

// answerReturning makes a goroutine of the handler keep adding messages while the handler returns: the messages whose
// call succeeded are there, and no others.
func answerReturning(e *env) {
	var added []string
	ended := make(chan struct{})
	e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
		added, ended = nil, make(chan struct{})
		begun := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				id, err := e.outbox().AddToAnswer(ctx, about("", "by a goroutine"))
				if err != nil {
					return
				}
				if added = append(added, id); len(added) == 1 {
					close(begun)
				}
			}
		}()
		await.Value(e, "the first message", begun)
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}, store.DecisionExecute, "O1")
	await.Value(e, "the end of the goroutine", ended)
	e.wantIDs(e.claim(everything), "O1: what was added while the handler returned", added...)
}

// answerInside adds a message of another operation with the context of the handler, as an operation does that runs
// inside the handler. The message would be lost if the other operation is kept and the handler's work is undone.
func answerInside(e *env) {
	e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
		entry := fullEntry()
		entry.Origin = id("another key")
		if err := e.box().(outbox.AnswerStore).AddToAnswer(ctx, &entry); !errors.Is(err, outbox.ErrNoAnswer) {
			e.Errorf("O1: added to the answer by another operation: %v, want ErrNoAnswer", err)
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
	}, store.DecisionExecute, "O1")
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("O1: %d messages were added to the answer of another operation", len(found))
	}
}

// answerOutside adds messages where there is no answer.
func answerOutside(e *env) {
	refused := func(ctx context.Context, where string) {
		e.Helper()
		if _, err := e.outbox().AddToAnswer(ctx, about("x", "nowhere")); !errors.Is(err, outbox.ErrNoAnswer) {
			e.Errorf("O1: added to the answer %s: %v, want ErrNoAnswer", where, err)
		}
	}
	refused(e.ctx, "without a transaction")
	e.committed(func(ctx context.Context) error {
		refused(ctx, "in InTx")
		return nil
	})
	if steps, ok := e.Store.(store.TxCheckpointer); ok {
		v := e.reserve(request(id("key")))
		e.must(steps.CheckpointTx(e.ctx, store.Claim{ID: id("key"), Attempt: v.Record.Attempt}, calm,
			func(ctx context.Context) (store.Checkpoint, error) {
				refused(ctx, "in a step")
				return store.Checkpoint{Point: "point"}, nil
			}))
	}
	if found := e.listMessages(outbox.Filter{}); len(found) != 0 {
		e.Errorf("O1: %d messages were added without an answer", len(found))
	}
}

// answerCrowd makes handlers add messages for two aggregates in different orders, all at once: no handler fails, and
// each aggregate's messages keep the order of each handler.
func answerCrowd(e *env) {
	const handlers = 16
	together(handlers, func(i int) {
		first, second := "x", "y"
		if i%2 == 1 {
			first, second = second, first
		}
		var ids []string
		messages := []outbox.Message{
			about(first, fmt.Sprint(i, " a")), about(second, fmt.Sprint(i, " a")),
			about(first, fmt.Sprint(i, " b")),
		}
		if v, err := e.transact(request(id(fmt.Sprint("key ", i))),
			e.toAnswer(&ids, store.TxCommit, messages...)); err != nil || v.Decision != store.DecisionExecute {
			e.Errorf("O2: handler %d: %s, %v", i, v.Decision, err)
		}
	})
	claimed := e.claim(everything)
	if len(claimed) != 3*handlers {
		e.Fatalf("O1: %d messages of %d are there", len(claimed), 3*handlers)
	}
	before := make(map[string]bool)
	for _, c := range claimed {
		handler, place, _ := strings.Cut(c.Type, " ")
		if place == "b" && !before[c.AggregateID+handler] {
			e.Errorf("O2: the second message of handler %s about %s is in front of the first", handler, c.AggregateID)
		}
		before[c.AggregateID+handler] = true
	}
}

// answerHeard checks that a watcher is notified of a message that was committed with an answer.
func answerHeard(e *env) {
	hints, stop := e.box().WatchMessages()
	e.Cleanup(stop)
	var ids []string
	e.transacted(request(id("key")), e.toAnswer(&ids, store.TxCommit, about("x", "told of")), store.DecisionExecute, "O2")
	await.Value(e, "the hint of a message", hints)
	e.wantIDs(e.claim(everything), "O2: what a hint told of", ids...)
}
