package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// A comparison is one operation of the engine that is never completed: each turn continues where the last one ended, by
// the journal in its recovery point, and then releases it, so that a node or a person can take the next turn
// immediately. This fits the meaning of a release: the only effects are reports, which may be repeated.

const (
	// keep is how long the journal is kept after the last turn. A settled record needs some retention.
	keep = 10 * 365 * 24 * time.Hour
	// engineSecret keys the fingerprints of the journals. They contain no client's data, and must stay valid when the
	// secrets that protect clients are rotated.
	engineSecret = "onceward ledger comparison"
	// clockTimeout bounds one read of the store's clock.
	clockTimeout = 5 * time.Second
)

// turn is one node's, or one person's, right to work on a comparison.
type turn struct {
	*Comparer
	op      *onceward.Operation
	journal journal
	saved   []byte
	lost    bool // the journal could not be stored
	// read is the store's clock at the moment start of this node's clock.
	read, start time.Time
}

// worker is the work in a turn.
type worker func(ctx context.Context, t *turn) error

// id returns the ID of the record that contains the journal.
func (c *Comparer) id() store.ID {
	return store.ID{Scope: c.config.Scope, Key: "comparison " + c.config.Name}
}

// take takes a turn and runs work in it. It does not wait: while another node has the turn the error wraps
// [onceward.ErrInProgress], unless the options allow waiting. The context of work ends with the caller's, with the
// deadline, and when the turn is lost.
func (c *Comparer) take(ctx context.Context, work worker, options ...onceward.Option) error {
	taken, failed := false, error(nil)
	options = append(options, onceward.Reserved(onceward.FailureRetry), onceward.OnLost(store.LostResume),
		onceward.Deadline(c.config.Deadline), onceward.Retain(keep))
	_, err := c.engine.Do(ctx, onceward.Call{
		Scope: c.config.Scope, Key: c.id().Key, Operation: "ledger comparison " + c.config.Name,
	}, func(workCtx context.Context) ([]byte, error) {
		workCtx, cancel := context.WithCancelCause(workCtx)
		defer cancel(nil)
		stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		defer stop()
		t := &turn{Comparer: c, op: onceward.FromContext(workCtx)}
		t.op.NeverExecuted()
		taken, failed = true, t.run(workCtx, work)
		return nil, nil
	}, options...)
	if !taken {
		return fmt.Errorf("ledger: comparison %q: %w", c.config.Name, err)
	}
	return failed
}

// run runs work with the current journal, which is stored first: from then on no window is lost.
func (t *turn) run(ctx context.Context, work worker) (err error) {
	t.start = time.Now()
	if t.read, err = t.clock(ctx); err != nil {
		return err
	}
	point, data := t.op.Point()
	if t.journal, err = t.current(ctx, point, data, t.read); err != nil {
		return err
	}
	t.saved = data
	if err := t.save(); err != nil {
		return err
	}
	err = work(ctx, t)
	until := t.journal.Next.Format(time.RFC3339)
	t.op.SetReason(fmt.Sprintf("compared until %s, but for %d windows", until, len(t.journal.Open)))
	return err
}

// clock returns the store's clock, by a reservation that must not create and leaves no trace. A node's clock decides
// nothing (rule S3): a node whose clock is ahead would count windows as compared that have not ended.
func (c *Comparer) clock(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	v, err := c.store.Reserve(ctx, &store.Reservation{
		ID: store.ID{Scope: c.config.Scope, Key: "clock"}, Operation: "ledger clock", NoCreate: true,
		Fingerprints: make([]store.Fingerprint, 1), Nonce: store.Nonce{1}, Lease: time.Second, Retention: time.Hour,
	})
	if err == nil && v.Now.IsZero() {
		err = errors.New("its answer contains no time")
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("ledger: asking the store for its clock: %w", err)
	}
	return v.Now.UTC(), nil
}

// now returns the store's clock, computed from its reading at the beginning of the turn.
func (t *turn) now() time.Time { return t.read.Add(time.Since(t.start)) }

// current returns the journal at a moment of the store's clock.
func (c *Comparer) current(ctx context.Context, point string, data []byte, now time.Time) (j journal, err error) {
	if point == "" {
		j = c.config.begin(now)
	} else if j, err = readJournal(point, data); err != nil {
		return j, err
	}
	if c.config.rewind(&j, now) {
		c.config.Logger.WarnContext(ctx, "ledger: the comparison goes back, as the store's clock or Config.Since did",
			"comparison", c.config.Name, "to", j.Next, "store_clock", now)
	}
	if now.Before(j.Begin) {
		c.config.Logger.WarnContext(ctx, "ledger: the comparison has not begun: for an earlier beginning, set Config.Since",
			"comparison", c.config.Name, "begin", j.Begin, "store_clock", now)
	}
	c.config.advance(&j, now)
	return j, nil
}

