package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// Operator settles, in the name of a person, what machines cannot. Each act has an actor and a reason, and is written
// to the audit before it is done: an act that is not in the audit did not happen.
type Operator struct {
	guard           *onceward.Guard
	store           store.Store
	settler         store.Reconciler
	buster          store.Buster
	lister          store.Lister
	finder          store.Finder   // nil if the store has none
	retainer        store.Retainer // nil if the store has none
	auditor         store.Auditor
	lateCompletions store.LateCompletionKeeper // nil if the store keeps none
}

// NewOperator returns an operator over a store that is a [store.Reconciler], [store.Buster], [store.Lister] and
// [store.Auditor]; if it is not, the error is [errors.ErrUnsupported]. The store must be the guard's own.
func NewOperator(guard *onceward.Guard, s store.Store) (*Operator, error) {
	if guard == nil {
		return nil, errNoGuard
	}
	op := &Operator{guard: guard, store: s}
	var settles, busts, lists, audits bool
	op.settler, settles = store.As[store.Reconciler](s)
	op.buster, busts = store.As[store.Buster](s)
	op.lister, lists = store.As[store.Lister](s)
	op.auditor, audits = store.As[store.Auditor](s)
	if !settles || !busts || !lists || !audits {
		return nil, fmt.Errorf("reconcile: the store lacks what operators need: %w", errors.ErrUnsupported)
	}
	op.lateCompletions, _ = store.As[store.LateCompletionKeeper](s)
	op.finder, _ = store.As[store.Finder](s)
	op.retainer, _ = store.As[store.Retainer](s)
	return op, nil
}

// By is the actor and the reason of an act. Both are required.
type By struct {
	Who string
	Why string
}

func (b By) check() error {
	if strings.TrimSpace(b.Who) == "" || strings.TrimSpace(b.Why) == "" {
		return errors.New("reconcile: an operator's act needs By.Who and By.Why: the audit is useless without them")
	}
	return nil
}

// Act performs an act in an operator's name, between two entries of the audit: one before the act, without which it is
// not performed, and one with its outcome. With an error that is [store.ErrStale] it was performed.
func (b By) Act(ctx context.Context, auditor store.Auditor, c store.Claim, action string, do func() error) error {
	if err := b.check(); err != nil {
		return err
	}
	return audited(ctx, auditor, store.AuditEntry{
		ID: c.ID, Attempt: c.Attempt, Actor: b.Who, Action: action, Reason: b.Why,
	}, do)
}

// ResolveCompleted ends an operation with an answer that the operator has found: every retry gets it. Like
// [Operator.ResolveNotExecuted] it accepts an attempt that is unknown, or a phased operation that has lost its owner,
// and it then settles the whole operation: remaining steps do not run any more. To settle one step, use
// [Operator.ResolveStep].
func (op *Operator) ResolveCompleted(ctx context.Context, by By, c store.Claim, done store.Completion) error {
	return op.act(ctx, by, c, "resolve completed", func() error { return op.settler.ResolveCompleted(ctx, c, &done) })
}

// ResolveNotExecuted settles an attempt of which the operator knows that it did nothing and will do nothing, or that
// all of it was undone: a retry executes, from the beginning.
func (op *Operator) ResolveNotExecuted(ctx context.Context, by By, c store.Claim) error {
	return op.act(ctx, by, c, "resolve not executed", func() error {
		return op.settler.ResolveNotExecuted(ctx, c, by.Why)
	})
}

// Bust removes a settled record before its expiry, so that the key can be used again. With force it also removes a
// record that is in progress or unknown: the work may then be done twice. Without force it returns [store.ErrBusy]
// while a transaction of this process works on the operation, because it may be checking whether its COMMIT took
// effect.
func (op *Operator) Bust(ctx context.Context, by By, id store.ID, force bool) error {
	action := "bust"
	if force {
		action = "bust by force"
	}
	rec, err := op.store.Get(ctx, id) // the audit names the attempt
	if err != nil && !refused(err) {
		return fmt.Errorf("reconcile: nothing was done, because the record could not be read: %w", err)
	}
	c := store.Claim{ID: id, Attempt: rec.Attempt}
	return op.act(ctx, by, c, action, func() error {
		if tx, transacts := store.As[store.Transactor](op.store); transacts && !force && tx.InFlight(id) {
			return store.ErrBusy
		}
		return op.buster.Bust(ctx, id, force)
	})
}

