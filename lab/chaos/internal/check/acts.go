package check

import (
	"slices"
	"strings"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// actOf is what the audit calls a call to the store, empty for one that is not audited.
func actOf(call string) string {
	switch call {
	case history.CallResolveCompleted, history.CallResolveNotExecuted, history.CallResolveStep:
		return call
	case history.CallRequeue:
		return "retry now"
	case history.CallBust:
		return busts
	default:
		return ""
	}
}

// busts is how the audit's words for a bust begin, by force or not.
const busts = "bust"

// checkAudited is the first half of I16: what was changed from outside was announced in the audit.
func checkAudited(o *operation, f *findings) {
	for _, w := range o.writes {
		act := actOf(w.Call)
		if act == "" || !w.Accepted {
			continue
		}
		if !o.announced(act, w.Attempt) {
			f.add("I16", o, "%s of token %d by %s (call %d) is not in the audit", w.Call, w.Attempt, w.Node, w.Seq)
			return
		}
	}
}

// announced reports whether the audit says that an act on an attempt was about to be done.
func (o *operation) announced(action string, attempt int64) bool {
	for _, a := range o.audits {
		// The words for a step name it. To bust is to remove whatever is there: the call names no attempt.
		same := strings.HasPrefix(a.Action, action) && (a.Attempt == attempt || action == busts)
		if a.Outcome == "" && same {
			return true
		}
	}
	return false
}

// checkActs is the other half of I16: what an operator was told to have been done, or not, is in the audit as it
// ended. That an outcome is missing is allowed: the act counts also if its end could not be written.
func checkActs(run *history.Run, f *findings) {
	outcomes, announced := make(map[string]string), make(map[string]bool)
	for i := range run.Audits {
		a := &run.Audits[i]
		announced[a.Reason] = true
		if a.Outcome != "" {
			outcomes[a.Reason] = a.Outcome
		}
	}
	for i := range run.Acts {
		a := &run.Acts[i]
		o := &operation{id: id{a.Scope, a.Key}}
		outcome := outcomes[a.Why]
		switch {
		case !a.Answered:
		case a.Done && !announced[a.Why]:
			f.add("I16", o, "%q of token %d was done (%s), but is not in the audit", a.Action, a.Attempt, a.Why)
		case a.Done && strings.HasPrefix(outcome, "failed"):
			f.add("I16", o, "%q of token %d was done (%s), but the audit says %q", a.Action, a.Attempt, a.Why, outcome)
		case !a.Done && outcome == "done":
			f.add("I16", o, "%q of token %d was not done (%s: %s), but the audit says that it was", a.Action,
				a.Attempt, a.Why, a.Err)
		}
	}
}

// checkForgeries is I2 for what others than the provider say, because it could make a success of what never happened: a
// webhook without the provider's signature is not taken, and one that another account has signed settles nothing.
func checkForgeries(x *index, run *history.Run, f *findings) {
	for i := range run.Forgeries {
		g := &run.Forgeries[i]
		o := x.operation(g.Scope, g.Key)
		if g.Status >= 200 && g.Status < 300 && !g.Foreign {
			f.add("I2", o, "a forged webhook %s was answered with %d", g.How, g.Status)
		}
		if o.believes(g.Claims) {
			f.add("I2", o, "a webhook %s was believed: %s never happened", g.How, g.Claims)
		}
	}
}

// believes reports whether an answer, the record or a row tells of an effect by its id.
func (o *operation) believes(effect string) bool {
	if effect == "" {
		return false
	}
	told := slices.ContainsFunc(o.attempts, func(a *history.Attempt) bool { return strings.Contains(a.Body, effect) })
	noted := slices.ContainsFunc(o.rows, func(r *history.Row) bool { return r.ID == effect })
	return told || noted || o.record != nil && strings.Contains(o.record.Body, effect)
}
