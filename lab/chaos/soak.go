package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/world"
)

// soak is a long run. It goes on window by window: the faults end for a moment, everything becomes quiet, what
// happened is checked and forgotten, and the same processes go on with the same database. So it never has more to
// keep than one window.
type soak struct {
	options
	dir   string
	hours float64
	// done is called after each window; nil for no call.
	done func()

	mu    sync.Mutex
	total soaked
}

// soaked is how far a soak has come. It is kept in a file, by which a soak that was interrupted goes on.
type soaked struct {
	Store      string         `json:"store"`
	Seed       uint64         `json:"seed"`
	Windows    int            `json:"windows"`
	Starts     int            `json:"starts"`
	Took       time.Duration  `json:"took"`
	Operations int            `json:"operations"`
	Attempts   int            `json:"attempts"`
	Faults     map[string]int `json:"faults"`
	Violations int            `json:"violations"`
}

// windowTime is how long faults happen before everything is checked.
const windowTime = 50 * time.Second

// soakCommand is the command line of a soak.
func soakCommand(ctx context.Context, args []string, out io.Writer) error {
	s := soak{options: options{Time: windowTime}}
	flags := flag.NewFlagSet("chaos soak", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&s.Store, "store", "sqlite", "store to run on")
	flags.Float64Var(&s.hours, "hours", 1, "how long it goes on, with what was done before; fractions too")
	flags.StringVar(&s.dir, "dir", "", "directory by which it goes on when it was interrupted (default: a new one)")
	flags.Uint64Var(&s.Seed, "seed", 0, "seed of faults and requests (default: drawn)")
	flags.DurationVar(&s.Time, "window", s.Time, "how long faults happen before everything is checked")
	flags.IntVar(&s.Clients, "clients", 24, "number of clients")
	flags.DurationVar(&s.Every, "every", 700*time.Millisecond, "time between two faults")
	flags.DurationVar(&s.Settle, "settle", 2*time.Minute,
		"how long everything may take to be quiet after the last fault")
	flags.BoolVar(&s.Clocks, "clocks", true, "shift the clocks of nodes, for which a program is built first")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !slices.Contains(world.Stores, s.Store) || s.Every <= 0 || s.Clients <= 0 || s.Time <= 0 {
		return fmt.Errorf("-store must be one of %v, and -every, -clients and -window above zero", world.Stores)
	}
	return s.run(ctx, out)
}

// run goes on until the time is over.
func (s *soak) run(ctx context.Context, out io.Writer) error {
	if err := s.resume(); err != nil {
		return err
	}
	fmt.Fprintf(out, "soak on %s, seed %d, %.2f hours, in %s: %s so far\n", s.Store, s.Seed, s.hours, s.dir,
		s.total.Took.Round(time.Second))
	telling, stop := context.WithCancel(ctx)
	defer stop()
	go s.tell(telling, out)
	if err := watched(func(watch *watch) error { return s.windows(ctx, out, watch) }); err != nil {
		return fmt.Errorf("%w; go on with: go run ./lab/chaos soak -store %s -hours %g -dir %s", err, s.Store, s.hours,
			s.dir)
	}
	fmt.Fprintf(out, "faults: %s\n%s\n", listed(s.total.Faults), s.line())
	if s.total.Violations > 0 {
		return errViolated
	}
	return nil
}

// resume reads how far the soak is, or begins it.
func (s *soak) resume() (err error) {
	if s.dir == "" {
		s.dir, err = os.MkdirTemp("", "onceward-soak-")
	} else if s.dir, err = filepath.Abs(s.dir); err == nil {
		err = os.MkdirAll(s.dir, 0o755)
	}
	if err != nil {
		return err
	}
	if s.Seed == 0 {
		s.Seed = 1 + rand.Uint64N(1_000_000)
	}
	s.total = soaked{Store: s.Store, Seed: s.Seed, Faults: make(map[string]int)}
	kept, err := os.ReadFile(s.file())
	if err == nil {
		err = json.Unmarshal(kept, &s.total)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.total.Store != s.Store {
		return fmt.Errorf("%s holds a soak on %s", s.dir, s.total.Store)
	}
	s.Seed = s.total.Seed
	s.total.Starts++
	return nil
}

// file is where it is kept how far the soak is.
func (s *soak) file() string { return filepath.Join(s.dir, "soak.json") }

// save keeps how far the soak is. It is there in full, or as it was before.
func (s *soak) save() error {
	s.mu.Lock()
	kept, err := json.MarshalIndent(s.total, "", "\t")
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file()+".new", kept, 0o644); err != nil {
		return err
	}
	return os.Rename(s.file()+".new", s.file())
}

// windows builds a world and lets one window after the other go by. A soak that goes on does so with a new world: the
// processes of the last one are gone, and what they left half done was never checked.
func (s *soak) windows(ctx context.Context, out io.Writer, watch *watch) (err error) {
	o := s.options
	o.Seed += uint64(s.total.Starts)
	dir := filepath.Join(s.dir, fmt.Sprintf("world-%d", s.total.Starts))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := o.world(ctx, watch, dir)
	if err != nil {
		return err
	}
	defer func() {
		watch.await("all processes to end", 0)
		err = errors.Join(err, w.Close())
	}()
	for n := 1; s.total.Took.Hours() < s.hours; n++ {
		o.Seed++
		began := time.Now()
		r, err := o.window(ctx, io.Discard, watch, w, fmt.Sprintf("w%d.", n))
		if err != nil {
			return err
		}
		s.add(r, time.Since(began))
		if err := errors.Join(s.keep(r, w, out), s.forget(ctx, w)); err != nil {
			return err
		}
		if s.done != nil {
			s.done()
		}
	}
	return nil
}

// add counts a window.
func (s *soak) add(r *report, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Windows++
	s.total.Took += took
	s.total.Operations += r.counts.Operations
	s.total.Attempts += r.counts.Attempts
	s.total.Violations += len(r.violations)
	for name, n := range r.faults {
		s.total.Faults[name] += n
	}
}

// keep keeps how far the soak is, and the history of a window in which something was broken.
func (s *soak) keep(r *report, w *world.World, out io.Writer) error {
	if len(r.violations) > 0 {
		r.printViolations(out)
		into := filepath.Join(s.dir, fmt.Sprintf("violated-%d", s.total.Windows))
		if err := os.CopyFS(into, histories{os.DirFS(w.Dir)}); err != nil {
			return err
		}
		fmt.Fprintf(out, "the history of this window is in %s\n", into)
	}
	return s.save()
}

// forget removes what was recorded in a window.
func (s *soak) forget(ctx context.Context, w *world.World) error {
	files, err := filepath.Glob(filepath.Join(w.Dir, "*.history"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return errors.Join(err, w.End(ctx))
}

// tell writes a line a minute.
func (s *soak) tell(ctx context.Context, out io.Writer) {
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			fmt.Fprintln(out, s.line())
		case <-ctx.Done():
			return
		}
	}
}

// line is how far the soak is.
func (s *soak) line() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	faults := 0
	for _, n := range s.total.Faults {
		faults += n
	}
	t := &s.total
	return fmt.Sprintf("soak on %s: %s in %d windows, %d operations, %d attempts, %d faults, %d violations",
		s.Store, t.Took.Round(time.Second), t.Windows, t.Operations, t.Attempts, faults, t.Violations)
}

// histories is a directory of which only the files are seen in which a run is recorded.
type histories struct{ fs.FS }

// ReadDir implements [fs.ReadDirFS].
func (h histories) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(h.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		kind := filepath.Ext(e.Name())
		return kind != ".history" && kind != ".journal" && kind != ".ledger"
	}), err
}
