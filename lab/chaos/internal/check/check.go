package check

import (
	"fmt"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// Violation is a promise that was broken.
type Violation struct {
	// Invariant is "I1" to "I18", or "I11 undecided" if the search for an order took too long.
	Invariant string
	// Scope and Key name the operation, if it is about one.
	Scope, Key string
	Detail     string
}

// String is the violation on one line.
func (v Violation) String() string {
	if v.Scope == "" && v.Key == "" {
		return v.Invariant + ": " + v.Detail
	}
	return fmt.Sprintf("%s: %s/%s: %s", v.Invariant, v.Scope, v.Key, v.Detail)
}

// Check returns what the run broke, invariant by invariant. In a run that was not quiet in the end, which breaks I13,
// what is still on its way breaks nothing else. An operation that an operator busted is excused from what
// busting allows: its record may be gone or made again, so that its answers may differ. It is not excused from having
// one effect at most.
func Check(run *history.Run) []Violation {
	x := newIndex(run)
	f := &findings{unsettled: run.Unsettled}
	for _, rule := range rules {
		for _, o := range x.operations {
			if !o.expires {
				rule(o, f)
			}
		}
	}
	for _, o := range x.operations {
		if o.expires {
			checkExpiring(o, run.Steps, f)
		}
		checkStale(o, run.FrontLosses, f)
		checkLeases(o, run.Steps, f)
	}
	checkStock(run, f)
	checkForeignData(x, f)
	checkMessages(run, f)
	checkStreets(x, f)
	checkBearers(run, f)
	checkForgeries(x, run, f)
	checkLedgers(x, run, f)
	checkActs(run, f)
	checkCalls(run, f)
	checkFaults(run, f)
	return f.violations
}

// rules are the checks of one operation at a time, in the order of their invariants.
var rules = []func(*operation, *findings){
	checkSingleEffect,       // I1
	checkSuccess,            // I2
	checkEqualAnswers,       // I3
	checkStoredAnswer,       // I3
	checkRefusals,           // I4
	checkNeverExecuted,      // I4
	checkOrphans,            // I5
	checkTokens,             // I6
	checkSettledOnce,        // I7
	checkMismatches,         // I8
	checkOwnData,            // I9
	checkPayments,           // I10
	checkUnsolicitedCharges, // I10
	checkArrivals,           // I10
	checkLinear,             // I11
	checkKept,               // I12
	checkQuiet,              // I13
	checkSteps,              // I15
	checkAudited,            // I16
}

// findings collects violations.
type findings struct {
	violations []Violation
	// unsettled says that what is missing may be on its way.
	unsettled bool
}

// add notes a violation by an operation.
func (f *findings) add(invariant string, o *operation, format string, args ...any) {
	f.violations = append(f.violations, Violation{
		Invariant: invariant, Scope: o.scope, Key: o.key, Detail: fmt.Sprintf(format, args...),
	})
}

// addRun notes a violation that is about the run as a whole.
func (f *findings) addRun(invariant, format string, args ...any) {
	f.violations = append(f.violations, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
}
