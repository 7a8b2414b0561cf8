package sealed

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/store"
)

// Reserve implements [store.Store]. A grant is returned to the store if its recovery data cannot be opened: nothing was
// executed.
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	v, err := s.Store.Reserve(ctx, r)
	if err != nil {
		return v, s.openFenced(r.ID, err)
	}
	granted := v.Record
	if err := s.openVerdict(&v); err != nil {
		if v.Decision == store.DecisionExecute {
			s.giveBack(ctx, v.Origin, &granted, err)
		}
		if askAgain(ctx, &v) {
			return s.Reserve(store.PastFront(ctx), r)
		}
		return store.Verdict{}, err
	}
	return v, nil
}

// askAgain reports whether to call the durable store after a replay that could not be opened: a front can hold an
// answer under a key that was removed, and the durable store the same answer, resealed since.
func askAgain(ctx context.Context, v *store.Verdict) bool {
	return v.Decision == store.DecisionReplay && !store.IsPastFront(ctx)
}

// openVerdict opens the content of a verdict. It returns an error only for content that the decision needs; other
// content is left out if it cannot be opened. For example, a mismatch is reported whatever the record contains (S4),
// and an answer is replayed whatever data its operation has stored.
func (s *Store) openVerdict(v *store.Verdict) error {
	answer, data := s.openContent(&v.Record)
	switch v.Decision {
	case store.DecisionReplay:
		return answer
	case store.DecisionExecute:
		return data
	default:
		return nil
	}
}

// giveBack ends a grant that is not used, as the guard does: a retried operation becomes retryable again, and a resumed
// operation is left for the next attempt immediately. If the call fails, the lease runs out. A release would delete
// data without a recovery point, so the lease of such a grant runs out too.
func (s *Store) giveBack(ctx context.Context, origin store.Origin, rec *store.Record, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	c := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	// The origin of a repeated grant is not known.
	repeated := origin == store.OriginRepeated
	switch {
	case origin == store.OriginResumed, repeated && rec.OnLost == store.LostResume:
		_ = s.Store.Extend(ctx, c, store.ClockStep)
	case rec.Point != "" && (origin == store.OriginRetried || repeated):
		_ = s.Store.Release(ctx, c, cause.Error())
	}
}

const giveBackTimeout = 5 * time.Second

// Checkpoint implements [store.Store].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	p, err := s.sealCheckpoint(c, p)
	if err != nil {
		return err
	}
	return s.openFenced(c.ID, s.Store.Checkpoint(ctx, c, p))
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	sealed, err := s.sealCompletion(place{claim: c}, done)
	if err != nil {
		return time.Time{}, err
	}
	expires, err := s.Store.Complete(ctx, c, sealed)
	if fenced := s.repeated(c, done, err); fenced != nil {
		return fenced.ExpiresAt, nil
	}
	return expires, s.openFenced(c.ID, err)
}

// repeated returns the refusal of a completion that was already stored with the same content in different bytes: the
// content was resealed under another key, or sealed by a program that compresses differently. Such a repetition
// succeeds (S6).
func (s *Store) repeated(c store.Claim, done *store.Completion, err error) *store.FencedError {
	fenced := fencedIn(s.openFenced(c.ID, err))
	if fenced == nil || fenced.Response == nil || fenced.Current != c.Attempt {
		return nil
	}
	if want := s.redacted(done.Response); !fenced.Response.Equal(&want) {
		return nil
	}
	return fenced
}

// openFenced opens the answer in a refusal. An answer that cannot be opened is left out: the owner then only knows that
// its write was refused.
func (s *Store) openFenced(id store.ID, err error) error {
	fenced := fencedIn(err)
	if fenced == nil || fenced.Response == nil {
		return err
	}
	opened, response := *fenced, *fenced.Response
	opened.Response = &response
	p := place{claim: store.Claim{ID: id, Attempt: fenced.Current}}
	if s.openResponse(p, &response, false) != nil {
		opened.Response = nil
	}
	if err == error(fenced) {
		return &opened
	}
	return &openedError{err, &opened}
}

// fencedIn returns the refusal that an error wraps, or nil.
func fencedIn(err error) (fenced *store.FencedError) {
	errors.As(err, &fenced)
	return fenced
}

