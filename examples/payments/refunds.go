package payments

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// refundStep is the name of the only call to the provider, for its downstream key.
const refundStep = "refund"

// Refund is the answer to a refund.
type Refund struct {
	ID        string `json:"id"`
	Account   string `json:"account"`
	Payment   string `json:"payment"`
	Reference string `json:"reference,omitempty"`
	Amount    int64  `json:"amount"`
}

// refundPayment calls the provider while the client waits. The reservation was durable before the call, so
// that a crash at any point leaves a record of it, and no retry refunds again before the outcome is known.
func (s *System) refundPayment(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Amount    int64  `json:"amount"`
		Reference string `json:"reference"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Amount <= 0 {
		reject(w, r, `the body must be JSON such as {"amount":500}, with an amount above zero`)
		return
	}
	if !isPlain(asked.Reference) {
		reject(w, r, errNotPlain.Error())
		return
	}
	op := onceward.FromContext(r.Context())
	p, err := s.storage.Payment(r.Context(), accountFrom(r.Context()), r.PathValue("id"))
	switch {
	case errors.Is(err, ErrNoPayment):
		fail(w, http.StatusNotFound, ErrNoPayment.Error())
		return
	case err != nil:
		op.NotExecuted()
		s.broken(w, r, "read the payment", err)
		return
	case p.State != charged:
		op.NotExecuted() // it may be charged by the next retry, so this answer is not stored
		fail(w, http.StatusConflict, "the payment is "+p.State+": only one that is charged can be refunded")
		return
	}
	s.callRefund(w, r, p, provider.RefundRequest{Charge: p.Charge, Amount: asked.Amount, Reference: asked.Reference})
}

// callRefund makes the call, and reports the meaning of its outcome.
func (s *System) callRefund(w http.ResponseWriter, r *http.Request, p *Payment, request provider.RefundRequest) {
	op := onceward.FromContext(r.Context())
	if err := op.CheckLease(); err != nil {
		op.NotExecuted() // the process was paused for so long that another attempt may be running
		s.broken(w, r, "begin in time", err)
		return
	}
	if err := op.Carry(r.Context(), p.ID); err != nil { // for settleRefund, if the outcome is unknown
		op.NotExecuted()
		s.broken(w, r, "note the refund", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timing.Call)
	defer cancel()
	made, err := s.provider.Refund(ctx, op.DownstreamKey(refundStep), request)
	if reason, final := finalRefusal(err); final {
		fail(w, http.StatusUnprocessableEntity, reason) // this answer is stored: it can never be refunded
		return
	}
	var notNow *provider.RefusedError
	switch {
	case errors.As(err, &notNow):
		op.NotExecuted()
		s.broken(w, r, "have it refunded", notNow)
	case err != nil:
		op.SetReason(err.Error())
		op.Unknown() // the webhook or the poller will settle it; Onceward answers that the outcome is unknown
	default:
		s.answerRefund(w, r, p.ID, made)
	}
}

// answerRefund stores a refund that was made. If this fails, the poller does it.
func (s *System) answerRefund(w http.ResponseWriter, r *http.Request, payment string, made provider.Refund) {
	op := onceward.FromContext(r.Context())
	op.SetProviderID(made.ID)
	if err := s.storage.NoteRefund(r.Context(), payment, made); err != nil {
		op.SetReason("the refund was made, but not written down: " + err.Error())
		op.Unknown()
		return
	}
	answer(w, http.StatusCreated, refundOf(accountFrom(r.Context()), payment, made))
}

// refundOf returns the answer to a refund that was made, whichever part of the system gives it.
func refundOf(account, payment string, made provider.Refund) Refund {
	return Refund{ID: made.ID, Account: account, Payment: payment, Reference: made.Reference, Amount: made.Amount}
}

// settleRefund returns the answer of a refund whose outcome was unknown: the same answer as from the handler.
func (s *System) settleRefund(ctx context.Context, rec *store.Record, made provider.Refund) (reconcile.Answer, error) {
	payment, err := onceward.Carried[string](rec)
	if err != nil {
		return reconcile.Answer{}, err
	}
	if err := s.storage.NoteRefund(ctx, payment, made); err != nil {
		return reconcile.Answer{}, err
	}
	body, err := encode(refundOf(rec.Scope, payment, made))
	if err != nil {
		return reconcile.Answer{}, err
	}
	response := reconcile.Response(http.StatusCreated, http.Header{"Content-Type": {jsonType}}, body)
	return reconcile.Completed(response, made.ID), nil
}
