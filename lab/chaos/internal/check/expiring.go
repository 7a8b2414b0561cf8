package check

import (
	"encoding/json"
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// checkExpiring is for operations that may execute again when their answers have expired. Most of the other rules hold
// for each life of the record alone; what they come to is that no life begins before the one before it has expired.
func checkExpiring(o *operation, steps []history.Step, f *findings) {
	checkTokens(o, f)  // I6: also across the removal of the record
	checkOwnData(o, f) // I9
	checkQuiet(o, f)   // I13
	checkAudited(o, f) // I16
	checkLives(o, steps, f)
	checkRowOfEachLife(o, f)
}

// checkLives is I12: a key with an answer is granted again only when that answer has expired by the store's clock.
func checkLives(o *operation, steps []history.Step, f *findings) {
	for _, g := range grants(o) {
		if g.Now == 0 || stepped(g, steps) {
			continue
		}
		for _, w := range o.writes {
			early := w.Accepted && w.Expires > g.Now && w.Ended != 0 && w.Ended < g.Began
			if early && !passed(w, g.Ended, steps) && !o.bustedBetween(w.Began, g.Ended) {
				f.add("I12", o, "token %d was granted to %s (call %d) %d ms before the answer of token %d expired",
					g.Attempt, g.Node, g.Seq, (w.Expires-g.Now)/1000, w.Attempt)
				return
			}
		}
	}
}

// bustedBetween reports whether an operator may have removed the record between two times.
func (o *operation) bustedBetween(from, to int64) bool {
	return slices.ContainsFunc(o.writes, func(w *history.Write) bool {
		return w.Call == history.CallBust && w.Began < to && (w.Ended == 0 || w.Ended > from)
	})
}

// passed reports whether the store's clock has passed the expiry of an answer before a time. It may have gone back
// since: what was removed stays so.
func passed(w *history.Write, before int64, steps []history.Step) bool {
	for i, s := range steps {
		until := before
		if i+1 < len(steps) {
			until = min(until, steps[i+1].Ended)
		}
		if s.Began < before && until > w.Ended && s.Clock+(until-s.Ended)/1000 >= w.Expires {
			return true
		}
	}
	return false
}

// stepped reports whether the store's clock was set during the call: then it cannot be told which time it went by.
func stepped(w *history.Write, steps []history.Step) bool {
	for _, s := range steps {
		if s.Began <= w.Ended && w.Began <= s.Ended {
			return true
		}
	}
	return false
}

// checkRowOfEachLife is I1 and I2 for transactions: each success that a client saw has its row, and there is no row
// more than there were transactions that committed, or may have.
func checkRowOfEachLife(o *operation, f *findings) {
	rows, committed := make(map[string]int), 0
	for _, r := range o.rows {
		if r.Table == tableEntry {
			rows[r.ID]++
		}
	}
	for _, w := range o.writes {
		if w.Call == history.CallTransact && (w.Granted || !w.Accepted) {
			committed++
		}
	}
	if len(rows) > committed {
		f.add("I1", o, "there are %d rows of at most %d transactions", len(rows), committed)
	}
	for _, a := range o.attempts {
		var answer struct{ ID string }
		if a.Kind != "flash" || classOf(a) != success {
			continue
		}
		if err := json.Unmarshal([]byte(a.Body), &answer); err != nil || rows[answer.ID] != 1 {
			f.add("I2", o, "a client saw %s, but there are %d such rows", describe(a), rows[answer.ID])
			return
		}
	}
}
