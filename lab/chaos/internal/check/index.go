package check

import (
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// id names an operation.
type id struct{ scope, key string }

// operation is everything that the history has about one (scope, key).
type operation struct {
	id
	attempts []*history.Attempt
	writes   []*history.Write
	// record is nil if there is none.
	record  *history.Record
	effects []*history.Effect
	rows    []*history.Row
	// audits are what the audit has about it.
	audits []*history.Audit
	// busted says that an operator removed the record, or may have.
	busted bool
	// expires says that its answers are kept so briefly that it may execute again within a run.
	expires bool
}

// expiring are the kinds whose answers are kept for less than a run lasts, by the store's clock.
var expiring = map[string]bool{"flash": true, "spark": true}

// index is the history by operation.
type index struct {
	byID map[id]*operation
	// operations are in the order in which the history mentions them, so that two checks of it say the same.
	operations []*operation
	// scopes are those that clients used.
	scopes map[string]bool
}

func newIndex(run *history.Run) *index {
	x := &index{byID: make(map[id]*operation), scopes: make(map[string]bool)}
	for i := range run.Attempts {
		a := &run.Attempts[i]
		o := x.operation(a.Scope, a.Key)
		o.attempts = append(o.attempts, a)
		o.expires = expiring[a.Kind]
		x.scopes[a.Scope] = true
	}
	for i := range run.Writes {
		w := &run.Writes[i]
		if !x.scopes[w.Scope] {
			// Nodes have operations of their own too, of which no record is kept for the checker.
			continue
		}
		o := x.operation(w.Scope, w.Key)
		o.writes = append(o.writes, w)
		o.busted = o.busted || w.Call == history.CallBust && (w.Accepted || w.Ended == 0)
	}
	x.addRemains(run)
	return x
}

// addRemains adds what was there when all was quiet.
func (x *index) addRemains(run *history.Run) {
	for i := range run.Records {
		r := &run.Records[i]
		x.operation(r.Scope, r.Key).record = r
	}
	for i := range run.Effects {
		e := &run.Effects[i]
		o := x.operation(e.Scope, e.Key)
		o.effects = append(o.effects, e)
	}
	for i := range run.Rows {
		r := &run.Rows[i]
		o := x.operation(r.Scope, r.Key)
		o.rows = append(o.rows, r)
	}
	for i := range run.Audits {
		a := &run.Audits[i]
		o := x.operation(a.Scope, a.Key)
		o.audits = append(o.audits, a)
	}
}

// operation finds the operation, or begins it.
func (x *index) operation(scope, key string) *operation {
	name := id{scope, key}
	o, ok := x.byID[name]
	if !ok {
		o = &operation{id: name}
		x.byID[name] = o
		x.operations = append(x.operations, o)
	}
	return o
}

// rowsOf returns the rows of a table under a reference.
func (o *operation) rowsOf(table, reference string) []*history.Row {
	var rows []*history.Row
	for _, r := range o.rows {
		if r.Table == table && r.Reference == reference {
			rows = append(rows, r)
		}
	}
	return rows
}

// trace describes an effect or a row that a request left behind. It is empty if there is none. Where two requests
// differ in the amount alone, what was moved tells them apart.
func (o *operation) trace(a *history.Attempt) string {
	shared := slices.ContainsFunc(o.attempts, func(b *history.Attempt) bool {
		return b.Reference == a.Reference && b.Payload != a.Payload
	})
	for _, e := range o.effects {
		if !e.Declined && e.Reference == a.Reference && (!shared || e.Amount == a.Amount) {
			return "effect " + e.ID + " in " + e.Book
		}
	}
	for _, r := range o.rows {
		if r.Reference == a.Reference && !shared {
			return "row " + r.ID + " in " + r.Table
		}
	}
	return ""
}

// anyTrace is the same for all requests.
func (o *operation) anyTrace() string {
	for _, e := range o.effects {
		if !e.Declined {
			return "effect " + e.ID + " in " + e.Book
		}
	}
	for _, r := range o.rows {
		return "row " + r.ID + " in " + r.Table
	}
	return ""
}

// requests returns the first attempt of each payload that was answered with the class.
func (o *operation) requests(wanted class) []*history.Attempt {
	var found []*history.Attempt
	for _, a := range o.attempts {
		if classOf(a) == wanted && !containsPayload(found, a.Payload) {
			found = append(found, a)
		}
	}
	return found
}

func containsPayload(attempts []*history.Attempt, payload string) bool {
	for _, a := range attempts {
		if a.Payload == payload {
			return true
		}
	}
	return false
}
