// Command progress runs the tests of packages and shows how far they are: a line for each package that is done, with its
// place among all, and everything that a package printed if it failed. `go test` alone is silent for minutes where a
// package is slow.
//
//	progress test                 the tests that every change has to pass
//	progress quick                the part of these tests that needs no server
//	progress all                  all tests; one that no batch runs is a failure
//	progress packages TIER        prints the packages of a tier
//	progress run FLAGS PATTERNS   the tests of these packages
//
// A server that several packages use is started once. GO names the go command, TESTFLAGS has further flags of `go test`
// in the form -flag=value, and ONCEWARD_TEST_REPORT names a file that gets the failed tests: see lab/steady.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/servers"
)

// session is one call of this program.
type session struct {
	goCommand string
	flags     []string
	out       io.Writer
	started   time.Time
	environ   []string
	report    report
}

func newSession(out io.Writer) *session {
	return &session{
		goCommand: cmp.Or(os.Getenv("GO"), "go"), flags: strings.Fields(os.Getenv("TESTFLAGS")), out: out, started: time.Now(),
		// A program under the race detector waits at its end for races that are still to come, by default for a second.
		environ: []string{"GORACE=" + cmp.Or(os.Getenv("GORACE"), "atexit_sleep_ms=50")},
	}
}

// run does what the arguments ask for.
func (s *session) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("name what to run: test, quick, all, packages or run")
	}
	switch args[0] {
	case "packages":
		return s.printPackages(ctx, args[1:])
	case "run":
		return s.runPatterns(ctx, args[1:])
	default:
		return s.runTier(ctx, args[0])
	}
}

// printPackages prints the import paths of all packages of a tier, also the ones without tests.
func (s *session) printPackages(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("name one tier")
	}
	cmd := exec.CommandContext(ctx, s.goCommand, "list", tags, "work")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	for path := range strings.Lines(string(text)) {
		path = strings.TrimSpace(path)
		if args[0] == tierAll || !isUnder(pkg{ImportPath: path}, nightly) {
			fmt.Fprintln(s.out, path)
		}
	}
	return err
}

func (s *session) runTier(ctx context.Context, tier string) error {
	all, err := list(ctx, s.goCommand, []string{tags}, []string{"work"})
	if err != nil {
		return err
	}
	batches, err := batchesOf(tier, all)
	if err != nil {
		return err
	}
	if tier == tierAll {
		s.environ = append(s.environ, "ONCEWARD_TEST_ALL=1")
	}
	return s.runBatches(ctx, batches, tier == tierAll)
}

// runPatterns runs the tests of some packages, under the race detector where make test has it.
func (s *session) runPatterns(ctx context.Context, args []string) error {
	isFlag := func(arg string) bool { return strings.HasPrefix(arg, "-") }
	patterns := slices.DeleteFunc(slices.Clone(args), isFlag)
	found, err := list(ctx, s.goCommand, []string{tags}, patterns)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no package of %s has tests", strings.Join(patterns, " "))
	}
	flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return !isFlag(arg) })
	var batches []batch
	for _, race := range []bool{false, true} {
		chosen := slices.DeleteFunc(slices.Clone(found), func(p pkg) bool { return race != isUnder(p, racing) })
		if len(chosen) > 0 {
			batches = append(batches, batch{name: "tests", packages: chosen, race: race, flags: flags})
		}
	}
	return s.runBatches(ctx, batches, false)
}

// runBatches runs one batch after the other, also after a batch that failed. If nothing may be left out, a test that
// was skipped wherever it ran is a failure.
func (s *session) runBatches(ctx context.Context, batches []batch, whole bool) (err error) {
	defer func() { err = errors.Join(err, servers.CloseAll()) }()
	if err := s.shareServers(ctx, batches); err != nil {
		return err
	}
	failed := false
	for _, b := range batches {
		fmt.Fprintf(s.out, "-- %s: %d packages\n", b.name, len(b.packages))
		failed = s.runBatch(ctx, b) != nil || failed
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	skipped := s.report.skippedEverywhere()
	s.report.print(s.out, time.Since(s.started))
	if path := os.Getenv(reportVariable); path != "" {
		if err := s.report.save(path, time.Since(s.started)); err != nil {
			return err
		}
	}
	switch {
	case failed:
		return errors.New("not all tests passed")
	case whole && len(skipped) > 0:
		return fmt.Errorf("%d tests were skipped, so that nothing runs them:\n  %s", len(skipped), strings.Join(skipped, "\n  "))
	case len(skipped) > 0:
		fmt.Fprintf(s.out, "%d tests were left to make test-all\n", len(skipped))
	}
	return nil
}

// shareServers starts the servers that several packages use, and makes a place for what they copy servers from.
func (s *session) shareServers(ctx context.Context, batches []batch) error {
	need := 0
	for _, b := range batches {
		for _, p := range b.packages {
			if p.needsServer() {
				need++
			}
		}
	}
	if need < 2 {
		return nil
	}
	shared, err := servers.StartShared(ctx)
	s.environ = append(s.environ, shared...)
	return err
}

func (s *session) runBatch(ctx context.Context, b batch) error {
	p := &progress{
		out: s.out, total: len(b.packages), elapsed: func() time.Duration { return time.Since(s.started) },
		printed: make(map[string][]*output), report: &s.report,
	}
	// The compiler and the linker spend a fifth of their time on collecting garbage, unless they may use more memory. The
	// tests run without that setting.
	args := append([]string{"test", "-json", "-exec=env -u GOGC", oneMore()}, b.arguments(s.flags)...)
	cmd := exec.CommandContext(ctx, s.goCommand, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	templates, err := os.MkdirTemp("", "onceward-templates-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(templates)
	cmd.Env = append(append(os.Environ(), s.environ...), "GOGC=400", servers.TemplatesVariable+"="+templates)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := p.read(events); err != nil {
		return err
	}
	p.close()
	return cmd.Wait()
}

// oneMore returns the flag that lets one package more be tested or built at once than there are processors: the tests
// that take longest wait much of their time, for servers, leases and processes that start. A -p among the flags wins.
func oneMore() string { return fmt.Sprintf("-p=%d", runtime.GOMAXPROCS(0)+1) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := newSession(os.Stdout).run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "progress: %v\n", err)
		os.Exit(1)
	}
}
