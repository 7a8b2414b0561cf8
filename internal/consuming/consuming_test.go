package consuming_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
	"github.com/onceward/onceward/store"
)

// However large the numbers, the pause neither shrinks nor exceeds its bounds.
func TestBackoff(t *testing.T) {
	t.Parallel()
	const longest = time.Duration(math.MaxInt64)
	for _, each := range []struct {
		minimum, maximum time.Duration
		pauses           int
		full             time.Duration
	}{
		{time.Second, time.Minute, -1, time.Second},
		{time.Second, time.Minute, 0, time.Second},
		{time.Second, time.Minute, 3, 8 * time.Second},
		{time.Second, time.Minute, 6, time.Minute},
		{time.Second, time.Minute, 30, time.Minute},
		{time.Second, time.Minute, 34, time.Minute},
		{time.Second, time.Minute, math.MaxInt, time.Minute},
		{10 * time.Minute, time.Hour, 29, time.Hour},
		{24 * time.Hour, longest, 16, 24 * time.Hour << 16},
		{24 * time.Hour, longest, 17, longest},
		{1000 * time.Hour, 2000 * time.Hour, 12, 2000 * time.Hour},
		{longest, longest, 1, longest},
		{1, longest, 62, 1 << 62},
		{1, longest, 63, longest},
		{time.Minute, time.Second, 0, time.Second},
		{0, 0, 5, 0},
	} {
		for range 100 {
			got := consuming.Backoff(each.minimum, each.maximum, each.pauses)
			if got < each.full/2 || got > each.full {
				t.Errorf("%+v: %v", each, got)
			}
		}
	}
}

func TestGrace(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	applying, cancel := consuming.Grace(ctx, 20*time.Millisecond)
	defer cancel()
	begun := time.Now()
	end()
	<-applying.Done()
	if took := time.Since(begun); took < 20*time.Millisecond {
		t.Errorf("it went on for %v", took)
	}
}

func TestIDsAreChecked(t *testing.T) {
	t.Parallel()
	for id, good := range map[string]bool{"": false, "a": true, strings.Repeat("x", inbox.MaxName): true, strings.Repeat("x", inbox.MaxName+1): false} {
		if err := consuming.CheckID(id); (err == nil) != good {
			t.Errorf("%d bytes: %v", len(id), err)
		}
	}
}

func TestPanicsAreErrors(t *testing.T) {
	t.Parallel()
	if err := consuming.Guard(func() error { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("err = %v", err)
	}
	broken := errors.New("broken")
	if err := consuming.Guard(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
}

func TestWhichErrorsCount(t *testing.T) {
	t.Parallel()
	if consuming.Counts(fmt.Errorf("begin: %w", store.ErrUnavailable)) || !consuming.Counts(errors.New("broken")) {
		t.Error("only what is the message's own counts")
	}
}

func TestFailuresAreCountedApart(t *testing.T) {
	t.Parallel()
	var f consuming.Failures[string]
	expect := func(key string, counts bool, wantTries, wantPauses int) {
		t.Helper()
		if tries, pauses := f.Add(key, counts); tries != wantTries || pauses != wantPauses {
			t.Errorf("%d tries and %d pauses, want %d and %d", tries, pauses, wantTries, wantPauses)
		}
	}
	expect("a", true, 1, 0)
	expect("a", false, 1, 1)
	expect("a", true, 2, 2)
	expect("b", false, 0, 0)
	f.Forget("a")
	expect("a", true, 1, 0)
	for i := range 10_000 {
		f.Add(fmt.Sprint(i), true)
	}
	expect("b", true, 1, 0) // forgotten, since there were too many
}
