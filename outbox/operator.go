package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/store"
)

// Operator replays and drops dead letters in the name of a person. Each action needs
// the person's name and a reason, and is recorded in the audit before it is done.
type Operator struct {
	store   Store
	auditor store.Auditor
}

// NewOperator returns an operator for a store that is also a [store.Auditor].
// If the store is not an auditor, the error is [errors.ErrUnsupported].
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

// DeadLetters returns the dead letters after the given ID, oldest
// first. Dead letters that block their aggregate are [StateHolding].
func (op *Operator) DeadLetters(ctx context.Context, after string, limit int) ([]Entry, error) {
	return op.store.Messages(ctx, Filter{States: []State{StateDead, StateHolding}, After: after, Limit: limit})
}

// Replay delivers a dead letter again and resets its attempts to zero. If its aggregate continued without
// it, the message arrives out of order. The receiver sees the same ID and downstream key as before.
func (op *Operator) Replay(ctx context.Context, who, why, id string) error {
	return op.Answer(ctx, who, why, id, nil)
}

// Answer is [Operator.Replay] with an answer that a person found
// out: the handler gets it as if the last delivery had recorded it.
func (op *Operator) Answer(ctx context.Context, who, why, id string, answer []byte) error {
	if err := checkAnswer(answer); err != nil {
		return err
	}
	return op.act(ctx, who, why, "outbox replay", id, func(ctx context.Context, id string) error {
		return op.store.ReplayMessage(ctx, id, answer)
	})
}

// Drop gives up a dead letter: if it blocks its aggregate, the aggregate continues
// without it. It stays in the list of dead letters and is no longer counted in [Stats].
func (op *Operator) Drop(ctx context.Context, who, why, id string) error {
	return op.act(ctx, who, why, "outbox drop", id, op.store.DropMessage)
}

// act records an action in the audit, does it, and records how it ended. The entries name the
// operation that added the message or, if no operation added it, have the message's ID as their key.
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