// openedError is an error that wraps a refusal and more, with the answer of the refusal opened.
type openedError struct {
	error
	fenced *store.FencedError
}

// Unwrap returns the original error.
func (e *openedError) Unwrap() error { return e.error }

// As finds the refusal with the opened answer.
func (e *openedError) As(target any) bool {
	fenced, ok := target.(**store.FencedError)
	if ok {
		*fenced = e.fenced
	}
	return ok
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return s.openFenced(c.ID, s.Store.Extend(ctx, c, lease))
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	return s.openFenced(c.ID, s.Store.Release(ctx, c, reason))
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return s.openFenced(c.ID, s.Store.Abandon(ctx, c, reason))
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return s.openFenced(c.ID, s.Store.Reject(ctx, c))
}

// Get implements [store.Store]. If the content of a record cannot be opened, Get returns the record without it,
// together with the error.
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if err == nil {
		err = s.openRecord(&rec)
	}
	return rec, err
}

// List implements [store.Lister].
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	page, err := s.Store.List(ctx, f)
	for i := range page {
		s.openSummary(&page[i])
	}
	return page, err
}

// FindHash implements [store.Finder]. A record whose content cannot be opened is returned as a list shows it.
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	rec, err := s.Store.FindHash(ctx, hash)
	if err == nil {
		s.openSummary(&rec)
	}
	return rec, err
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	found, err := s.Store.FindProviderID(ctx, providerID)
	for i := range found {
		s.openSummary(&found[i])
	}
	return found, err
}

// openSummary opens a listed record, or sets the reason why it cannot be opened as its last error.
func (s *Store) openSummary(rec *store.Record) {
	if rec.Version == 0 || rec.Response.Status == 0 {
		return
	}
	p := place{claim: store.Claim{ID: rec.ID, Attempt: rec.Attempt}}
	if err := s.openResponse(p, &rec.Response, true); err != nil {
		*rec = store.Record{ID: rec.ID, State: rec.State, LastError: err.Error()}
	}
}

// Retain implements [store.Retainer].
func (s *Store) Retain(ctx context.Context, id store.ID, d time.Duration) (time.Time, error) {
	expires, err := s.Store.Retain(ctx, id, d)
	return expires, s.openFenced(id, err)
}

// Transact implements [store.Transactor]. If the content that the work needs cannot be opened, the work is not called,
// and nothing is done.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (store.Verdict, error) {
	var (
		refused       error
		plain, sealed store.Response // the answer of the work
	)
	v, err := s.Store.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
		if refused = s.openVerdict(&v); refused != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		p := place{claim: store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, inTx: true}
		settlement := work(ctx, v)
		if settlement.Action == store.TxRollback {
			return settlement
		}
		plain = s.redacted(settlement.Completion.Response)
		if sealed, refused = s.sealResponse(p, plain); refused != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		settlement.Completion.Response = sealed
		return settlement
	})
	if err == nil {
		err = refused
	}
	// An answer that was just sealed here is not opened: that would double the cost of sealing.
	known := err == nil && v.Record.Response.Equal(&sealed)
	if known {
		v.Record.Response = store.Response{}
	}
	if err == nil {
		err = s.openVerdict(&v)
		switch {
		case v.Decision == store.DecisionExecute:
			err = nil // it was executed; the record's data is for the next attempt
		case err != nil && askAgain(ctx, &v):
			return s.Transact(store.PastFront(ctx), r, work)
		}
	}
	if err != nil {
		return store.Verdict{}, s.openFenced(r.ID, err)
	}
	if known {
		v.Record.Response = plain
	}
	return v, nil
}

// CheckpointTx implements [store.TxCheckpointer]. A refusal that the work itself got is returned unchanged.
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration,
	work func(ctx context.Context) (store.Checkpoint, error),
) error {
	var failure error
	err := s.Store.CheckpointTx(ctx, c, lease, func(ctx context.Context) (p store.Checkpoint, err error) {
		if p, failure = work(ctx); failure != nil {
			return p, failure
		}
		return s.sealCheckpoint(c, p)
	})
	if own := fencedIn(failure); own != nil && own == fencedIn(err) {
		return err
	}
	return s.openFenced(c.ID, err)
}

