package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// reportVariable names the environment variable that holds the file for the outcome.
const reportVariable = "ONCEWARD_TEST_REPORT"

// report is the outcome of all batches.
type report struct {
	packages []timing
	failed   []string
	// ran has every test, and whether at least one batch ran it.
	ran map[string]bool
}

// timing is how long a package took.
type timing struct {
	name    string
	seconds float64
}

// add takes in the end of a test or a package.
func (r *report) add(e *event) {
	if e.Test == "" {
		r.packages = append(r.packages, timing{e.Package, e.Elapsed})
		if e.Action == "fail" {
			r.failed = append(r.failed, e.Package)
		}
		return
	}
	if r.ran == nil {
		r.ran = make(map[string]bool)
	}
	name := e.Package + "." + e.Test
	r.ran[name] = r.ran[name] || e.Action != "skip"
	if e.Action == "fail" {
		r.failed = append(r.failed, name)
	}
}

// skippedEverywhere returns the tests that no batch ran.
func (r *report) skippedEverywhere() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.ran)) {
		if !r.ran[name] {
			names = append(names, name)
		}
	}
	return names
}

// print shows the slowest packages.
func (r *report) print(out io.Writer, took time.Duration) {
	const most = 10
	slices.SortStableFunc(r.packages, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintf(out, "%d packages in %s; the slowest:\n", len(r.packages), took.Round(time.Second))
	for _, p := range r.packages[:min(most, len(r.packages))] {
		fmt.Fprintf(out, "%8.1fs  %s\n", p.seconds, p.name)
	}
}

// save writes how long all took, and the names of the tests and packages that failed.
func (r *report) save(path string, took time.Duration) error {
	text, err := json.Marshal(struct {
		Seconds float64
		Failed  []string
	}{took.Seconds(), r.failed})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
