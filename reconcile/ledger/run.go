package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
)

// Run compares the two sides over a window, once: a run that was done before, by any node, is answered with what it came to
// then, and nothing is reported again. While another node is at it the error wraps [onceward.ErrInProgress].
//
// When a source or the report fails, when the deadline passes or the context ends, Run returns that error with what it had
// counted, and leaves the run to be continued from there: by calling Run again, on any node, after Config.Pause; at once
// if it was the context. When a source is out of order the run is left to start over.
func Run(ctx context.Context, cfg Config, w Window) (Summary, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	return cfg.run(ctx, w)
}

func (c *Config) run(ctx context.Context, w Window) (Summary, error) {
	if err := w.check(c.Grace, time.Now()); err != nil {
		return Summary{}, err
	}
	a := &attempt{cfg: c, caller: ctx, window: Window{From: w.From.UTC(), To: w.To.UTC()}, run: c.Name + " " + w.String()}
	result, err := c.Guard.Do(ctx, onceward.Call{
		Scope: c.Scope, Key: a.run, Operation: "ledger comparison " + c.Name, Payload: []byte(w.String()),
	}, a.work,
		onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(onceward.Resume),
		onceward.Deadline(c.Deadline), onceward.Retain(c.retention()))
	switch {
	case a.err != nil: // to the engine it is in progress
		return a.merger.done.Counts, fmt.Errorf("ledger: run %q stopped: %w", a.run, a.err)
	case err != nil:
		return Summary{}, fmt.Errorf("ledger: run %q: %w", a.run, err)
	}
	return a.summary(&result)
}

// attempt is one attempt at a run.
type attempt struct {
	cfg    *Config
	caller context.Context // the engine hides its end
	window Window
	run    string
	op     *onceward.Operation
	merger merger
	err    error
}

// work is what the engine executes: it goes on from the last recovery point, if there is one.
func (a *attempt) work(ctx context.Context) (answer []byte, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(a.caller, func() { cancel(context.Cause(a.caller)) })
	defer stop()
	a.op = onceward.FromContext(ctx)
	finished := false
	defer func() { // also in a panic, which goes on afterwards
		if a.err = err; !finished {
			a.suspend()
		}
	}()
	a.merger = merger{
		comparison: a.cfg.Name, window: &a.window, grace: a.cfg.Grace, saveEvery: int64(a.cfg.SaveEvery),
		report: func(f Finding) error { return a.report(ctx, f) },
		save:   a.save,
		done:   a.start(ctx),
	}
	after := string(a.merger.done.After)
	if err := a.merger.merge(ctx, a.cfg.Provider(ctx, a.window, after), a.cfg.Local(ctx, a.window, after)); err != nil {
		return nil, err
	}
	answer, err = json.Marshal(a.merger.counts)
	finished = err == nil
	return answer, err
}

// start is where the attempt before stopped, or the beginning.
func (a *attempt) start(ctx context.Context) cursor {
	c := a.beginning()
	if point, data := a.op.Point(); point != "" {
		if err := json.Unmarshal(data, &c); err != nil {
			a.cfg.Logger.WarnContext(ctx, "ledger: the recovery point cannot be read, the run starts over", "run", a.run, "error", err)
			return a.beginning()
		}
	}
	return c
}

func (a *attempt) beginning() cursor { return cursor{Counts: Summary{Run: a.run}} }

func (a *attempt) report(ctx context.Context, f Finding) error {
	if err := a.cfg.Report(ctx, f); err != nil {
		return fmt.Errorf("the report of %s %q: %w", f.Kind, f.Key, err)
	}
	a.cfg.Observer.Observe(ctx, onceward.LedgerFindingEvent{Run: f.Run, Kind: string(f.Kind), Key: f.Key})
	return nil
}

func (a *attempt) save() error {
	data, err := json.Marshal(a.merger.done)
	if err != nil {
		return err
	}
	return a.op.Checkpoint(onceward.Checkpoint{Point: "compared", Data: data})
}

// suspend leaves the run to a later attempt. That is right for every failure: the only effect is a report, which may be
// repeated.
func (a *attempt) suspend() {
	if errors.Is(a.err, ErrOrder) {
		a.merger.done = a.beginning() // what was counted up to here may be wrong
	}
	if err := a.save(); err != nil && !errors.Is(err, onceward.ErrFenced) {
		a.cfg.Logger.WarnContext(a.caller, "ledger: the recovery point was not stored, some will be compared again",
			"run", a.run, "error", err)
	}
	pause := a.cfg.Pause
	if a.caller.Err() != nil {
		pause = 0 // the node is stopping: another one can go on now
	}
	a.op.Suspend(pause)
}

// summary reads what the run came to, now or earlier.
func (a *attempt) summary(result *onceward.Result) (s Summary, err error) {
	if err := json.Unmarshal(result.Value, &s); err != nil {
		return Summary{}, fmt.Errorf("ledger: run %q: its stored summary: %w", a.run, err)
	}
	s.Replayed = result.Replayed
	if s.Findings() > 0 && !s.Replayed {
		a.cfg.Logger.WarnContext(a.caller, "ledger: the two sides differ", "run", a.run,
			"missing_here", s.MissingHere, "missing_there", s.MissingThere, "differs", s.Differs, "duplicates", s.Duplicates)
	}
	return s, nil
}
