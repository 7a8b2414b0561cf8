package check

import (
	"strings"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// checkEqualAnswers is the first half of I3: there is one definitive answer, to one payload.
func checkEqualAnswers(o *operation, f *findings) {
	if o.busted {
		return
	}
	var first *history.Attempt
	for _, a := range o.attempts {
		switch {
		case !classOf(a).definitive():
		case first == nil:
			first = a
		case a.Payload != first.Payload:
			f.add("I3", o, "payloads %q and %q were both answered: %s and %s",
				first.Payload, a.Payload, describe(first), describe(a))
			return
		case !sameAnswer(first, a):
			f.add("I3", o, "two answers to the same request differ: %s and %s", describe(first), describe(a))
			return
		}
	}
}

// checkStoredAnswer is the other half of I3: what is stored is what clients were told, and so what a retry would be
// told.
func checkStoredAnswer(o *operation, f *findings) {
	if o.state() != "completed" || o.busted {
		return
	}
	for _, a := range o.attempts {
		if classOf(a).definitive() && (a.Status != o.record.Status || a.Body != o.record.Body) {
			f.add("I3", o, "a client saw %s, but %d %.80q is stored", describe(a), o.record.Status, o.record.Body)
			return
		}
	}
}

// checkOwnData is the first half of I9: a success speaks of what was asked for.
func checkOwnData(o *operation, f *findings) {
	for _, a := range o.attempts {
		if classOf(a) == success && !strings.Contains(a.Body, a.Reference) {
			f.add("I9", o, "the answer does not name %s: %s", a.Reference, describe(a))
			return
		}
	}
}

// checkForeignData is the other half of I9: no answer of any class names the account of another scope.
func checkForeignData(x *index, f *findings) {
	for _, o := range x.operations {
		for _, a := range o.attempts {
			if other := foreignScope(a, x.scopes); other != "" {
				f.add("I9", o, "the answer has data of scope %s: %s", other, describe(a))
				break
			}
		}
	}
}

// foreignScope returns another scope that the body names as an account.
func foreignScope(a *history.Attempt, scopes map[string]bool) string {
	rest := a.Body
	for {
		var found bool
		if _, rest, found = strings.Cut(rest, `"account"`); !found {
			return ""
		}
		value, isMember := strings.CutPrefix(strings.TrimLeft(rest, " "), ":")
		if !isMember {
			continue
		}
		account, isString := strings.CutPrefix(strings.TrimLeft(value, " "), `"`)
		account, _, closed := strings.Cut(account, `"`)
		if isString && closed && account != a.Scope && scopes[account] {
			return account
		}
	}
}
