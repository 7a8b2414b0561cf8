package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
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

// progress follows the events of all packages of a batch.
type progress struct {
	out     io.Writer
	total   int
	elapsed func() time.Duration
	done    int
	failed  []failure
	// printed is the output of tests that have not passed, in the order in which they began, by package or build.
	printed map[string][]*output
	report  *report
}

// failure is a package that failed, and the last lines of its output.
type failure struct{ name, last string }

// output is what one test printed, or, without a name, the package or the build itself.
type output struct {
	test string
	text strings.Builder
}

// read follows events until there are no more. A line that is no event comes from the go command itself, and is copied.
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
		p.outputOf(e.Package, e.Test)
	case "output":
		// These lines repeat the events.
		if !strings.HasPrefix(e.Output, "=== ") {
			p.outputOf(e.Package, e.Test).text.WriteString(e.Output)
		}
	case "build-output":
		p.outputOf(e.ImportPath, "").text.WriteString(e.Output)
	case "pass", "skip", "fail":
		p.report.add(e)
		switch {
		case e.Test == "":
			p.end(e)
		case e.Action != "fail":
			p.printed[e.Package] = slices.DeleteFunc(p.printed[e.Package], func(o *output) bool { return o.test == e.Test })
		}
	}
}

// outputOf returns where the output of a test is kept. It searches from the end, because the latest tests print most.
func (p *progress) outputOf(where, test string) *output {
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

// end reports that a package is done and, if it failed, the output of its tests that did not pass.
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

// close shows all failures once more and together, each with the end of its output: a log is often cut to its end.
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

// lastLines returns the end of a text, at most 40 lines.
func lastLines(text string) string {
	const most = 40
	lines := slices.Collect(strings.Lines(text))
	return strings.Join(lines[max(0, len(lines)-most):], "")
}
