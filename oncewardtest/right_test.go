package oncewardtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
)

type booking struct {
	Guest string `json:"guest"`
}

// right are handlers without a mistake, in which a check finds nothing.
var right = []struct {
	name   string
	build  service
	dedups bool
	body   string
}{
	{
		name:  "a write in the transaction",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) { answer(rw, insert(r.Context())) }),
	},
	{
		name: "a call whose failure is unknown, to a provider that recognises nothing",
		build: reserved(onceward.FailureUnknown, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
			}
		}),
	},
	{
		name: "a call that is made again, to a provider that recognises its key",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
			}
		}),
		dedups: true,
	},
	{
		name: "a call whose failure is stored",
		build: reserved(onceward.FailureStore, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				answer(rw, w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`))
			}
		}),
	},
	{
		name:   "steps: a row, a call, a row",
		dedups: true,
		body:   `{"guest":"Ada"}`,
		build: func(w *world, guard *onceward.Guard) http.Handler {
			local := func(ctx context.Context, _ *booking) error { return insert(ctx) }
			book := phase.Must(phase.New(phase.Definition[booking]{
				Name: "POST /payments",
				Steps: []phase.Step[booking]{
					phase.Local("seat", local),
					phase.External("charge", func(ctx context.Context, key string, _ *booking) error {
						return w.charge(ctx, key, `{}`)
					}).Repeat(),
					phase.Local("confirm", local),
				},
				Answer: func(b *booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
			}))
			return book.Handler(guard, func(r *http.Request) (*booking, error) {
				b := new(booking)
				return b, json.NewDecoder(r.Body).Decode(b)
			})
		},
	},
	{
		name: "a message that leaves with the commit",
		build: func(w *world, guard *onceward.Guard) http.Handler {
			box, err := outbox.New(w.store, outbox.Config{})
			if err != nil {
				panic(err)
			}
			return guard.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, err := box.AddToAnswer(r.Context(), outbox.Message{
					Topic: "payments", Type: "payment.made", Payload: []byte(`{}`),
				})
				answer(rw, errors.Join(err, insert(r.Context())))
			}), onceward.Transactional())
		},
	},
	{
		name: "a question to the provider before the call",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				err := w.call(r.Context(), http.MethodGet, "/customers/1", "", "")
				if err == nil {
					err = w.charge(r.Context(), onceward.FromContext(r.Context()).DownstreamKey("charge"), `{}`)
				}
				answer(rw, err)
			}
		}),
		dedups: true,
	},
	{
		name: "a PUT, which needs no key",
		build: reserved(onceward.FailureRetry, func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				path := "/charges/" + onceward.FromContext(r.Context()).DownstreamKey("charge")
				answer(rw, w.call(r.Context(), http.MethodPut, path, "", `{}`))
			}
		}),
	},
	{
		name: "a row that can be there once, also after the answer has expired",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) {
			_, err := onceward.Tx(r.Context()).ExecContext(r.Context(), `INSERT INTO payment (rowid, amount) VALUES (1, 2)`)
			answer(rw, err)
		}),
	},
	{
		name: "a request that is rejected",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) {
			onceward.FromContext(r.Context()).Reject()
			http.Error(rw, "an amount above zero, please", http.StatusUnprocessableEntity)
		}),
	},
	{
		name: "a request that is refused for good, after a write",
		build: transactional(func(rw http.ResponseWriter, r *http.Request) {
			_ = insert(r.Context()) // it is undone
			http.Error(rw, "the seat is taken", http.StatusConflict)
		}),
	},
}

func TestRightHandlers(t *testing.T) {
	t.Parallel()
	for _, test := range right {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			body := test.body
			if body == "" {
				body = `{"amount": 1200}`
			}
			oncewardtest.Check(t, setup(test.build, test.dedups), oncewardtest.Post("/payments", body))
		})
	}
}
