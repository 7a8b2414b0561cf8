package check

import (
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// checkStale is I11 for what was removed: when an operator has been told that a record is gone, the answer that it held
// is gone too. Where a front may not have been told, or has lost what it was told, it is gone when the bound is over.
func checkStale(o *operation, losses []history.FrontLoss, f *findings) {
	for _, b := range o.writes {
		if b.Call != history.CallBust || !b.Accepted || b.Ended == 0 {
			continue
		}
		for _, a := range o.attempts {
			since := a.Sent - b.Ended
			if classOf(a) != success || since <= 0 || !o.answeredBefore(a, b.Began) {
				continue
			}
			if since > int64(history.FrontAge) || !b.Stale && !lostBetween(losses, b.Began, a.Returned) {
				f.add("I11", o, "%s was answered %d ms after the record was removed by %s (call %d)", describe(a),
					since/1e6, b.Node, b.Seq)
				return
			}
		}
	}
}

// answeredBefore reports whether the same answer was seen before a time.
func (o *operation) answeredBefore(a *history.Attempt, time int64) bool {
	return slices.ContainsFunc(o.attempts, func(b *history.Attempt) bool {
		return classOf(b) == success && b.Returned < time && sameAnswer(a, b)
	})
}

// lostBetween reports whether the front lost something between two times.
func lostBetween(losses []history.FrontLoss, from, to int64) bool {
	return slices.ContainsFunc(losses, func(l history.FrontLoss) bool { return l.Began <= to && l.Ended >= from })
}
