package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/tiered"
)

// TestInterleavings lets two nodes that share a front reserve, complete, bust, wait and lose the front in any order, while
// fills are on their way for any time, and arrive in any order.
func TestInterleavings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { // a bubble has no deadline to ask for
			w := newWalk(t)
			defer w.close()
			rt.Repeat(map[string]func(*rapid.T){
				"retry":          w.retry,
				"retry again":    w.retry,
				"bust":           w.bust,
				"wait":           func(rt *rapid.T) { time.Sleep(drawWait(rt)) },
				"a fill comes":   w.arrive,
				"down or up":     func(*rapid.T) { w.front.set(func(f *faultyFront) { f.down = !f.down }) },
				"snapshot":       func(*rapid.T) { w.snapshot = w.front.Snapshot() },
				"restore":        w.restore,
				"hold or let go": func(*rapid.T) { w.front.set(func(f *faultyFront) { f.holds = !f.holds }) },
			})
		})
	})
}

const (
	walkAge       = 10 * time.Second
	walkRetention = 25 * time.Second
)

// walk is one sequence, and what is known of the truth.
type walk struct {
	*world
	nodes    [2]*tiered.Store
	snapshot *tiered.Memory
	// answers are all that were ever stored, oldest first.
	answers []*answered
	// forgot is set once the front has lost its tombstones.
	forgot bool
}

// answered is an answer that was stored, and when it stopped being true.
type answered struct {
	body  string
	until time.Time // its expiry, or its bust
	// seenUntil is the time in the bust's error, if it could not reach the front.
	seenUntil time.Time
}

func newWalk(t *testing.T) *walk {
	w := &walk{world: newWorld(t, tiered.Config{MaxAge: walkAge})}
	other, err := tiered.New(w.durable, w.front, tiered.Config{MaxAge: walkAge, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	w.nodes = [2]*tiered.Store{w.store, other}
	return w
}

func (w *walk) close() {
	for _, node := range w.nodes {
		_ = node.Close()
	}
}

func drawWait(rt *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{
		time.Microsecond, 300 * time.Millisecond, time.Second, 6 * time.Second, walkAge, walkRetention,
	}).Draw(rt, "wait")
}

func (w *walk) drawNode(rt *rapid.T) *tiered.Store {
	return rapid.SampledFrom(w.nodes[:]).Draw(rt, "node")
}

// retry reserves, and completes what it may execute. It must execute exactly if the durable store has no answer, unless
// an old one can still be seen.
func (w *walk) retry(rt *rapid.T) {
	node := w.drawNode(rt)
	r := request(key)
	r.Retention = walkRetention
	v, err := node.Reserve(context.Background(), r)
	if err != nil {
		rt.Fatal(err)
	}
	synctest.Wait()
	now := time.Now()
	switch v.Decision {
	case store.DecisionExecute:
		if last := w.last(); last != nil && now.Before(last.until) {
			rt.Fatalf("%s was executed a second time", last.body)
		}
		body := fmt.Sprint("answer ", len(w.answers))
		done := &store.Completion{Response: store.Response{Status: 200, Body: []byte(body)}}
		expires, err := node.Complete(context.Background(), store.Claim{ID: key, Attempt: v.Record.Attempt}, done)
		if err != nil {
			rt.Fatal(err)
		}
		w.answers = append(w.answers, &answered{body: body, until: expires})
	case store.DecisionReplay:
		w.judge(rt, string(v.Record.Response.Body), now)
		if !now.Before(v.Record.ExpiresAt) {
			rt.Fatalf("at %s an answer was replayed that expired at %s", now, v.Record.ExpiresAt)
		}
	default:
		rt.Fatalf("a retry got %s", v.Decision)
	}
}

// judge checks that an answer is true, or was MaxAge ago and could not be taken back from the front.
func (w *walk) judge(rt *rapid.T, body string, now time.Time) {
	i := slices.IndexFunc(w.answers, func(a *answered) bool { return a.body == body })
	a := w.answers[i]
	switch {
	case now.Before(a.until):
	case now.Sub(a.until) >= walkAge:
		rt.Fatalf("%s was replayed %s after it had ended", body, now.Sub(a.until))
	case !now.Before(a.seenUntil) && !w.forgot:
		rt.Fatalf("%s was replayed %s after it was busted, which the front was told", body, now.Sub(a.until))
	}
}

func (w *walk) last() *answered {
	if len(w.answers) == 0 {
		return nil
	}
	return w.answers[len(w.answers)-1]
}

func (w *walk) bust(rt *rapid.T) {
	err := w.drawNode(rt).Bust(context.Background(), key, false)
	var stale *store.StaleError
	switch last := w.last(); {
	case err == nil:
		last.until = minTime(last.until, time.Now())
	case errors.As(err, &stale):
		last.until, last.seenUntil = minTime(last.until, time.Now()), stale.Until
	case !errors.Is(err, store.ErrNotFound):
		rt.Fatal(err)
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// arrive lets one of the fills arrive that are on their way.
func (w *walk) arrive(rt *rapid.T) {
	w.front.mu.Lock()
	defer w.front.mu.Unlock()
	if len(w.front.held) > 0 {
		i := rapid.IntRange(0, len(w.front.held)-1).Draw(rt, "fill")
		w.front.held[i]()
		w.front.held = slices.Delete(w.front.held, i, i+1)
	}
}

// restore puts the front back to an earlier state, or to none.
func (w *walk) restore(*rapid.T) {
	w.forgot = true
	if w.snapshot == nil {
		w.snapshot = tiered.NewMemory(tiered.MemoryConfig{})
	}
	w.front.Restore(w.snapshot)
}
