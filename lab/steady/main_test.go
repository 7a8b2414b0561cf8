package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// TestSeriesIsContinued: an interrupted series is continued with the run that was interrupted, and another commit has a series of its own.
func TestSeriesIsContinued(t *testing.T) {
	dir := t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	made := 0
	runs := func(_ context.Context, log io.Writer, report string) error {
		made++
		fmt.Fprintln(log, "a line")
		switch made {
		case 2:
			interrupt()
			return errors.New("interrupted")
		case 3:
			if err := os.WriteFile(report, []byte(`{"Seconds":1,"Failed":["p.TestA","p"]}`), 0o600); err != nil {
				return err
			}
			return errors.New("exit status 1")
		case 4:
			return errors.New("make: nothing to do")
		}
		return nil
	}
	var out strings.Builder
	s := series{what: "make test", commit: "abc", runs: 4, dir: dir, run: runs, out: &out}
	if err := s.complete(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("an interrupted series: %v", err)
	}
	if err := s.complete(t.Context()); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a series with failures: %v", err)
	}
	for _, want := range []string{
		"run 1 of 4, alone", "run 2 of 4, beside a load", "failed: p.TestA p", "make: nothing to do",
		"make test at abc: 2 of 4 runs passed", "     1 times  p.TestA",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if made != 5 {
		t.Errorf("%d runs, want 5", made)
	}
	s.commit, s.runs = "def", 1
	if err := s.complete(t.Context()); err != nil || made != 6 {
		t.Errorf("another commit: %v, %d runs", err, made)
	}
	if err := s.complete(t.Context()); err != nil || made != 6 {
		t.Errorf("a complete series: %v, %d runs", err, made)
	}
}