// ResolveCompleted implements [store.Reconciler].
func (s *Store) ResolveCompleted(ctx context.Context, c store.Claim, done *store.Completion) error {
	sealed, err := s.sealCompletion(place{claim: c}, done)
	if err != nil {
		return err
	}
	err = s.Store.ResolveCompleted(ctx, c, sealed)
	if s.repeated(c, done, err) != nil {
		return nil
	}
	return s.openFenced(c.ID, err)
}

// ResolveNotExecuted implements [store.Reconciler].
func (s *Store) ResolveNotExecuted(ctx context.Context, c store.Claim, reason string) error {
	return s.openFenced(c.ID, s.Store.ResolveNotExecuted(ctx, c, reason))
}

// ResolveStep implements [store.Reconciler].
func (s *Store) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	sealed, err := s.sealCheckpoint(c, p)
	if err != nil {
		return err
	}
	err = s.Store.ResolveStep(ctx, c, sealed)
	if errors.Is(err, store.ErrFenced) && s.resolvedSo(ctx, c, p) {
		return nil
	}
	return s.openFenced(c.ID, err)
}

// resolvedSo reports whether a step was already resolved with the same data in different bytes: see [Store.repeated].
func (s *Store) resolvedSo(ctx context.Context, c store.Claim, p store.Checkpoint) bool {
	rec, err := s.Get(ctx, c.ID)
	ownerless := rec.State == store.StateInProgress && rec.Nonce == store.Nonce{}
	return err == nil && ownerless && rec.Attempt > c.Attempt && rec.Point == p.Point &&
		(p.Data == nil || string(p.Data) == string(rec.Data))
}

// BeginReconcile implements [store.Reconciler].
func (s *Store) BeginReconcile(ctx context.Context, c store.Claim, count int, wait time.Duration) error {
	return s.openFenced(c.ID, s.Store.BeginReconcile(ctx, c, count, wait))
}

// Postpone implements [store.Reconciler].
func (s *Store) Postpone(ctx context.Context, c store.Claim, p store.Postponement) error {
	return s.openFenced(c.ID, s.Store.Postpone(ctx, c, p))
}

// Requeue implements [store.Reconciler].
func (s *Store) Requeue(ctx context.Context, c store.Claim, reason string) error {
	return s.openFenced(c.ID, s.Store.Requeue(ctx, c, reason))
}

// Bust implements [store.Buster].
func (s *Store) Bust(ctx context.Context, id store.ID, force bool) error {
	return s.openFenced(id, s.Store.Bust(ctx, id, force))
}

// Rewrite implements [store.Rewriter].
func (s *Store) Rewrite(ctx context.Context, c store.Claim, from, to store.Content) error {
	held, err := s.Store.Get(ctx, c.ID)
	opened := held
	if err == nil {
		err = s.openRecord(&opened)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	content := opened.Content()
	sameMeaning := from.Response.Status == to.Response.Status && (len(from.Data) == 0) == (len(to.Data) == 0)
	switch {
	case err != nil || !sameMeaning || !content.Equal(&from) && !content.Equal(&to):
		from, to = outline(from), outline(to) // the inner store returns the error
	case content.Equal(&to):
		from, to = held.Content(), held.Content()
	default:
		if to, err = s.sealContent(c, to); err != nil {
			return err
		}
		from = held.Content()
	}
	return s.openFenced(c.ID, s.Store.Rewrite(ctx, c, from, to))
}

// outline returns content of the same form that no record contains.
func outline(c store.Content) (shown store.Content) {
	shown.Response = store.Response{Status: c.Response.Status, Header: []store.HeaderField{{Name: store.SealedField}}}
	if len(c.Data) > 0 {
		shown.Data = []byte(store.SealedPrefix)
	}
	return shown
}

// sealContent seals the content of a record.
func (s *Store) sealContent(c store.Claim, content store.Content) (sealed store.Content, err error) {
	if content.Response.Status != 0 {
		if sealed.Response, err = s.sealResponse(place{claim: c}, content.Response); err != nil {
			return sealed, err
		}
	}
	sealed.Data, err = s.sealData(c, content.Data)
	return sealed, err
}
