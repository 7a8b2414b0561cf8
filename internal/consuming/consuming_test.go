package consuming_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
	"github.com/onceward/onceward/store"
)

func TestGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		applying, cancel := consuming.Grace(ctx, time.Minute)
		defer cancel()
		begun := time.Now()
		end()
		<-applying.Done()
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it continued for %v", took)
		}
	})
}

func TestEventIDsAreChecked(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("x", inbox.MaxName)
	for id, good := range map[string]bool{"": false, "a": true, fits: true, fits + "x": false} {
		got, err := consuming.EventID(func(m string) (string, error) { return m, nil }, id)
		if (err == nil) != good || good && got != id {
			t.Errorf("%d bytes: %q, %v", len(id), got, err)
		}
	}
	broken := errors.New("broken")
	if _, err := consuming.EventID(func(string) (string, error) { return "a", broken }, ""); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
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
	expect := func(key string, counts bool, wantTries, wantFailures int) {
		t.Helper()
		if tries, failures := f.Add(key, counts); tries != wantTries || failures != wantFailures {
			t.Errorf("%d tries and %d failures, want %d and %d", tries, failures, wantTries, wantFailures)
		}
	}
	expect("a", true, 1, 1)
	expect("a", false, 1, 2)
	expect("a", true, 2, 3)
	expect("b", false, 0, 1)
	f.Forget("a")
	expect("a", true, 1, 1)
	for i := range 10_000 {
		f.Add(fmt.Sprint(i), true)
	}
	expect("b", true, 1, 1) // forgotten, since there were too many
}
