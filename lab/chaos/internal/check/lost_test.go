package check

import (
	"testing"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// TestTrace: a violation is excused only by a write that was acknowledged by the primary that was lost, in the time in
// which its replica may not have had it.
func TestTrace(t *testing.T) {
	t.Parallel()
	failOver := history.FailOver{Began: 100, Ended: 200, Slots: [][2]int{{0, 5}, {9, 9}}}
	complete := history.Write{Scope: "s", Key: "k", Call: history.CallComplete, Began: 150, Ended: 160, Accepted: true}
	with := func(change func(*history.Write)) history.Write {
		w := complete
		change(&w)
		return w
	}
	for name, c := range map[string]struct {
		write  history.Write
		slot   int
		traced bool
	}{
		"in time":             {complete, 9, true},
		"under way at begin":  {with(func(w *history.Write) { w.Began, w.Ended = 90, 110 }), 0, true},
		"before":              {with(func(w *history.Write) { w.Began, w.Ended = 80, 99 }), 0, false},
		"after":               {with(func(w *history.Write) { w.Began, w.Ended = 201, 210 }), 0, false},
		"on another shard":    {complete, 7, false},
		"not acknowledged":    {with(func(w *history.Write) { w.Accepted = false }), 9, false},
		"never came back":     {with(func(w *history.Write) { w.Ended = 0 }), 9, false},
		"of another":          {with(func(w *history.Write) { w.Key = "other" }), 9, false},
		"a grant":             {with(func(w *history.Write) { w.Call, w.Granted = history.CallReserve, true }), 9, true},
		"a reservation alone": {with(func(w *history.Write) { w.Call = history.CallReserve }), 9, false},
	} {
		run := &history.Run{
			FailOvers: []history.FailOver{failOver}, Writes: []history.Write{c.write},
			Slots: []history.Slot{{Scope: "s", Key: "k", Slot: c.slot}, {Scope: "s", Key: "other", Slot: 9}},
		}
		broken := []Violation{{Invariant: "I1", Scope: "s", Key: "k"}, {Invariant: "I3", Scope: "s", Key: "k"}}
		lost, rest := Trace(run, broken)
		if c.traced && (len(rest) != 0 || lost.Operations != 1 || lost.AtRisk != 1 || len(lost.Violations) != 2) ||
			!c.traced && (len(rest) != 2 || lost.Operations != 0) {
			t.Errorf("%s: lost %+v, and %v is left", name, lost, rest)
		}
	}
}

// TestTraceOfWhatWasShown: a write of which no one was told can be lost as well after another request was shown it, by the
// same primary and in the same time.
func TestTraceOfWhatWasShown(t *testing.T) {
	t.Parallel()
	const failOverBegan = int64(1000 * time.Second)
	at := func(n int64) int64 { return failOverBegan - 100 + n }
	made := history.Write{Scope: "s", Key: "k", Call: history.CallReserve, Began: at(150), Ended: at(190), Err: "EOF"}
	shown := history.Write{
		Scope: "s", Key: "k", Call: history.CallReserve, Began: at(160), Ended: at(170), Accepted: true, Attempt: 7,
	}
	for name, c := range map[string]struct {
		change func(made, shown *history.Write)
		traced bool
	}{
		"in time":                  {func(_, _ *history.Write) {}, true},
		"its node died":            {func(made, _ *history.Write) { made.Ended, made.Err = 0, "" }, true},
		"shown before it was made": {func(_, shown *history.Write) { shown.Began, shown.Ended = at(110), at(140) }, false},
		"shown by the next one":    {func(_, shown *history.Write) { shown.Began, shown.Ended = at(210), at(220) }, false},
		"made long before":         {func(made, _ *history.Write) { made.Began, made.Ended = at(50), at(60) }, false},
		"nothing was shown":        {func(_, shown *history.Write) { shown.Attempt = 0 }, false},
		"it was refused":           {func(made, _ *history.Write) { made.Call, made.Err = history.CallComplete, "complete refused: 8" }, false},
		"of the attempt shown": {func(made, _ *history.Write) {
			made.Call, made.Attempt = history.CallComplete, 7
		}, true},
		"of another attempt": {func(made, _ *history.Write) {
			made.Call, made.Attempt = history.CallComplete, 6
		}, false},
		"its node died long before": {func(made, _ *history.Write) {
			made.Began, made.Ended, made.Err = failOverBegan-int64(20*time.Second), 0, ""
		}, false},
		"its node died shortly before": {func(made, _ *history.Write) {
			made.Began, made.Ended, made.Err = failOverBegan-int64(10*time.Second), 0, ""
		}, true},
	} {
		a, b := made, shown
		c.change(&a, &b)
		run := &history.Run{
			FailOvers: []history.FailOver{{Began: at(100), Ended: at(200), Slots: [][2]int{{9, 9}}}},
			Writes:    []history.Write{a, b}, Slots: []history.Slot{{Scope: "s", Key: "k", Slot: 9}},
		}
		_, rest := Trace(run, []Violation{{Invariant: "I11", Scope: "s", Key: "k"}})
		if traced := len(rest) == 0; traced != c.traced {
			t.Errorf("%s: it is traced: %t, want %t", name, traced, c.traced)
		}
	}
}

// TestTraceOfAnAttemptThatWasSafe: a reservation of which no one was told has not made the attempt that was granted long
// before; and what one fail-over put at risk does not excuse what was shown before another.
func TestTraceOfAnAttemptThatWasSafe(t *testing.T) {
	t.Parallel()
	reserve := func(began, ended int64, change func(*history.Write)) history.Write {
		w := history.Write{Scope: "s", Key: "k", Call: history.CallReserve, Began: began, Ended: ended}
		change(&w)
		return w
	}
	granted := func(w *history.Write) { w.Accepted, w.Granted, w.Attempt = true, true, 7 }
	failed := func(w *history.Write) { w.Err = "EOF" }
	shown := func(w *history.Write) { w.Accepted, w.Attempt = true, 7 }
	for name, c := range map[string]struct {
		writes []history.Write
		traced bool
	}{
		"granted before": {[]history.Write{
			reserve(10, 20, granted),
			reserve(150, 190, failed),
			reserve(160, 170, shown),
		}, false},
		"granted again": {[]history.Write{
			reserve(150, 190, failed),
			reserve(160, 170, shown),
			reserve(250, 260, granted),
		}, true},
		"another fail-over": {[]history.Write{reserve(150, 190, failed), reserve(350, 360, shown)}, false},
	} {
		run := &history.Run{
			FailOvers: []history.FailOver{
				{Began: 100, Ended: 200, Slots: [][2]int{{9, 9}}}, {Began: 300, Ended: 400, Slots: [][2]int{{9, 9}}},
			},
			Writes: c.writes, Slots: []history.Slot{{Scope: "s", Key: "k", Slot: 9}},
		}
		_, rest := Trace(run, []Violation{{Invariant: "I1", Scope: "s", Key: "k"}})
		if traced := len(rest) == 0; traced != c.traced {
			t.Errorf("%s: it is traced: %t, want %t", name, traced, c.traced)
		}
	}
}

// TestNoFailOverIsNoSuccess: a run in which no replica took over fails, also if nothing was broken; and what is about no
// operation is not excused.
func TestNoFailOverIsNoSuccess(t *testing.T) {
	t.Parallel()
	if lost, rest := Trace(&history.Run{}, nil); len(rest) != 1 || rest[0].Invariant != "I14" || lost.FailOvers != 0 {
		t.Errorf("got %+v and %v, want one violation of I14", lost, rest)
	}
	run := &history.Run{FailOvers: []history.FailOver{{Began: 1, Ended: 2, Slots: [][2]int{{0, 16383}}}}}
	if _, rest := Trace(run, []Violation{{Invariant: "I13", Detail: "not quiet"}}); len(rest) != 1 {
		t.Errorf("%v is left, want what is about the whole run", rest)
	}
}
