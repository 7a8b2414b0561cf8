package outbox_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// shop is a service whose clients wait for what a worker does.
type shop struct {
	*bench
	http.Handler
	guard *onceward.Guard
}

func (b *bench) newGuard() *onceward.Guard {
	b.Helper()
	return b.guardOver(b.store)
}

func (b *bench) guardOver(s store.Store) *onceward.Guard {
	b.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Scope:  onceward.SingleScope("shop"),
		Secret: []byte("sixteen bytes and some more"), StoreTimeout: await.Limit, Logger: quiet,
	})
	b.must(err)
	return guard
}

// newShop has a reserved route that adds a message and leaves its own outcome open. Before its end it waits.
func newShop(b *bench, wait func()) *shop {
	b.Helper()
	guard := b.newGuard()
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := b.store.InTx(r.Context(), func(ctx context.Context) error {
			_, err := b.box.Add(ctx, onceward.Tx(ctx), about("a", "charge"))
			return err
		})
		if err != nil {
			b.Error(err)
		}
		wait()
		onceward.FromContext(r.Context()).Unknown()
	})
	return &shop{b, guard.Handler(charge, onceward.Reserved(onceward.FailureUnknown)), guard}
}

// post sends a request with a key.
func post(h http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(`{"amount":1}`))
	r.Pattern = "POST /charges" // as a router sets it
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func (s *shop) wantAnswer(rule, key string, status int, body string) {
	s.Helper()
	if w := post(s, key); w.Code != status || !strings.Contains(w.Body.String(), body) {
		s.Errorf("%s: the answer is %d %s, want %d with %s", rule, w.Code, w.Body, status, body)
	}
}

// settles is a handler that has the client's answer.
func settles(context.Context, *outbox.Delivery) (outbox.Result, error) {
	return outbox.Result{ProviderID: "ch_1", Settle: &store.Completion{
		Response: store.Response{Status: http.StatusCreated, Body: []byte("paid")}, ProviderID: "ch_1",
	}}, nil
}

// TestSettle: the client's operation is open until the worker has called the bank. Then its retry gets the answer.
func TestSettle(t *testing.T) {
	inTime(t, func(b *bench) {
		s := newShop(b, func() {})
		s.wantAnswer("before", "k", http.StatusInternalServerError, "outcome-unknown")
		s.wantAnswer("before", "k", http.StatusConflict, "outcome-unknown")
		mail := &clerk{does: settles}
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 1})
		s.wantAnswer("after", "k", http.StatusCreated, "paid")
		rec, err := b.store.Get(b.Context(), store.ID{Scope: "shop", Key: "k"})
		if err != nil || rec.State != store.StateCompleted || rec.ProviderID != "ch_1" {
			b.Errorf("the record is %s, %q, %v", rec.State, rec.ProviderID, err)
		}
		b.run(b.worker(b.store, outbox.Route{Handler: mail.deliver}), outbox.Report{})
		mail.want(b, "I1", "charge")
	})
}

// TestSettleTooEarly: the worker was quicker than the handler that added the message. It tries again.
func TestSettleTooEarly(t *testing.T) {
	inTime(t, func(b *bench) {
		letGo, over := make(chan struct{}), make(chan struct{})
		s := newShop(b, func() { <-letGo })
		go func() {
			defer close(over)
			s.wantAnswer("the first", "k", http.StatusInternalServerError, "outcome-unknown")
		}()
		synctest.Wait()
		mail := &clerk{does: settles}
		w := b.worker(b.store, outbox.Route{Handler: mail.deliver})
		b.run(w, outbox.Report{Retried: 1})
		close(letGo)
		<-over
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Delivered: 1})
		s.wantAnswer("settled", "k", http.StatusCreated, "paid")
		mail.want(b, "again", "charge charge")
	})
}

