package onceward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// diary is what workers did, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) has(line string) bool { return slices.Contains(d.all(), line) }

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// named is a worker that takes a while to stop.
type named struct {
	name  string
	diary *diary
	stops time.Duration
	err   error // what it returns when it has stopped
}

func (n *named) String() string { return n.name }

func (n *named) Run(ctx context.Context) error {
	n.diary.note("%s begins", n.name)
	<-ctx.Done()
	n.diary.note("%s is told", n.name)
	time.Sleep(n.stops)
	n.diary.note("%s ends", n.name)
	return n.err
}

// quietRunner logs to a buffer.
func quietRunner(log *bytes.Buffer) onceward.Runner {
	return onceward.Runner{Logger: slog.New(slog.NewTextHandler(log, nil)), StopTimeout: 10 * time.Second}
}

func TestRunStopsInReverseOrderEachWhollyBeforeTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		ctx, cancel := context.WithCancel(t.Context())
		workers := []onceward.Worker{
			&named{name: "janitor", diary: d, stops: time.Second},
			&named{name: "poller", diary: d, stops: 3 * time.Second, err: context.Canceled}, // as many return it
			&named{name: "server", diary: d, stops: 5 * time.Second},
		}
		time.AfterFunc(time.Minute, cancel)
		began := time.Now()
		if err := onceward.Run(ctx, workers...); err != nil {
			t.Error(err)
		}
		if took := time.Since(began) - time.Minute; took != 9*time.Second {
			t.Errorf("stopping took %s, want 9s", took)
		}
		want := []string{
			"server is told", "server ends", "poller is told", "poller ends", "janitor is told", "janitor ends",
		}
		if got := d.all(); !slices.Equal(got[3:], want) {
			t.Errorf("%q, want %q at the end", got, want)
		}
	})
}

func TestRunStartsAgainWhatFell(t *testing.T) {
	t.Parallel()
	for name, fall := range map[string]func() error{
		"error":   func() error { return errors.New("the broker is away") },
		"nothing": func() error { return nil },
		"panic":   func() error { panic("a bug") },
		"goexit":  func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var starts []time.Time
				ctx, cancel := context.WithCancel(t.Context())
				falls := onceward.WorkerFunc(func(ctx context.Context) error {
					if starts = append(starts, time.Now()); len(starts) < 10 {
						return fall()
					}
					cancel()
					<-ctx.Done()
					return nil
				})
				d := &diary{}
				if err := quietRunner(&log).Run(ctx, falls, &named{name: "other", diary: d}); err != nil {
					t.Error(err)
				}
				for i := range starts[1:] {
					longest := min(time.Second<<i, time.Minute)
					if pause := starts[i+1].Sub(starts[i]); pause > longest || pause < longest/2 {
						t.Errorf("pause %d is %s, want %s or up to half of it less", i, pause, longest)
					}
				}
				if want := []string{"other begins", "other is told", "other ends"}; !slices.Equal(d.all(), want) {
					t.Errorf("the other worker: %q", d.all())
				}
				if n := strings.Count(log.String(), "onceward.WorkerFunc (1 of 2)"); n != 9 {
					t.Errorf("%d lines name the worker, want 9:\n%s", n, &log)
				}
				if name == "panic" && !strings.Contains(log.String(), "run_test.go") {
					t.Errorf("the log does not say where it panicked:\n%s", &log)
				}
			})
		})
	}
}

// TestRunForgetsFailuresOfLongAgo: a worker that fell, and then worked for long, is started again soon.
func TestRunForgetsFailuresOfLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var ended []time.Time
		var pauses []time.Duration
		err := quietRunner(new(bytes.Buffer)).Run(ctx, onceward.WorkerFunc(func(ctx context.Context) error {
			if n := len(ended); n > 0 {
				pauses = append(pauses, time.Since(ended[n-1]))
			}
			switch len(ended) {
			case 8:
				time.Sleep(2 * time.Minute)
			case 9:
				cancel()
				<-ctx.Done()
				return nil
			}
			ended = append(ended, time.Now())
			return errors.New("fell")
		}))
		if err != nil {
			t.Error(err)
		}
		if last := pauses[len(pauses)-1]; last > time.Second || pauses[7] < 30*time.Second {
			t.Errorf("the pauses are %v, the last should be short again", pauses)
		}
	})
}

func TestRunEndsWithAMisconfiguredWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		wrong := errors.New("there is no such operation")
		err := onceward.Run(t.Context(),
			&named{name: "janitor", diary: d, stops: time.Second},
			onceward.WorkerFunc(func(context.Context) error {
				time.Sleep(time.Second)
				return fmt.Errorf("%w: %w", onceward.ErrMisconfigured, wrong)
			}),
			&named{name: "server", diary: d, stops: time.Second})
		if !errors.Is(err, onceward.ErrMisconfigured) || !errors.Is(err, wrong) ||
			!strings.Contains(err.Error(), "onceward.WorkerFunc (2 of 3)") {
			t.Error(err)
		}
		want := []string{"server is told", "server ends", "janitor is told", "janitor ends"}
		if got := d.all(); !slices.Equal(got[2:], want) {
			t.Errorf("%q, want %q at the end", got, want)
		}
	})
}

func TestRunLeavesBehindWhatDoesNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		broken := errors.New("the offsets could not be committed")
		err := quietRunner(new(bytes.Buffer)).Run(ctx,
			&named{name: "janitor", diary: d},
			&named{name: "hanging", diary: d, stops: time.Hour},
			&named{name: "consumer", diary: d, err: broken})
		if err == nil || !strings.Contains(err.Error(), "worker hanging (2 of 3) has not stopped within 10s") ||
			!errors.Is(err, broken) || !strings.Contains(err.Error(), "worker consumer (3 of 3): ") {
			t.Error(err)
		}
		if !d.has("janitor ends") || d.has("hanging ends") {
			t.Errorf("%q", d.all())
		}
		time.Sleep(time.Hour) // it ends at last, for the bubble
	})
}

// patient is a worker with its own time to stop.
type patient struct{ named }

func (s *patient) StopTimeout() time.Duration { return s.stops + time.Second }

// TestRunLetsAWorkerTakeTheTimeItNeeds: its own time counts, if it is longer.
func TestRunLetsAWorkerTakeTheTimeItNeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := quietRunner(new(bytes.Buffer)).Run(ctx, &named{name: "janitor", diary: d, stops: 9 * time.Second},
			&patient{named{name: "server", diary: d, stops: time.Minute}}, &patient{named{name: "quick", diary: d}})
		if err != nil || !d.has("server ends") || !d.has("janitor ends") {
			t.Errorf("%v: %q", err, d.all())
		}
	})
}

// TestRunTellsWhatWentWrongWhileStopping: that the context ended is no error, but it hides none.
func TestRunTellsWhatWentWrongWhileStopping(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("the offsets could not be committed")
	for _, test := range []struct {
		err  error
		told bool
	}{
		{ctx.Err(), false},
		{fmt.Errorf("stopped: %w", ctx.Err()), false},
		{errors.Join(ctx.Err(), fmt.Errorf("read: %w", ctx.Err())), false},
		{fmt.Errorf("%w: postgres: %w", store.ErrUnavailable, ctx.Err()), false},
		{errors.Join(broken, ctx.Err()), true},
		{fmt.Errorf("flush: %w", errors.Join(ctx.Err(), broken)), true},
		{fmt.Errorf("%w: %w", store.ErrUnavailable, broken), true},
		{errors.Join(store.ErrUnavailable), true},
	} {
		err := onceward.Run(ctx, onceward.WorkerFunc(func(told context.Context) error {
			<-told.Done() // workers are stopped one after the other
			return test.err
		}))
		if test.told != errors.Is(err, test.err) || test.told != (err != nil) {
			t.Errorf("a worker ended with %q: told %v, want %t", test.err, err, test.told)
		}
	}
}

func TestRunRefusesWorkersThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	d := &diary{}
	one := &named{name: "one", diary: d}
	for want, workers := range map[string][]onceward.Worker{
		"worker <nil> (2 of 2) is nil":                {one, nil},
		"worker *onceward_test.named (1 of 2) is nil": {(*named)(nil), one},
		"worker onceward.WorkerFunc (1 of 1) is nil":  {onceward.WorkerFunc(nil)},
		"worker one (3 of 3) was given twice":         {one, &named{name: "one", diary: d}, one},
	} {
		if err := onceward.Run(t.Context(), workers...); !errors.Is(err, onceward.ErrMisconfigured) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if lines := d.all(); len(lines) > 0 {
		t.Errorf("workers were started: %q", lines)
	}
}