// save stores the journal if it has changed.
func (t *turn) save() error {
	data, err := json.Marshal(&t.journal)
	if err != nil || bytes.Equal(data, t.saved) {
		return err
	}
	if err := t.op.Checkpoint(store.Checkpoint{Point: layout, Data: data}); err != nil {
		t.lost = true
		return fmt.Errorf("ledger: the progress of comparison %q was not stored: %w", t.config.Name, err)
	}
	t.saved = data
	return nil
}

// close removes a window from the journal.
func (t *turn) close(p *pending) {
	t.journal.Open = slices.DeleteFunc(t.journal.Open, func(other *pending) bool { return other == p })
}

// observe reports the result of a window to the observer.
func (t *turn) observe(ctx context.Context, p *pending, outcome string, err error) {
	t.config.Observer.Observe(ctx, WindowEvent{Run: p.Counts.Run, Outcome: outcome, Attempts: p.Attempts, Err: err})
}

// compare compares a window to its end, and records the result. A failure belongs to the window unless the turn ends:
// then the next turn continues the window immediately.
func (t *turn) compare(ctx context.Context, p *pending) error {
	err := t.merge(ctx, p)
	ended := context.Cause(ctx)
	failed := err != nil && (ended == nil || errors.Is(ended, store.ErrDeadline))
	if err == nil {
		t.close(p)
	}
	if errors.Is(err, ErrOrder) {
		p.restart() // the counts up to here may be wrong
	}
	if failed {
		p.Attempts++
		p.Why, p.RetryAt = shortened(err.Error()), t.now().Add(t.config.backoff(p.Attempts))
	}
	if err != nil {
		err = fmt.Errorf("ledger: run %q stopped: %w", p.Counts.Run, err)
	}
	if unsaved := t.save(); unsaved != nil {
		return errors.Join(err, unsaved)
	}
	if err == nil {
		t.compared(ctx, p)
	} else if failed {
		t.config.Logger.ErrorContext(ctx, "ledger: a window could not be compared", "error", err,
			"attempts", p.Attempts, "since", p.Since, "retry_at", p.RetryAt)
		t.observe(ctx, p, "failed", err)
	}
	return err
}

func shortened(text string) string { return text[:min(len(text), maxWhy)] }

func (t *turn) compared(ctx context.Context, p *pending) {
	if s := &p.Counts; s.Findings() > 0 {
		t.config.Logger.WarnContext(ctx, "ledger: the two sides differ", "run", s.Run,
			"missing_here", s.MissingHere, "missing_there", s.MissingThere, "differs", s.Differs, "duplicates", s.Duplicates)
	}
	if p.Counts.MissingHere > 0 && t.config.Guard != nil {
		t.config.Guard.WarnSharedProvider(ctx, "the provider lists effects that are not in the local ledger",
			"run", p.Counts.Run, "missing_here", p.Counts.MissingHere)
	}
	t.observe(ctx, p, "compared", nil)
}

// merge compares a window from where it was left. A source that panics has failed.
func (t *turn) merge(ctx context.Context, p *pending) (err error) {
	m := merger{
		comparison: t.config.Name, window: &p.Window, grace: p.Grace, saveEvery: int64(t.config.SaveEvery),
		report: func(f Finding) error { return t.report(ctx, f) },
		done:   cursor{After: p.After, Counts: p.Counts},
	}
	m.save = func() error {
		p.After, p.Counts = m.done.After, m.done.Counts
		return t.save()
	}
	defer func() {
		p.After, p.Counts = m.done.After, m.done.Counts
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			t.config.Logger.ErrorContext(ctx, "ledger: comparing panicked",
				"run", p.Counts.Run, "panic", panicked, "stack", string(debug.Stack()))
		}
	}()
	after := string(p.After)
	return m.merge(ctx, t.config.Provider(ctx, p.Window, after), t.config.Local(ctx, p.Window, after))
}

func (t *turn) report(ctx context.Context, f Finding) error {
	if err := t.config.Report(ctx, f); err != nil {
		return fmt.Errorf("the report of %s %q: %w", f.Kind, f.Key, err)
	}
	t.config.Observer.Observe(ctx, FindingEvent{Run: f.Run, Kind: string(f.Kind), Key: f.Key})
	return nil
}