// TestSettledOtherwise: another has said what became of it. That stands, and the message is done all the same.
func TestSettledOtherwise(t *testing.T) {
	id := store.ID{Scope: "shop", Key: "k"}
	for name, otherwise := range map[string]func(b *bench, s *shop, c store.Claim) error{
		"completed": func(b *bench, _ *shop, c store.Claim) error {
			return b.store.ResolveCompleted(b.Context(), c,
				&store.Completion{Response: store.Response{Status: 402, Body: []byte("declined")}})
		},
		"removed": func(b *bench, _ *shop, c store.Claim) error { return b.store.Bust(b.Context(), c.ID, true) },
		"not executed": func(b *bench, _ *shop, c store.Claim) error {
			return b.store.ResolveNotExecuted(b.Context(), c, "the clerk says so")
		},
		"executed again": func(b *bench, s *shop, c store.Claim) error {
			err := b.store.ResolveNotExecuted(b.Context(), c, "the clerk says so")
			s.wantAnswer("again", "k", http.StatusInternalServerError, "outcome-unknown")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(b *bench) {
				s := newShop(b, func() {})
				s.wantAnswer("before", "k", http.StatusInternalServerError, "outcome-unknown")
				rec, err := b.store.Get(b.Context(), id)
				b.must(err)
				b.must(otherwise(b, s, store.Claim{ID: id, Attempt: rec.Attempt}))
				first, err := b.store.Messages(b.Context(), outbox.Filter{Limit: 1})
				b.must(err)
				_, err = b.worker(b.store, outbox.Route{Handler: settles}).RunOnce(b.Context())
				b.must(err)
				b.wantStates("done", []string{first[0].ID}, outbox.StateDone)
				if name == "completed" {
					s.wantAnswer("I7", "k", 402, "declined")
				}
			})
		})
	}
}

// unread is a store behind a circuit breaker that is open: what is learned can be written, but nothing be read.
type unread struct{ *sqlite.Store }

func (unread) Get(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, store.ErrNotSent
}

// TestSettledOtherwiseUnread: the refusal tells what stands in the store. No second delivery is needed to learn it.
func TestSettledOtherwiseUnread(t *testing.T) {
	inTime(t, func(b *bench) {
		s := newShop(b, func() {})
		s.wantAnswer("before", "k", http.StatusInternalServerError, "outcome-unknown")
		b.must(b.store.Bust(b.Context(), store.ID{Scope: "shop", Key: "k"}, true))
		mail := &clerk{does: settles}
		b.run(b.worker(unread{b.store}, outbox.Route{Handler: mail.deliver}), outbox.Report{Delivered: 1})
		mail.want(b, "I1", "charge")
	})
}

// withoutRecords is a store of messages alone.
type withoutRecords struct{ outbox.Store }

// TestNothingToSettle: to try again would not help where there is no operation, or no store of records.
func TestNothingToSettle(t *testing.T) {
	inTime(t, func(b *bench) {
		id := b.add(about("", "m"))[0]
		b.run(b.worker(b.store, outbox.Route{Handler: settles}), outbox.Report{DeadLetters: 1})
		if e := b.entry(id); !strings.Contains(e.LastError, "was not added by an operation") || e.ProviderID != "ch_1" {
			b.Errorf("the reason is %q, the id %q", e.LastError, e.ProviderID)
		}
		s := newShop(b, func() {})
		s.wantAnswer("before", "k", http.StatusInternalServerError, "outcome-unknown")
		b.run(b.worker(withoutRecords{b.store}, outbox.Route{Handler: settles}), outbox.Report{DeadLetters: 1})
		letters, err := b.store.Messages(b.Context(), outbox.Filter{States: []outbox.State{outbox.StateDead}, After: id})
		if err != nil || len(letters) != 1 || !strings.Contains(letters[0].LastError, "WorkerConfig.Records has no store") {
			b.Errorf("the dead letters are %+v, %v", letters, err)
		}
		operator, err := outbox.NewOperator(b.store)
		b.must(err)
		b.must(operator.Replay(b.Context(), "zoe", "configured", letters[0].ID))
		elsewhere := func(c *outbox.WorkerConfig) { c.Records = b.store }
		b.run(b.worker(withoutRecords{b.store}, outbox.Route{Handler: settles}, elsewhere), outbox.Report{Delivered: 1})
		s.wantAnswer("settled", "k", http.StatusCreated, "paid")
	})
}

// TestSettleAndThen: if Then fails after the operation was settled, the next delivery finds it settled and goes on.
func TestSettleAndThen(t *testing.T) {
	inTime(t, func(b *bench) {
		b.createBook()
		s := newShop(b, func() {})
		s.wantAnswer("before", "k", http.StatusInternalServerError, "outcome-unknown")
		failing := true
		w := b.worker(b.store, outbox.Route{Handler: func(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
			result, err := settles(ctx, d)
			result.Then = func(ctx context.Context) error {
				if failing {
					return errDown
				}
				return write(ctx, "paid")
			}
			return result, err
		}})
		b.run(w, outbox.Report{Retried: 1})
		s.wantAnswer("settled", "k", http.StatusCreated, "paid")
		failing = false
		time.Sleep(time.Second)
		b.run(w, outbox.Report{Delivered: 1})
		b.wantLines("once", "paid")
	})
}
