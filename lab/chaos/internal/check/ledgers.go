package check

import (
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// The differences that comparisons with the provider's ledger report.
const (
	missingHere  = "missing here"
	missingThere = "missing there"
)

// difference is what a comparison says about an effect.
type difference struct{ key, kind string }

// oddity is a difference that is there on purpose.
type oddity struct {
	reference string
	// late says that it need not be found.
	late bool
}

// readAhead is how long before it reports a difference a comparison may have read our books: its node may be paused, or
// the provider slow.
const readAhead = int64(time.Minute)

// checkLedgers is I5 for what is on one side only. The comparisons that go on all the time report it, whatever the
// clocks of nodes say; so do those that are made when all is quiet, and they report nothing else. In the storm an
// effect may be missing here that is being written down, but what was written down happened before, and is the same
// there.
func checkLedgers(x *index, run *history.Run, f *findings) {
	strays, written := straysOf(run), writtenBy(x)
	storm, final := make(map[difference]bool), make(map[difference]bool)
	falsely := make(map[difference]bool)
	for _, finding := range run.Findings {
		d := difference{finding.Key, finding.Kind}
		found, early := final, false
		if !strings.HasPrefix(finding.Run, history.FinalRun) {
			by, known := written[d.key]
			found, early = storm, d.kind == missingHere && (!known || finding.At < by+readAhead)
		}
		found[d] = true
		if _, real := strays[d]; !real && !early && !falsely[d] {
			f.addRun("I5", "the comparison %q reports falsely that %s is %s", finding.Run, d.key, d.kind)
			falsely[d] = true
		}
	}
	if f.unsettled {
		return // they may be found yet
	}
	for d, stray := range strays {
		if !storm[d] && !stray.late {
			f.addRun("I5", "%s (%s) is %s, and the comparison has not found it", d.key, stray.reference, d.kind)
		}
		if !final[d] && !stray.late {
			f.addRun("I5", "%s (%s) is %s, and the comparison in the quiet has not found it",
				d.key, stray.reference, d.kind)
		}
	}
}

// writtenBy has the times by which effects were certainly written down, where the history tells: the rows of refunds
// and bookings are written before their answers are stored. When the charge of a payment was written down it does not
// say.
func writtenBy(x *index) map[string]int64 {
	times := make(map[string]int64)
	for _, o := range x.operations {
		answered := slices.IndexFunc(o.writes, func(w *history.Write) bool { return w.Accepted && settlesWithAnswer(w) })
		if answered < 0 || o.busted || !slices.ContainsFunc(o.rows, writtenFirst) {
			continue
		}
		for _, e := range o.effects {
			times[e.ID] = o.writes[answered].Ended
		}
	}
	return times
}

func writtenFirst(r *history.Row) bool { return r.Table == tableRefund || r.Table == tableBooking }

// straysOf are the differences that are there on purpose.
func straysOf(run *history.Run) map[difference]oddity {
	strays := make(map[difference]oddity)
	for i := range run.Effects {
		if e := &run.Effects[i]; e.Stray {
			strays[difference{e.ID, missingHere}] = oddity{reference: e.Reference}
		}
	}
	for i := range run.Rows {
		if r := &run.Rows[i]; r.Stray {
			strays[difference{r.ID, missingThere}] = oddity{r.Reference, r.Late}
		}
	}
	return strays
}
