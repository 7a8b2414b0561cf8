package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/check"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/load"
	"github.com/onceward/onceward/lab/chaos/internal/world"
)

// options say how a run goes.
type options struct {
	Store   string
	Time    time.Duration
	Seed    uint64
	Clients int
	Every   time.Duration
	Clocks  bool
	Keep    string
	Settle  time.Duration
	// Replicas is how many replicas must have a write before a Redis store counts it as written.
	Replicas int
	// Isolation is the level of the nodes' transactions. Default: the database's own.
	Isolation sql.IsolationLevel
	// Brief ends the faults when the time is over, also if some have not happened yet.
	Brief bool
	// Only are the faults that happen; nil for all.
	Only []string
}

// setIsolation sets the level that has a name on the command line.
func (o *options) setIsolation(name string) error {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		if name == isolationName(level) {
			o.Isolation = level
			return nil
		}
	}
	return errors.New("the levels are read-committed, repeatable-read and serializable")
}

// isolationName returns the name of a level on the command line.
func isolationName(level sql.IsolationLevel) string {
	return strings.ReplaceAll(strings.ToLower(level.String()), " ", "-")
}

// The nodes of a run.
const (
	serverNodes = 3
	workerNodes = 2
	// buildLimit and startLimit are how long it takes to build a program, with its standard library, and to start a
	// world.
	buildLimit = 5 * time.Minute
	startLimit = 2 * time.Minute
	// progressEvery is how often a run says how far it is.
	progressEvery = 15 * time.Second
)

// run is one run on one store, from nothing to the verdict. One that hangs is an error that says what it waited for.
func (o options) run(ctx context.Context, out io.Writer) (r *report, err error) {
	err = watched(func(watch *watch) error {
		r, err = o.once(ctx, out, watch)
		return err
	})
	return r, err
}

// once is a run with one window.
func (o options) once(ctx context.Context, out io.Writer, watch *watch) (r *report, err error) {
	dir, done, err := o.directory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	fmt.Fprintf(out, "chaos on %s, isolation %s, seed %d, %s of faults\n", o.Store, isolationName(o.Isolation), o.Seed, o.Time)
	w, err := o.world(ctx, watch, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		watch.await("all processes to end", 0)
		err = errors.Join(err, w.Close())
	}()
	return o.window(ctx, out, watch, w, "")
}

// world builds the world of a run.
func (o options) world(ctx context.Context, watch *watch, dir string) (*world.World, error) {
	config := world.Config{
		Store: o.Store, Dir: dir, Seed: o.Seed, Only: o.Only, Brief: o.Brief, Servers: serverNodes, Workers: workerNodes,
		Log: o.Keep != "", Replicas: o.Replicas, Isolation: o.Isolation,
	}
	var err error
	if config.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	if o.Clocks {
		watch.await("a program with a clock of its own to be built", buildLimit)
		if config.Shifted, err = buildShifted(ctx, dir, "github.com/onceward/onceward/lab/chaos"); err != nil {
			return nil, err
		}
	}
	watch.await("all processes to start", startLimit)
	w, err := world.New(ctx, config)
	if err != nil {
		return nil, err
	}
	watch.ask(w.Busy)
	return w, nil
}

// window lets faults happen, waits until all is quiet, and checks what came of it. Its name is what its keys begin
// with.
func (o options) window(ctx context.Context, out io.Writer, watch *watch, w *world.World, name string) (*report,
	error,
) {
	began := time.Now()
	clients := filepath.Join(w.Dir, name+"clients.history")
	recorder, err := history.NewRecorder(clients)
	if err != nil {
		return nil, err
	}
	watch.await("the faults to be over and the clients to return", o.Time+w.Round(o.Every))
	if err := w.Begin(ctx, name); err != nil {
		return nil, errors.Join(err, recorder.Close())
	}
	l := load.New(load.Config{
		Seed: o.Seed, Window: name, Clients: o.Clients, Fronts: w.Fronts(), Recorder: recorder, Plain: w.Plain(),
		Entries: w.Collects(),
	})
	unsettled, err := o.weather(ctx, out, watch, w, l)
	if err == nil {
		err = w.RecordCalls(ctx, recorder)
	}
	if err := errors.Join(err, l.Err(), recorder.Close(), w.Collapsed()); err != nil {
		return nil, err
	}
	watch.await("the history to be read and checked", o.Time)
	h, err := gather(ctx, w, clients)
	if err != nil {
		return nil, err
	}
	h.Unsettled = len(unsettled) > 0
	h.Faults["client-leaves"], h.Faults["webhook-foreign"] = int(l.Left.Load()), int(l.Foreign.Load())
	if o.Time >= time.Minute && o.Only == nil {
		h.Planned = append(h.Planned, w.Chances()...)
	}
	if err := history.Save(filepath.Join(w.Dir, name+"harvest.history"), h); err != nil {
		return nil, err
	}
	r := &report{options: o, took: time.Since(began), counts: check.Summary(h), faults: h.Faults}
	r.violations = append(unsettled, check.Check(h)...)
	if o.Store == world.Cluster {
		r.lost, r.violations = check.Trace(h, r.violations)
	}
	return r, nil
}

