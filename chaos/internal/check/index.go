package check

import "github.com/onceward/onceward/chaos/internal/history"

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
	// busted says that an operator removed the record, or may have.
	busted bool
}

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
		x.scopes[a.Scope] = true
	}
	for i := range run.Writes {
		w := &run.Writes[i]
		if !x.scopes[w.Scope] {
			// Nodes have operations of their own too, of which nobody keeps a record for the checker.
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

// trace describes an effect or a row that the operation left under the reference. It is empty if there is none.
func (o *operation) trace(reference string) string {
	return o.traceWhere(func(r string) bool { return r == reference })
}

// anyTrace is the same under any reference.
func (o *operation) anyTrace() string {
	return o.traceWhere(func(string) bool { return true })
}

func (o *operation) traceWhere(matches func(reference string) bool) string {
	for _, e := range o.effects {
		if !e.Declined && matches(e.Reference) {
			return "effect " + e.ID + " in " + e.Book
		}
	}
	for _, r := range o.rows {
		if matches(r.Reference) {
			return "row " + r.ID + " in " + r.Table
		}
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