// Retain keeps a settled record for longer than its retention: at least for that time from now, by the store's clock.
// It returns when the record expires. The error is [errors.ErrUnsupported] if the store is no [store.Retainer].
func (op *Operator) Retain(ctx context.Context, by By, id store.ID, d time.Duration) (expires time.Time, err error) {
	if op.retainer == nil {
		return expires, fmt.Errorf("reconcile: the store does not keep records for longer: %w", errors.ErrUnsupported)
	}
	rec, err := op.store.Get(ctx, id) // the audit names the attempt
	if err != nil && !refused(err) {
		return expires, fmt.Errorf("reconcile: nothing was done, because the record could not be read: %w", err)
	}
	c := store.Claim{ID: id, Attempt: rec.Attempt}
	err = op.act(ctx, by, c, fmt.Sprintf("retain for %s", d), func() (err error) {
		expires, err = op.retainer.Retain(ctx, id, d)
		return err
	})
	return expires, err
}

func (op *Operator) act(ctx context.Context, by By, c store.Claim, action string, do func() error) error {
	return by.Act(ctx, op.auditor, c, action, do)
}

// outcomeTimeout bounds the writing of an outcome, even if the context of the act has ended.
const outcomeTimeout = 5 * time.Second

// audited performs an act between two entries: one before the act, without which it is not performed, and one with its
// outcome. The auditor may be nil.
func audited(ctx context.Context, auditor store.Auditor, e store.AuditEntry, act func() error) error {
	if auditor == nil {
		return act()
	}
	if err := auditor.AddAudit(ctx, e); err != nil {
		return fmt.Errorf("reconcile: nothing was done, because it could not be written to the audit: %w", err)
	}
	err := act()
	switch {
	case err == nil:
		e.Outcome = "done"
	case errors.Is(err, store.ErrStale):
		e.Outcome = err.Error() // its text reports that it was done
	case refused(err), errors.Is(err, store.ErrNotSent):
		e.Outcome = "failed: " + err.Error()
	default:
		e.Outcome = "not known whether it was done: " + err.Error()
	}
	// The act counts, even if its outcome is not written: the first entry then has no outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	_ = auditor.AddAudit(ctx, e)
	return err
}

// refused reports whether an error is the store's refusal, after which nothing was done. After any other error, such as
// a lost connection, an act may have been done anyway.
func refused(err error) bool {
	for _, target := range []error{store.ErrFenced, store.ErrNotFound, store.ErrUnreadable, store.ErrInvalidEvent} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// History is everything known about an operation.
type History struct {
	// Record is the current record; its state is [store.StateNone] if it is gone.
	Record store.Record
	// Progress is the state of each step of a phased operation; nil for others.
	Progress *phase.Progress
	// LateCompletions are answers that came too late to be stored.
	LateCompletions []store.LateCompletion
	// Audit is what people and the poller did about it, oldest first.
	Audit []store.AuditEntry
}

// History collects everything known about an operation.
func (op *Operator) History(ctx context.Context, id store.ID) (h History, err error) {
	if h.Record, err = op.store.Get(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return h, err
	}
	h.Progress, _ = phase.Inspect(&h.Record) // the record has its Point even if this program cannot read it
	if op.lateCompletions != nil {
		if h.LateCompletions, err = op.lateCompletions.LateCompletions(ctx, id); err != nil {
			return h, err
		}
	}
	h.Audit, err = op.auditor.Audit(ctx, id)
	return h, err
}

// DeadLetters returns at most limit records that wait for a person, after the given ID; start with the zero ID. A limit
// of zero means [store.MaxPage]. A record's LastError is why it became unknown, its ReconcileError why the last attempt
// to reconcile did not succeed.
func (op *Operator) DeadLetters(ctx context.Context, after store.ID, limit int) ([]store.Record, error) {
	return op.search(ctx, store.Filter{State: store.StateUnknown, After: after}, limit, func(rec *store.Record) bool {
		return rec.DeadLetter
	})
}

// search collects at most limit wanted records of a filter; a limit of zero means [store.MaxPage].
func (op *Operator) search(
	ctx context.Context, f store.Filter, limit int, wanted func(*store.Record) bool,
) (found []store.Record, err error) {
	if limit <= 0 {
		limit = store.MaxPage
	}
	err = scan(ctx, op.lister, f, func(rec *store.Record) bool {
		if wanted(rec) {
			found = append(found, *rec)
		}
		return len(found) < limit
	})
	return found, err
}

// Lost returns the phased operations, and other operations that resume, that have lost their owners: at most limit,
// after the given ID; start with the zero ID. A limit of zero means [store.MaxPage]. Most are resumed soon. A record
// whose LeaseUntil is long past is not, because no running program knows its name, its steps or its data: a person can
// end it.
func (op *Operator) Lost(ctx context.Context, after store.ID, limit int) ([]store.Record, error) {
	filter := store.Filter{State: store.StateInProgress, Due: true, After: after}
	return op.search(ctx, filter, limit, func(rec *store.Record) bool { return rec.OnLost == store.LostResume })
}
