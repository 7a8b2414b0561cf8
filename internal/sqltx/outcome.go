package sqltx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// settleTimeout bounds the writes to a record after its transaction has ended.
const settleTimeout = 15 * time.Second

// Lose records that the owner of a record has lost its lease, unless the record was settled in the meantime. It returns
// the verdict on the reservation that found the lost owner.
func Lose(m *store.Methods, r store.Reservation) (store.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	r.NoCreate = true
	found, err := m.Apply(ctx, r.ID, store.Event{Kind: store.EventReserve, Reservation: &r})
	switch {
	case err != nil:
		return store.Verdict{}, err
	case found.Decision == store.DecisionExecute, found.Decision == store.DecisionRefused:
		// The record was released or removed just now: the grant is given back, and the caller decides again.
		err = m.Release(ctx, store.Claim{ID: r.ID, Attempt: found.Record.Attempt}, "the grant was not taken")
		if errors.Is(err, store.ErrFenced) {
			err = nil
		}
		return store.Verdict{Decision: store.DecisionInProgress, Now: found.Now}, err
	default:
		return found.Verdict(), nil
	}
}

// Spoil records that the outcome of the work of a transaction is unknown. If the work has committed the claim together
// with its writes, the claim is found by the nonce of the reservation.
func Spoil(m *store.Methods, r *store.Reservation, reason error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	claimed, err := m.Apply(ctx, r.ID, store.Event{Kind: store.EventReserve, Reservation: r})
	if err == nil && claimed.Decision == store.DecisionExecute {
		err = m.Abandon(ctx, store.Claim{ID: r.ID, Attempt: claimed.Record.Attempt}, reason.Error())
	}
	return errors.Join(fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, reason), err)
}
