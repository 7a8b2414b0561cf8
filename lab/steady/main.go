// Command steady runs tests repeatedly, to find the ones that fail by chance: a test that fails once is a fault. Every
// second run has a busy machine beside it: two busy loops a processor, and a loop that syncs a file.
//
//	steady [-n 12]                     make test
//	steady [-n 50] ./store/postgres    the tests of packages
//
// Each run is noted in a file, so that an interrupted series of runs is continued. The series of another commit, or of
// other packages, does not count. The outputs of the runs lie beside the notes.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// note is what is kept of a run.
type note struct {
	// What was run: the packages, or make test.
	What   string
	Commit string
	Number int
	// Busy says that the machine had more to do.
	Busy    bool
	Seconds float64
	// Failed are the tests and packages that failed; Error is why the run failed.
	Failed []string `json:",omitempty"`
	Error  string   `json:",omitempty"`
}

// series is several runs of the same.
type series struct {
	what, commit string
	runs         int
	dir          string
	// run makes one run, whose output goes to the log and whose report goes to the file of that name.
	run func(ctx context.Context, log io.Writer, report string) error
	out io.Writer
}

func (s *series) notesFile() string { return filepath.Join(s.dir, "notes.jsonl") }

// notes reads what was noted of this series.
func (s *series) notes() (found []note, err error) {
	text, err := os.ReadFile(s.notesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var n note
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			return nil, fmt.Errorf("%s: %w", s.notesFile(), err)
		}
		if n.What == s.what && n.Commit == s.commit {
			found = append(found, n)
		}
	}
	return found, err
}

// write adds a note to the file.
func (s *series) write(n note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(s.notesFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	return errors.Join(err, file.Close())
}

// complete makes the runs that are missing, and then reports on all.
func (s *series) complete(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	done, err := s.notes()
	if err != nil {
		return err
	}
	for len(done) < s.runs {
		n, err := s.once(ctx, len(done)+1)
		if err != nil {
			return err
		}
		if err := s.write(n); err != nil {
			return err
		}
		done = append(done, n)
		fmt.Fprintf(s.out, "%s: run %d of %d, %s, %.0f s: %s\n", s.what, n.Number, s.runs, machine(n), n.Seconds, outcome(n))
	}
	return s.summarize(done)
}

// once makes a run. An interrupted run is an error, and is not noted.
func (s *series) once(ctx context.Context, number int) (note, error) {
	n := note{What: s.what, Commit: s.commit, Number: number, Busy: number%2 == 0}
	log, err := os.Create(filepath.Join(s.dir, fmt.Sprintf("%s-%s-%d.log", fileName(s.what), s.commit, number)))
	if err != nil {
		return n, err
	}
	defer log.Close()
	report := log.Name() + ".json"
	defer os.Remove(report)
	if n.Busy {
		end := keepBusy(s.dir)
		defer end()
	}
	started := time.Now()
	failure := s.run(ctx, log, report)
	n.Seconds = time.Since(started).Seconds()
	if ctx.Err() != nil {
		return n, ctx.Err()
	}
	if failure == nil {
		return n, nil
	}
	n.Error = failure.Error()
	if text, err := os.ReadFile(report); err == nil { // without a report, no test began
		return n, json.Unmarshal(text, &struct{ Failed *[]string }{&n.Failed})
	}
	return n, nil
}

// fileName makes a name of a file out of what is run.
func fileName(what string) string { return strings.NewReplacer("/", "_", " ", "-").Replace(what) }

func machine(n note) string {
	if n.Busy {
		return "beside a load"
	}
	return "alone"
}

func outcome(n note) string {
	switch {
	case n.Error == "":
		return "passed"
	case len(n.Failed) == 0:
		return n.Error
	default:
		return "failed: " + strings.Join(n.Failed, " ")
	}
}

// summarize prints which tests failed how often. It returns an error if a run failed.
func (s *series) summarize(done []note) error {
	failures, passed := make(map[string]int), 0
	for _, n := range done {
		if n.Error == "" {
			passed++
		}
		for _, name := range n.Failed {
			failures[name]++
		}
	}
	fmt.Fprintf(s.out, "%s at %s: %d of %d runs passed\n", s.what, s.commit, passed, len(done))
	names := slices.SortedFunc(maps.Keys(failures), func(a, b string) int {
		return cmp.Or(failures[b]-failures[a], strings.Compare(a, b))
	})
	for _, name := range names {
		fmt.Fprintf(s.out, "%6d times  %s\n", failures[name], name)
	}
	if passed < len(done) {
		return errors.New("not every run passed; the logs are in " + s.dir)
	}
	return nil
}

// keepBusy loads the machine until the function that it returns is called.
func keepBusy(dir string) (end func()) {
	over := make(chan struct{})
	var busy sync.WaitGroup
	loops := 2 * runtime.NumCPU()
	runtime.GOMAXPROCS(loops + 2)
	for range loops {
		busy.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	busy.Go(func() { syncUntil(over, dir) })
	return func() {
		close(over)
		busy.Wait()
	}
}

// syncUntil writes to a file and syncs it, in a loop.
func syncUntil(over <-chan struct{}, dir string) {
	file, err := os.CreateTemp(dir, "busy-*")
	if err != nil {
		return // the busy loops are load enough
	}
	defer os.Remove(file.Name())
	defer file.Close()
	block := make([]byte, 4096)
	for {
		select {
		case <-over:
			return
		default:
		}
		if _, err := file.WriteAt(block, 0); err != nil {
			return
		}
		if err := file.Sync(); err != nil {
			return
		}
	}
}

// command returns a run that is a command of the shell's environment, with a file for the report.
func command(name string, args ...string) func(context.Context, io.Writer, string) error {
	return func(ctx context.Context, log io.Writer, report string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = append(os.Environ(), "ONCEWARD_TEST_REPORT="+report)
		return cmd.Run()
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("steady", flag.ContinueOnError)
	runs := flags.Int("n", 12, "how many `runs`")
	dir := flags.String("dir", ".steady", "the `directory` of the notes and the logs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	place, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	s := &series{
		what: "make test", commit: strings.TrimSpace(string(commit)), runs: *runs, dir: place, out: out, run: command("make", "test"),
	}
	if packages := flags.Args(); len(packages) > 0 {
		s.what = strings.Join(packages, " ")
		s.run = command("go", append([]string{"run", "./lab/progress", "run", "-timeout=30m"}, packages...)...)
	}
	return s.complete(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "steady: %v\n", err)
		os.Exit(1)
	}
}
