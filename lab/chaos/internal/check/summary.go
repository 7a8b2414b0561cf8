package check

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// Counts says how much a run had to show. A run without overlaps and unknown outcomes proves little.
type Counts struct {
	// Operations are the different (scope, key) that clients used.
	Operations int
	Attempts   int
	Replays    int
	// Overlapping are the operations of which two attempts were under way at the same time.
	Overlapping int
	// Abandoned are the operations of which no client saw a definitive answer.
	Abandoned int
	// Unknown are the operations whose outcome was not known for a while, and Settled those among them that have been
	// settled.
	Unknown, Settled int
	// Fenced are the writes of owners and bearers that were refused, and AfterExpiry the executions after the answer had
	// expired.
	Fenced, AfterExpiry int
	// Acts are those of operators, and Forgeries the webhooks of others than the provider.
	Acts, Forgeries int
	// Calls are the operations in the outboxes of callers.
	Calls int
	// Parcels are the messages of which several are about one thing.
	Parcels int
	// Answers counts the attempts by what came back: a problem code, "success", "refusal", "no answer" or "other".
	Answers map[string]int
}

// Summary counts what happened in a run.
func Summary(run *history.Run) Counts {
	c := Counts{
		Attempts: len(run.Attempts), Answers: make(map[string]int), Acts: len(run.Acts),
		Forgeries: len(run.Forgeries), Calls: len(run.Calls),
	}
	for i := range run.Attempts {
		a := &run.Attempts[i]
		if a.Replayed {
			c.Replays++
		}
		c.Answers[answerName(a)]++
	}
	for _, o := range newIndex(run).operations {
		c.count(o)
	}
	for i := range run.Writes {
		if isFenced(&run.Writes[i]) {
			c.Fenced++
		}
	}
	for i := range run.Rows {
		if run.Rows[i].Table == tableArrival {
			c.Parcels++
		}
	}
	return c
}

// isFenced reports whether a write was refused because its owner, or the bearer of a message, is that no longer.
func isFenced(w *history.Write) bool {
	if w.Call == history.CallFinishMessage {
		return !w.Accepted && w.Ended != 0 && w.Err == ""
	}
	return ownerCall(w) && strings.Contains(w.Err, " refused: ")
}

func (c *Counts) count(o *operation) {
	if len(o.attempts) == 0 {
		return
	}
	c.Operations++
	if lives := len(grants(o)); o.expires && lives > 1 {
		c.AfterExpiry += lives - 1
	}
	if overlapping(o.attempts) {
		c.Overlapping++
	}
	if len(o.requests(success)) == 0 && len(o.requests(refusal)) == 0 {
		c.Abandoned++
	}
	if !wasUnknown(o) {
		return
	}
	c.Unknown++
	if state := o.state(); state != "unknown" && state != "in_progress" {
		// A transaction whose commit never landed leaves no record: that settles it too.
		c.Settled++
	}
}

// answerName is the class of an answer as the summary shows it.
func answerName(a *history.Attempt) string {
	switch c := classOf(a); {
	case c == noAnswer:
		return "no answer"
	case a.Code != "":
		return a.Code
	case c == success:
		return "success"
	case c == refusal:
		return "refusal"
	default:
		return "other"
	}
}

// overlapping reports whether two attempts were under way at once. One without an answer is so until the end of the
// run.
func overlapping(attempts []*history.Attempt) bool {
	sent := slices.Clone(attempts)
	slices.SortFunc(sent, func(a, b *history.Attempt) int { return cmp.Compare(a.Sent, b.Sent) })
	latest := int64(math.MinInt64)
	for _, a := range sent {
		if a.Sent < latest {
			return true
		}
		latest = max(latest, a.Returned)
		if classOf(a) == noAnswer {
			latest = math.MaxInt64
		}
	}
	return false
}

// wasUnknown reports whether the outcome was ever unknown. A lease that ran out leaves no write of its own, but the
// resolution does.
func wasUnknown(o *operation) bool {
	if o.state() == "unknown" {
		return true
	}
	for _, a := range o.attempts {
		if c := classOf(a); c == unknown || c == becameUnknown {
			return true
		}
	}
	for _, w := range o.writes {
		if !w.Accepted {
			continue
		}
		switch w.Call {
		case history.CallAbandon, history.CallResolveCompleted, history.CallResolveNotExecuted, history.CallResolveStep:
			return true
		}
	}
	return false
}
