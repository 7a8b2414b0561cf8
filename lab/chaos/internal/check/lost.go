package check

import (
	"slices"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// Lost is what a store has forgotten that acknowledges writes before its replicas have them.
type Lost struct {
	// FailOvers is how often a replica took over.
	FailOvers int
	// AtRisk are the operations of which a write was acknowledged, or shown to another request, that the replica which
	// took over may not have had, and Operations those among them of which a promise was broken.
	AtRisk, Operations int
	// Violations are what was broken of those.
	Violations []Violation
}

// Trace takes apart what a run broke: what follows from a fail-over, and the rest, which nothing excuses. A violation
// follows from one if it is about an operation of which a write was acknowledged by the primary that was lost, or shown
// to another request, after the last moment of which it is known that its replica had everything. A run without a
// fail-over shows nothing.
func Trace(run *history.Run, violations []Violation) (lost Lost, rest []Violation) {
	lost.FailOvers = len(run.FailOvers)
	if lost.FailOvers == 0 {
		rest = append(rest, Violation{Invariant: "I14", Detail: "no replica took over: the run proves nothing about it"})
	}
	risky := atRisk(run)
	lost.AtRisk = len(risky)
	broken := make(map[id]bool)
	for _, v := range violations {
		o := id{v.Scope, v.Key}
		if !risky[o] || v.Invariant == "I9" { // no lost write shows the data of another scope
			rest = append(rest, v)
			continue
		}
		broken[o] = true
		lost.Violations = append(lost.Violations, v)
	}
	lost.Operations = len(broken)
	return lost, rest
}

// atRisk are the operations of which an acknowledged write may be lost, or one that another request was shown.
func atRisk(run *history.Run) map[id]bool {
	slots := make(map[id]int, len(run.Slots))
	for _, s := range run.Slots {
		slots[id{s.Scope, s.Key}] = s.Slot
	}
	writes := make(map[id][]*history.Write)
	for i := range run.Writes {
		w := &run.Writes[i]
		writes[id{w.Scope, w.Key}] = append(writes[id{w.Scope, w.Key}], w)
	}
	risky := make(map[id]bool)
	for o, slot := range slots {
		risk := func(f history.FailOver) bool { return holds(&f, slot) && atRiskIn(&f, writes[o]) }
		if slices.ContainsFunc(run.FailOvers, risk) {
			risky[o] = true
		}
	}
	return risky
}

// atRiskIn reports whether a fail-over may have lost a write of an operation that was acknowledged, or that another
// request was shown.
func atRiskIn(f *history.FailOver, writes []*history.Write) bool {
	safe := make(map[int64]bool) // attempts whose grant the replica had
	var unanswered []*history.Write
	for _, w := range writes {
		switch {
		case acknowledged(w) && mayLose(f, w):
			return true
		case acknowledged(w) && w.Granted && w.Ended < f.Began:
			safe[w.Attempt] = true
		case (w.Ended == 0 || !w.Accepted && !isFenced(w)) && mayLose(f, w):
			unanswered = append(unanswered, w)
		}
	}
	return slices.ContainsFunc(writes, func(w *history.Write) bool {
		return shows(w) && mayLose(f, w) && slices.ContainsFunc(unanswered, func(u *history.Write) bool {
			made := u.Attempt == w.Attempt || u.Call == history.CallReserve && !safe[w.Attempt]
			return made && u.Began <= w.Ended
		})
	})
}

// shows reports whether the store has shown a record that it did not change: what another one wrote, who may not have
// been told.
func shows(w *history.Write) bool {
	return w.Call == history.CallReserve && w.Accepted && !w.Granted && w.Ended != 0 && w.Attempt != 0
}

// acknowledged reports whether the store said that it has changed a record.
func acknowledged(w *history.Write) bool {
	if w.Call == history.CallReserve {
		return w.Granted && w.Ended != 0
	}
	return w.Accepted && w.Ended != 0
}

// longestCall is how long a call can be under way of a node that died: the store gives it up after 10 s, and the world
// stops a node or a wire for two leases of 3 s at most.
const longestCall = int64(16 * time.Second)

// mayLose reports whether a write may be lost in a fail-over: it was made by the primary that was lost, not before its
// replica was last seen to have everything, and not after it was gone.
func mayLose(f *history.FailOver, w *history.Write) bool {
	ended := w.Ended
	if ended == 0 {
		ended = w.Began + longestCall
	}
	return ended >= f.Began && w.Began <= f.Ended
}

// holds reports whether a slot was that of the primary that was lost.
func holds(f *history.FailOver, slot int) bool {
	return slices.ContainsFunc(f.Slots, func(s [2]int) bool { return s[0] <= slot && slot <= s[1] })
}
