package oncewardtest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// TestingT contains the methods of a *testing.T that the kit uses.
type TestingT interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// scenarioT is the test of one run of a check: it ends with the run, and its failures become findings.
type scenarioT struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	cleanups []func()
	failures []string
}

func newScenarioT(ctx context.Context) *scenarioT {
	t := &scenarioT{}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

// Helper implements [TestingT].
func (t *scenarioT) Helper() {}

// Context implements [TestingT].
func (t *scenarioT) Context() context.Context { return t.ctx }

// Cleanup implements [TestingT].
func (t *scenarioT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Errorf implements [TestingT].
func (t *scenarioT) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

// Fatalf implements [TestingT]. It ends the goroutine, as the Fatalf of a *testing.T does.
func (t *scenarioT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// run calls f in its own goroutine, and waits until f returns or fails.
func (t *scenarioT) run(f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	<-ended
}

// end calls the cleanups, the last one first.
func (t *scenarioT) end() {
	t.cancel()
	for {
		t.mu.Lock()
		last := len(t.cleanups) - 1
		if last < 0 {
			t.mu.Unlock()
			return
		}
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		t.mu.Unlock()
		t.run(cleanup)
	}
}

// failed returns the failures.
func (t *scenarioT) failed() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failures
}
