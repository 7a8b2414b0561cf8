package phase_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store/memory"
)

// logged is a bench whose guard writes to a log.
func logged(t *testing.T) (*bench, *lockedBuffer) {
	b, log := newBench(t, memory.New()), new(lockedBuffer)
	b.reconfigure(func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	return b, log
}

// wantLines finds lines of the log, in this order and no other ones of the package.
func (b *bench) wantLines(log *lockedBuffer, want ...[]string) {
	b.Helper()
	var lines []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, `msg="phase: `) {
			lines = append(lines, line)
		}
	}
	if len(lines) != len(want) {
		b.Fatalf("M3: %d lines, want %d: %s", len(lines), len(want), log)
	}
	for i, line := range lines {
		for _, part := range want[i] {
			if !strings.Contains(line, part) {
				b.Errorf("M3: line %d is %s, want %s in it", i, line, part)
			}
		}
	}
}

var errGrant = errors.New("permission denied for table seats")

// TestAFailedStepIsLogged: the caller only gets the answer to retry, so the cause has to be in the log, each time.
func TestAFailedStepIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, log := logged(t)
		d := definition(b.local("quote", confirm), b.local("seat", func(context.Context, *order) error { return errGrant }))
		d.MaxAttempts = 3
		o := phase.Must(phase.New(d))
		for range 2 {
			b.want(b.post(o, "private"), http.StatusConflict, "in-progress")
			time.Sleep(time.Minute)
		}
		b.want(b.post(o, "private"), http.StatusInternalServerError, "outcome-unknown")
		named := `operation="POST /orders" key_hash=` + b.record("private").Hash()
		b.wantLines(log,
			[]string{"level=WARN", "step=seat", "failed_attempts=1", errGrant.Error(), named},
			[]string{"level=WARN", "step=seat", "failed_attempts=2", errGrant.Error(), named},
			[]string{"level=ERROR", "step=seat", "given up after 3 attempts: " + errGrant.Error(), named})
		if strings.Contains(log.String(), "private") {
			t.Errorf("M3: the log tells the key: %s", log)
		}
	})
}

// TestOtherFailuresOfAttemptsAreLogged: a panic, data that cannot be stored, and an operation of another version. What
// ends with an answer is none.
func TestOtherFailuresOfAttemptsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, log := logged(t)
		o := b.define(b.local("seat", func(context.Context, *order) error { panic("full") }))
		func() {
			defer func() { _ = recover() }()
			b.post(o, "panics")
		}()
		b.wantLines(log, []string{"level=WARN", "step=seat", "a step panicked"})
	})
	synctest.Test(t, func(t *testing.T) {
		b, log := logged(t)
		d := definition(b.local("seat", takeSeat))
		d.MaxData = 1
		b.want(b.post(phase.Must(phase.New(d)), "k"), http.StatusServiceUnavailable, "not-executed")
		b.wantLines(log, []string{"level=WARN", "step=seat", "the limit is 1"})
	})
	synctest.Test(t, func(t *testing.T) {
		b, log := logged(t)
		fails := b.local("seat", func(context.Context, *order) error { return errDown })
		b.post(b.define(fails), "k")
		time.Sleep(time.Minute)
		b.want(b.post(b.define(b.local("desk", takeSeat)), "k"), http.StatusConflict, "in-progress")
		b.wantLines(log, []string{"step=seat"}, []string{"level=WARN", "not for this node"})
	})
	synctest.Test(t, func(t *testing.T) {
		b, log := logged(t)
		o := b.define(b.local("seat", func(context.Context, *order) error {
			return phase.Finish(phase.Answer{Status: http.StatusConflict, Body: []byte("taken")})
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "taken")
		b.wantLines(log)
	})
}
