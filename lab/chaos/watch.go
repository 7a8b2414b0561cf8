package main

import (
	"fmt"
	"sync"
	"time"
)

// patience is how much longer than planned a stage of a run may take before the run counts as hung. It leaves room
// for a busy machine.
const patience = 2 * time.Minute

// watch knows what a run is waiting for, so that one which hangs ends and says where.
type watch struct {
	mu    sync.Mutex
	stage string
	began time.Time
	timer *time.Timer
	// busy tells what is under way, nil if that is not known.
	busy func() string
}

func newWatch() *watch { return &watch{timer: time.NewTimer(patience)} }

// await notes what the run waits for from now on, and for how long it is planned to.
func (w *watch) await(stage string, planned time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stage, w.began = stage, time.Now()
	w.timer.Reset(planned + patience)
}

// ask says who can tell what is under way.
func (w *watch) ask(busy func() string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = busy
}

// hung is the error of a run that is overdue.
func (w *watch) hung() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := fmt.Errorf("hung: waited %s for %s", time.Since(w.began).Round(time.Second), w.stage)
	if w.busy != nil {
		err = fmt.Errorf("%w; under way: %s", err, w.busy())
	}
	return err
}

// watched runs something that keeps a watch up to date, and ends with an error if it hangs.
func watched(run func(*watch) error) error {
	watch, done := newWatch(), make(chan error, 1)
	go func() { done <- run(watch) }()
	select {
	case err := <-done:
		return err
	case <-watch.timer.C:
		return watch.hung()
	}
}
