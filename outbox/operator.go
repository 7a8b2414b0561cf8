package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/store"
)

// Operator replays and drops dead letters in the name of a person. Each act names who and why, and is written to the
// audit before it is done.
type Operator struct {
	store   Store
	auditor store.Auditor
}

// NewOperator returns an operator over a store that is a [store.Auditor] too; if it is not, the error is
// [errors.ErrUnsupported].
func NewOperator(s Store) (*Operator, error) {
	if err := checkStore(s); err != nil {
		return nil, err
	}
	auditor, ok := store.As[store.Auditor](s)
	if !ok {
		return nil, fmt.Errorf("outbox: the store keeps no audit: %w", errors.ErrUnsupported)
	}
	return &Operator{s, auditor}, nil
}

// DeadLetters lists the dead letters behind one, the oldest first; those that hold up their aggregate are
// [StateHolding].
func (op *Operator) DeadLetters(ctx context.Context, after string, limit int) ([]Entry, error) {
	return op.store.Messages(ctx, Filter{States: []State{StateDead, StateHolding}, After: after, Limit: limit})
}

// Replay has a dead letter delivered again, and counts its attempts again from zero. If its aggregate went on without
// it, it comes out of order. The receiver sees the same ID and downstream key as before.
func (op *Operator) Replay(ctx context.Context, who, why, id string) error {
	return op.Answer(ctx, who, why, id, nil)
}

// Answer is [Operator.Replay] with an answer that a person found out: the handler finds it as if the last delivery had
// recorded it.
func (op *Operator) Answer(ctx context.Context, who, why, id string, answer []byte) error {
	if err := checkAnswer(answer); err != nil {
		return err
	}
	return op.act(ctx, who, why, "outbox replay", id, func(ctx context.Context, id string) error {
		return op.store.ReplayMessage(ctx, id, answer)
	})
}

// Drop gives a dead letter up: if it holds up its aggregate, that goes on without it. It stays in the list of dead
// letters, and is not counted among them any more ([Stats]).
func (op *Operator) Drop(ctx context.Context, who, why, id string) error {
	return op.act(ctx, who, why, "outbox drop", id, op.store.DropMessage)
}

// act writes to the audit what is to be done, does it, and writes down how that ended. The entries are about the
// operation that added the message or, if none did, about a key that is the message's ID.
func (op *Operator) act(
	ctx context.Context, who, why, action, id string, do func(context.Context, string) error,
) error {
	if strings.TrimSpace(who) == "" || strings.TrimSpace(why) == "" {
		return errors.New("outbox: an operator's act needs to say who acts and why: the audit is of no use without")
	}
	found, err := op.store.Messages(ctx, Filter{ID: id, Limit: 1})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("outbox: there is no message %s: %w", id, store.ErrNotFound)
	}
	entry := store.AuditEntry{
		ID: found[0].Origin, Attempt: found[0].OriginAttempt, Actor: who, Action: action + " " + id, Reason: why,
	}
	if entry.ID == (store.ID{}) {
		entry.Key = id
	}
	if err := op.auditor.AddAudit(ctx, entry); err != nil {
		return fmt.Errorf("outbox: nothing was done, because the audit could not be written: %w", err)
	}
	if err = do(ctx, id); errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("outbox: message %s is %s, not a dead letter: %w", id, found[0].State, err)
	}
	entry.Outcome = "done"
	if err != nil {
		entry.Outcome = "failed: " + err.Error()
	}
	if auditErr := op.auditor.AddAudit(context.WithoutCancel(ctx), entry); auditErr != nil {
		return errors.Join(err, fmt.Errorf("outbox: how the act ended could not be written to the audit: %w", auditErr))
	}
	return err
}