// weather is the storm and the quiet after it. An operator is there all the time.
func (o options) weather(ctx context.Context, out io.Writer, watch *watch, w *world.World,
	l *load.Load,
) ([]check.Violation, error) {
	operating, dismiss := context.WithCancel(ctx)
	var operator sync.WaitGroup
	operator.Go(func() { l.Operator(w.Unknown).Run(operating) })
	defer operator.Wait()
	defer dismiss()
	if err := o.storm(ctx, out, w, l); err != nil {
		return nil, err
	}
	watch.await("the front to be of use", world.FrontLimit)
	if err := useFront(ctx, w, l); err != nil {
		return nil, err
	}
	return o.settle(ctx, watch, w, l)
}

// directory makes the directory of a run, and says how to be done with it.
func (o options) directory() (dir string, done func() error, err error) {
	if o.Keep == "" {
		dir, err = os.MkdirTemp("", "onceward-chaos-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	dir, err = filepath.Abs(filepath.Join(o.Keep, fmt.Sprintf("%s-%d", o.Store, o.Seed)))
	if err == nil {
		err = errors.Join(os.MkdirAll(o.Keep, 0o755), os.Mkdir(dir, 0o755)) // two runs in one would be mixed up
	}
	return dir, func() error { return nil }, err
}

// storm lets clients work while faults happen: for the time that was asked for, and until each fault has happened.
func (o options) storm(ctx context.Context, out io.Writer, w *world.World, l *load.Load) error {
	working, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { l.Run(working) })
	over := make(chan error, 1)
	go func() { over <- w.Nemesis(ctx, o.Time, o.Every) }()
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	for began := time.Now(); ; {
		select {
		case err := <-over:
			stop()
			all.Wait()
			return errors.Join(err, ctx.Err())
		case <-progress.C:
			fmt.Fprintf(out, "%4.0f s: %d operations, %d answered, %d open\n",
				time.Since(began).Seconds(), l.Started.Load(), l.Done.Load(), l.Open())
		}
	}
}

// useFront has a client meet the front if no other has: on a busy machine its answers come late while clients work, so
// that it is left alone. If it is of no use then either, the checker says so.
func useFront(ctx context.Context, w *world.World, l *load.Load) error {
	limited, cancel := context.WithTimeout(ctx, world.FrontLimit)
	defer cancel()
	for n := 0; limited.Err() == nil; n++ {
		if used, err := w.FrontUsed(); used || err != nil {
			return err
		}
		l.Insist(limited, n)
	}
	return nil
}

// settle waits until all is quiet (I13): first until every operation is answered, then until no record is open and no
// message on its way.
func (o options) settle(ctx context.Context, watch *watch, w *world.World, l *load.Load) ([]check.Violation, error) {
	watch.await("every operation to be answered", o.Settle)
	if broken, err := o.finish(ctx, w, l); broken != nil || err != nil {
		return broken, err
	}
	watch.await("everything to be quiet", o.Settle)
	settling, cancel := context.WithTimeout(ctx, o.Settle)
	defer cancel()
	for {
		quiet, err := w.Quiet(settling)
		if quiet {
			return nil, nil
		}
		if settling.Err() != nil {
			return o.loud(ctx, w), ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		time.Sleep(200 * time.Millisecond) // no event tells when the last worker is done
	}
}

// finish has the clients retry until every operation is answered.
func (o options) finish(ctx context.Context, w *world.World, l *load.Load) ([]check.Violation, error) {
	settling, cancel := context.WithTimeout(ctx, o.Settle)
	defer cancel()
	if err := w.Calm(settling); err != nil {
		return nil, err
	}
	if left := l.Finish(settling); left > 0 {
		detail := fmt.Sprintf("%d operations were not answered within %s after the last fault", left, o.Settle)
		return []check.Violation{{Invariant: "I13", Detail: detail}}, ctx.Err()
	}
	return nil, nil
}

// loud returns why it was not quiet in time. Where there is nothing but records to wait for, it names them: one may be
// open because of a fail-over.
func (o options) loud(ctx context.Context, w *world.World) (broken []check.Violation) {
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if open, err := w.OpenRecords(asking); err == nil && w.Plain() {
		for _, rec := range open {
			broken = append(broken, check.Violation{
				Invariant: "I13", Scope: rec.Scope, Key: rec.Key,
				Detail: fmt.Sprintf("the record is %s %s after the last answer", rec.State, o.Settle),
			})
		}
	}
	if broken != nil {
		return broken
	}
	return []check.Violation{{
		Invariant: "I13",
		Detail:    fmt.Sprintf("it was not quiet %s after the last answer: %s", o.Settle, w.Waiting(asking)),
	}}
}

// gather reads all that the run has left behind.
func gather(ctx context.Context, w *world.World, clients string) (*history.Run, error) {
	journals, err := w.Journals()
	if err != nil {
		return nil, err
	}
	h, err := history.ReadWindow(append(journals, clients)...)
	if err != nil {
		return nil, err
	}
	return h, w.Harvest(ctx, h)
}
