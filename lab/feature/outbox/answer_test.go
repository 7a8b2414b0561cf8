package outbox_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/memory"
)

// answering is a transactional route that adds messages to its answer, which has the given status.
func answering(b *bench, status int, messages ...outbox.Message) http.Handler {
	b.Helper()
	return b.newGuard().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, m := range messages {
			if _, err := b.box.AddToAnswer(r.Context(), m); err != nil {
				b.Error(err)
			}
		}
		w.WriteHeader(status)
	}), onceward.Transactional())
}

// TestMessagesOfAnAnswer: what a handler adds to its answer is delivered once if the answer is committed with its work,
// under the key that it has when it is written at once, and never if the work is undone.
func TestMessagesOfAnAnswer(t *testing.T) {
	inTime(t, func(b *bench) {
		spy, box := newSpy(b.T, b.store)
		post(adding(b, box, about("a", "m")), "written")
		post(answering(b, http.StatusCreated, about("a", "m")), "added")
		post(answering(b, http.StatusCreated, about("a", "m")), "added") // a replay adds nothing
		post(answering(b, http.StatusUnprocessableEntity, about("a", "undone")), "refused")
		post(answering(b, http.StatusInternalServerError, about("a", "undone")), "failed")
		found, err := b.store.Messages(b.Context(), outbox.Filter{})
		b.must(err)
		if len(found) != 2 || found[1].Type != "m" || found[1].Origin.Key != "added" || found[1].OriginAttempt == 0 {
			b.Fatalf("O1: the messages are %+v", found)
		}
		rec, err := b.store.Get(b.Context(), found[1].Origin)
		b.must(err)
		if want, err := b.newGuard().DownstreamKey(&rec, "outbox "+topic); err != nil || found[1].DownstreamKey != want ||
			want == spy.added[0].DownstreamKey {
			b.Errorf("O3: the key is %s, want %s, %v", found[1].DownstreamKey, want, err)
		}
		b.run(b.worker(b.store, outbox.Route{Handler: fails(nil)}), outbox.Report{Delivered: 2})
	})
}

// TestAnswerOfAReservedRoute: a handler without a transaction has no answer that a message could go along with.
func TestAnswerOfAReservedRoute(t *testing.T) {
	inTime(t, func(b *bench) {
		h := b.newGuard().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := b.box.AddToAnswer(r.Context(), about("a", "m")); err == nil {
				b.Error("O1: a message was added to the answer of a route without transactions")
			}
			w.WriteHeader(http.StatusCreated)
		}), onceward.Reserved(onceward.FailureUnknown))
		post(h, "k")
		if found, err := b.store.Messages(b.Context(), outbox.Filter{}); err != nil || len(found) != 0 {
			b.Errorf("O1: %d messages, %v", len(found), err)
		}
	})
}

// TestAnswerOfTheOperationOutside: an operation inside a transactional handler is not undone with it, and a retry does
// not run it again. What it adds to the handler's answer would be lost.
func TestAnswerOfTheOperationOutside(t *testing.T) {
	inTime(t, func(b *bench) {
		inner := b.guardOver(memory.New())
		h := b.newGuard().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			call := onceward.Call{Scope: "inner", Key: "k", Operation: "charge"}
			_, err := inner.Do(r.Context(), call, func(ctx context.Context) ([]byte, error) {
				_, err := b.box.AddToAnswer(ctx, about("a", "m"))
				return nil, err
			}, onceward.Reserved(onceward.FailureUnknown))
			if !errors.Is(err, outbox.ErrNoAnswer) {
				b.Errorf("O1: added to the answer of the operation outside: %v, want ErrNoAnswer", err)
			}
			w.WriteHeader(http.StatusCreated)
		}), onceward.Transactional())
		post(h, "k")
		if found, err := b.store.Messages(b.Context(), outbox.Filter{}); err != nil || len(found) != 0 {
			b.Errorf("O1: %d messages, %v", len(found), err)
		}
	})
}
