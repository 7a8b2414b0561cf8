package check

import (
	"strings"

	"github.com/onceward/onceward/chaos/internal/history"
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

// checkLedgers is I5 for what is on one side only. The comparisons that go on all the time report it, whatever the clocks
// of nodes say; so do those that are made when all is quiet, and they report nothing else. In the storm an effect may be
// missing here that is being written down, but what was written down happened before, and is the same there.
func checkLedgers(run *history.Run, f *findings) {
	strays := straysOf(run)
	storm, final := make(map[difference]bool), make(map[difference]bool)
	for _, finding := range run.Findings {
		d := difference{finding.Key, finding.Kind}
		found, early := final, false
		if !strings.HasPrefix(finding.Run, history.FinalRun) {
			found, early = storm, d.kind == missingHere
		}
		if _, real := strays[d]; !found[d] && !early && !real {
			f.addRun("I5", "the comparison %q reports falsely that %s is %s", finding.Run, d.key, d.kind)
		}
		found[d] = true
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
