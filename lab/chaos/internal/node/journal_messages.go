package node

import (
	"context"
	"slices"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/outbox"
)

// The calls about messages are journaled too: which worker was given a message, and whose word about it was taken.

// ClaimMessages implements [outbox.Store].
func (j *journaled) ClaimMessages(
	ctx context.Context, wants []outbox.ClaimRequest, lease time.Duration,
) ([]outbox.Claimed, error) {
	began := history.Now()
	claimed, err := j.Store.ClaimMessages(ctx, wants, lease)
	for i := range claimed {
		w := history.Write{
			Call: history.CallClaimMessage, Message: claimed[i].ID, Attempt: claimed[i].Token, Began: began,
			Granted: true, Accepted: true,
		}
		w.Seq = j.journal.Begin(w)
		j.end(w)
	}
	return claimed, err
}

// ExtendMessages implements [outbox.Store]. Renewals that do not get through look as if they did: the worker goes on.
func (j *journaled) ExtendMessages(ctx context.Context, leases []outbox.Lease, lease time.Duration) ([]outbox.Lease,
	error,
) {
	heard := slices.DeleteFunc(slices.Clone(leases),
		func(l outbox.Lease) bool { return j.silences.silentMessage(l.ID) })
	return j.Store.ExtendMessages(ctx, heard, lease)
}

// FinishMessages implements [outbox.Store].
func (j *journaled) FinishMessages(ctx context.Context, outcomes []outbox.Outcome) ([]outbox.Lease, error) {
	writes := make([]history.Write, len(outcomes))
	for i := range outcomes {
		writes[i] = history.Write{Call: history.CallFinishMessage, Message: outcomes[i].ID, Attempt: outcomes[i].Token}
		writes[i].Seq = j.journal.Begin(writes[i])
	}
	fenced, err := j.Store.FinishMessages(ctx, outcomes)
	for i := range writes {
		writes[i].Accepted, writes[i].Err = err == nil && !slices.Contains(fenced, outcomes[i].Lease), text(err)
		j.end(writes[i])
	}
	return fenced, err
}

// FinishMessageTx implements [outbox.Store].
func (j *journaled) FinishMessageTx(ctx context.Context, outcome outbox.Outcome,
	work func(ctx context.Context) error,
) error {
	w := history.Write{Call: history.CallFinishMessage, Message: outcome.ID, Attempt: outcome.Token}
	w.Seq = j.journal.Begin(w)
	err := j.Store.FinishMessageTx(ctx, outcome, work)
	w.Accepted, w.Err = err == nil, text(err)
	j.end(w)
	return err
}
