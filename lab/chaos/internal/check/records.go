package check

import "github.com/onceward/onceward/lab/chaos/internal/history"

// checkKept is I12: what was answered or granted still has its record.
func checkKept(o *operation, f *findings) {
	if o.record != nil || o.busted {
		return
	}
	for _, a := range o.attempts {
		if classOf(a).definitive() {
			f.add("I12", o, "a client saw %s, but there is no record", describe(a))
			return
		}
	}
	for _, w := range o.writes {
		if w.Call == history.CallReserve && w.Granted && w.Accepted {
			f.add("I12", o, "token %d was granted to %s, but there is no record", w.Attempt, w.Node)
			return
		}
	}
}

// checkQuiet is I13: nothing is left undecided.
func checkQuiet(o *operation, f *findings) {
	switch state := o.state(); {
	case state == "unknown" && o.record.DeadLetter:
		f.add("I13", o, "the record is a dead letter after quiet")
	case state == "unknown" || state == "in_progress":
		f.add("I13", o, "the record is %s after quiet", state)
	}
}

// checkFaults is the part of I14 that a history shows: each planned fault fired.
func checkFaults(run *history.Run, f *findings) {
	for _, name := range run.Planned {
		if run.Faults[name] < 1 {
			f.addRun("I14", "the planned fault %q never fired: the run proves nothing about it", name)
		}
	}
}
