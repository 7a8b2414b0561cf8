package world

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// The store and the providers go by one clock, which is not that of the nodes. What windows of time are about, the
// books of both sides, is dated by it, as it would be by clocks that agree; and a node that went by its own would be
// wrong. The clock of a provider is never behind that of the store: what happens is in a window that has not ended
// there.

// startOffset is how far the clock is off at first: the clocks of all nodes are ahead of it then, and behind it when it
// has leapt.
const startOffset = -node.Retention * 3 / 2

// providerClock is the file that the providers read their clock from.
func (w *World) providerClock() string { return filepath.Join(w.Dir, "provider-clock") }

// startClock sets the clock before a node looks at it.
func (w *World) startClock(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	if !w.Plain() {
		w.offset = startOffset
	}
	return w.setClock(ctx, w.offset)
}

// endWindow notes that all is quiet, and lets so much time pass that all windows of the comparisons have ended.
func (w *World) endWindow(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	if !w.ended.IsZero() {
		return nil
	}
	ended := time.Now().Add(w.offset)
	w.offset += node.FinalInterval + 2*node.Timing.Compare + node.Timing.Settle
	if err := w.setClock(ctx, w.offset); err != nil {
		return err
	}
	w.ended = ended
	return nil
}

// stepClock puts the store's clock off: for good by seconds in either direction or by minutes ahead, or by an hour
// back for a moment. It is never put far back for good, because what is due would then rightly wait for that long.
func (w *World) stepClock(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	switch pick(w, []string{"jitter", "ahead", "back"}) {
	case "jitter":
		w.offset += w.between(-3*time.Second, 3*time.Second)
	case "ahead":
		w.offset += w.between(time.Second, 5*time.Minute)
	case "back":
		if err := w.setClock(ctx, w.offset-time.Hour); err != nil {
			return err
		}
		pause(ctx, time.Second)
	}
	return w.setClock(ctx, w.offset)
}

// setClock puts the clock of the store and the providers off, and notes when. The caller holds the lock.
func (w *World) setClock(ctx context.Context, offset time.Duration) error {
	began := history.Now()
	setters := []func() error{
		func() error { return node.SetClock(w.providerClock(), offset) },
		func() error { return w.database.setClock(ctx, offset) },
	}
	if offset < w.set {
		slices.Reverse(setters)
	}
	var err error
	for _, set := range setters {
		if err == nil {
			err = set()
		}
	}
	w.set = offset
	clock := time.Now().Add(offset)
	w.steps = append(w.steps, history.Step{Began: began, Ended: history.Now(), Clock: clock.UnixMicro()})
	return err
}

// mostLeaps is how often the store's clock leaps in a run: other answers than those that are to expire are kept for a
// day.
const mostLeaps = 12

// leapClock puts the store's clock ahead by more than the shortest answers are kept.
func (w *World) leapClock(ctx context.Context) error {
	w.clock.Lock()
	defer w.clock.Unlock()
	if w.leaps == mostLeaps {
		return errOften
	}
	w.leaps++
	w.offset += node.Retention + w.between(time.Second, time.Minute)
	return w.setClock(ctx, w.offset)
}
