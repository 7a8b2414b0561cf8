package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestProgressShowsFailuresWhole(t *testing.T) {
	const events = `{"Action":"start","Package":"example.com/a"}
{"Action":"output","Package":"example.com/a","Test":"TestQuiet","Output":"=== RUN   TestQuiet\n"}
{"Action":"pass","Package":"example.com/a","Test":"TestQuiet","Elapsed":0.1}
{"Action":"pass","Package":"example.com/a","Elapsed":0.25}
go: a warning of the go command
{"Action":"run","Package":"example.com/b","Test":"TestBroken"}
{"Action":"output","Package":"example.com/b","Test":"TestBroken","Output":"=== RUN   TestBroken\n"}
{"Action":"run","Package":"example.com/b","Test":"TestGood"}
{"Action":"output","Package":"example.com/b","Test":"TestGood","Output":"    b_test.go:9: good\n"}
{"Action":"output","Package":"example.com/b","Test":"TestBroken","Output":"    b_test.go:7: broken\n"}
{"Action":"pass","Package":"example.com/b","Test":"TestGood","Elapsed":0.1}
{"Action":"fail","Package":"example.com/b","Test":"TestBroken","Elapsed":0.1}
{"Action":"output","Package":"example.com/b","Output":"FAIL\n"}
{"Action":"fail","Package":"example.com/b","Elapsed":1.5}
{"ImportPath":"example.com/c [example.com/c.test]","Action":"build-output","Output":"c.go:1: undefined: x\n"}
{"Action":"fail","Package":"example.com/c","FailedBuild":"example.com/c [example.com/c.test]"}
{"Action":"skip","Package":"example.com/d"}
`
	const want = `1/4 ok           0.2s  example.com/a (3s so far)
go: a warning of the go command
    b_test.go:7: broken
FAIL
2/4 FAIL         1.5s  example.com/b (3s so far)
c.go:1: undefined: x
3/4 FAIL         0.0s  example.com/c (3s so far)
4/4 no tests     0.0s  example.com/d (3s so far)
the end of example.com/b:
    b_test.go:7: broken
FAIL
the end of example.com/c:
c.go:1: undefined: x
failed: 2 of 4 packages
  example.com/b
  example.com/c
`
	var out strings.Builder
	p := &progress{
		out: &out, total: 4, elapsed: func() time.Duration { return 3 * time.Second },
		printed: make(map[string][]*output), report: new(report),
	}
	if err := p.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	p.close()
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

// TestLastLines: of a package that printed much, the end is shown again, where a test says why it failed.
func TestLastLines(t *testing.T) {
	text := strings.Repeat("a line\n", 50) + "why\n"
	if want := strings.Repeat("a line\n", 39) + "why\n"; lastLines(text) != want {
		t.Errorf("got:\n%swant:\n%s", lastLines(text), want)
	}
	if lastLines("why\n") != "why\n" || lastLines("") != "" {
		t.Error("what is short is not shown whole")
	}
}

// TestProgressRunsTests runs a package that does not build, and one that passes.
func TestProgressRunsTests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report")
	t.Setenv(reportVariable, file)
	var out strings.Builder
	if err := newSession(&out).run(t.Context(), []string{"run", "-count=1", "./testdata/fine", "./testdata/broken"}); err == nil {
		t.Error("a package that does not build is no failure")
	}
	for _, want := range []string{"ok ", "undefined: notThere", "failed: 1 of 2 packages", "the slowest:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"Failed":["github.com/onceward/onceward/lab/progress/testdata/broken"]`) {
		t.Errorf("the report is %s, %v", text, err)
	}
}

// TestSkippedEverywhere: a test counts as run if one batch ran it, however it ended.
func TestSkippedEverywhere(t *testing.T) {
	var r report
	for _, e := range []event{
		{Action: "skip", Test: "TestA"},
		{Action: "skip", Test: "TestB"},
		{Action: "skip", Test: "TestC"},
		{Action: "pass", Test: "TestA"},
		{Action: "fail", Test: "TestC"},
		{Action: "skip", Test: "TestA"},
	} {
		e.Package = "p"
		r.add(&e)
	}
	if got := r.skippedEverywhere(); !slices.Equal(got, []string{"p.TestB"}) {
		t.Errorf("skipped: %v", got)
	}
	if !slices.Equal(r.failed, []string{"p.TestC"}) {
		t.Errorf("failed: %v", r.failed)
	}
}
