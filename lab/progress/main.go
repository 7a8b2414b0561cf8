// Command progress runs the tests of packages and says how far they are: a line for each package that is done, with its
// place among all, and everything that a package printed if it failed. `go test` alone is silent for minutes where a
// package is slow.
//
//	progress [flags and patterns of go test]
//
// GO names the go command.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
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

// event is one line of `go test -json`: see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// progress follows the events of all packages.
type progress struct {
	out     io.Writer
	total   int
	elapsed func() time.Duration
	done    int
	failed  []failure
	// printed is what tests printed that have not passed, in the order in which they began, by package or build.
	printed map[string][]*output
}

// failure is a package that failed, and the last lines of what it printed.
type failure struct{ name, last string }

// output is what one test printed, or, without a name, the package or the build itself.
type output struct {
	test string
	text strings.Builder
}

// read follows events until there are no more. What is not an event is passed on: it comes from the go command itself.
func (p *progress) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case json.Unmarshal([]byte(line), &e) == nil:
			p.follow(&e)
		default:
			fmt.Fprint(p.out, line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *progress) follow(e *event) {
	switch e.Action {
	case "run":
		p.of(e.Package, e.Test)
	case "output":
		// These lines say what the events say.
		if !strings.HasPrefix(e.Output, "=== ") {
			p.of(e.Package, e.Test).text.WriteString(e.Output)
		}
	case "build-output":
		p.of(e.ImportPath, "").text.WriteString(e.Output)
	case "pass", "skip", "fail":
		switch {
		case e.Test == "":
			p.end(e)
		case e.Action != "fail":
			p.printed[e.Package] = slices.DeleteFunc(p.printed[e.Package], func(o *output) bool { return o.test == e.Test })
		}
	}
}

// of returns where the output of a test is kept. The latest ones are asked for the most.
func (p *progress) of(where, test string) *output {
	all := p.printed[where]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].test == test {
			return all[i]
		}
	}
	o := &output{test: test}
	p.printed[where] = append(all, o)
	return o
}

// end says that a package is done and, if it failed, what its tests printed that did not pass.
func (p *progress) end(e *event) {
	p.done++
	word := map[string]string{"pass": "ok", "skip": "no tests", "fail": "FAIL"}[e.Action]
	if e.Action == "fail" {
		var all strings.Builder
		for _, o := range append(p.printed[e.FailedBuild], p.printed[e.Package]...) {
			all.WriteString(o.text.String())
		}
		fmt.Fprint(p.out, all.String())
		p.failed = append(p.failed, failure{e.Package, lastLines(all.String())})
	}
	delete(p.printed, e.Package)
	fmt.Fprintf(p.out, "%*d/%d %-8s %7.1fs  %s (%s so far)\n", len(fmt.Sprint(p.total)), p.done, p.total,
		word, e.Elapsed, e.Package, p.elapsed().Round(time.Second))
}

// close says what failed, once more and together, with the end of its output: where the packages that were tested after
// it have much to say, the end is all that is kept.
func (p *progress) close() {
	if len(p.failed) == 0 {
		return
	}
	for _, f := range p.failed {
		fmt.Fprintf(p.out, "the end of %s:\n%s", f.name, f.last)
	}
	fmt.Fprintf(p.out, "failed: %d of %d packages\n", len(p.failed), p.total)
	for _, f := range p.failed {
		fmt.Fprintf(p.out, "  %s\n", f.name)
	}
}

// lastLines is the end of a text, at most 40 lines.
func lastLines(text string) string {
	const most = 40
	lines := slices.Collect(strings.Lines(text))
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

func run(ctx context.Context, args []string, out io.Writer) error {
	goCommand := cmp.Or(os.Getenv("GO"), "go")
	total, err := count(ctx, goCommand, args)
	if err != nil {
		return err
	}
	started := time.Now()
	p := &progress{
		out: out, total: total, elapsed: func() time.Duration { return time.Since(started) },
		printed: make(map[string][]*output),
	}
	cmd := exec.CommandContext(ctx, goCommand, append([]string{"test", "-json", oneMore()}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	templates, err := os.MkdirTemp("", "onceward-templates-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(templates)
	cmd.Env = append(os.Environ(), servers.TemplatesVariable+"="+templates)
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

// oneMore is the flag that lets one package more be tested or built at once than there are processors: the tests that
// take longest wait much of their time, for servers, leases and processes that start. A -p among the arguments wins.
func oneMore() string { return fmt.Sprintf("-p=%d", runtime.GOMAXPROCS(0)+1) }

// count asks the go command how many packages the patterns match: everything that is not a flag with its value behind
// "=".
func count(ctx context.Context, goCommand string, args []string) (int, error) {
	list := []string{"list"}
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			list = append(list, arg)
		}
	}
	cmd := exec.CommandContext(ctx, goCommand, list...)
	cmd.Stderr = os.Stderr
	packages, err := cmd.Output()
	return strings.Count(string(packages), "\n"), err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "progress: %v\n", err)
		os.Exit(1)
	}
}
