package check

import "github.com/onceward/onceward/lab/chaos/internal/history"

// The kinds of operations, and what they leave behind.
const (
	kindPayment  = "payment"
	kindShipment = "shipment"
	kindTrip     = "trip"

	bookCharges  = "charges"
	tablePayment = "payment"
	tableBooking = "booking"
	tableRefund  = "refund"
	tableArrival = "arrival"
	tableEntry   = "entry"

	rowNew       = "new"
	rowCharged   = "charged"
	rowDeclined  = "declined"
	rowConfirmed = "confirmed"
)

// promise is what a success of a kind leaves behind: one effect in a book, and one row in a table, in a state if it
// names one. What it does not name it does not leave.
type promise struct{ book, table, state string }

var promises = map[string]promise{
	kindPayment: {book: bookCharges, table: tablePayment},
	"booking":   {book: bookCharges, table: tableBooking, state: rowConfirmed},
	"refund":    {book: "refunds", table: tableRefund},
	"transfer":  {book: "transfers"},
	"entry":     {table: "entry"},
	"shipment":  {}, // what arrives is checked apart
	"lapse":     {},
	"doubt":     {},
	kindTrip:    {book: "transfers", table: "stay hold"},
}

// checkSingleEffect is I1: at most one effect in each book and one row in each table, whatever their references.
func checkSingleEffect(o *operation, f *findings) {
	if o.id == (id{}) {
		// What belongs to no operation is an orphan, not a double.
		return
	}
	books, tables := make(map[string]int), make(map[string]int)
	for _, e := range o.effects {
		if !e.Declined {
			books[e.Book]++
		}
		if !e.Declined && books[e.Book] == 2 {
			f.add("I1", o, "more than one effect in %s, the second is %s", e.Book, e.ID)
		}
	}
	for _, r := range o.rows {
		if r.Table == tableArrival {
			continue // there are several of a shipment
		}
		if tables[r.Table]++; tables[r.Table] == 2 {
			f.add("I1", o, "more than one row in %s, the second is %s", r.Table, r.ID)
		}
	}
}

// checkStock is I1 for what has no owner: each place that is gone has its booking. A step that ran twice takes two
// places and leaves one row.
func checkStock(run *history.Run, f *findings) {
	booked := make(map[string]int64)
	for i := range run.Rows {
		if r := &run.Rows[i]; r.Table == tableBooking {
			booked[r.Item]++
		}
	}
	for _, s := range run.Stock {
		if taken := s.Total - s.Left; taken != booked[s.Item] {
			f.addRun("I1", "%d places of %s are taken (%d of %d are left), but there are %d bookings of it",
				taken, s.Item, s.Left, s.Total, booked[s.Item])
		}
	}
}

// checkSuccess is I2: a success that a client saw has its record, its effect and its row.
func checkSuccess(o *operation, f *findings) {
	for _, a := range o.requests(success) {
		if state := o.state(); state != "completed" && !o.busted {
			f.add("I2", o, "a client saw %s, but the record is %s", describe(a), state)
		}
		checkPromise(o, a, f)
	}
}

func checkPromise(o *operation, a *history.Attempt, f *findings) {
	p, known := promises[a.Kind]
	if !known {
		f.add("I2", o, "the kind %q of an attempt is not known to the checker", a.Kind)
		return
	}
	effects := 1
	if p.book == "" {
		effects = 0
	}
	if p.table != "" {
		rows := o.rowsOf(p.table, a.Reference)
		if len(rows) != 1 {
			f.add("I2", o, "a client saw %s, but %s has %d rows %s", describe(a), p.table, len(rows), a.Reference)
		}
		if p.state != "" && len(rows) > 0 && rows[0].State != p.state {
			f.add("I2", o, "a client saw %s, but the %s %s is %q instead of %s",
				describe(a), p.table, rows[0].ID, rows[0].State, p.state)
		}
		if a.Kind == kindPayment && len(rows) > 0 && rows[0].State == rowDeclined {
			effects = 0
		}
		if a.Kind == kindPayment && len(rows) > 0 && rows[0].State == rowNew && f.unsettled {
			return // it is charged afterwards
		}
	}
	checkMoved(o, a, p.book, effects, f)
}

// checkMoved is what a success says about money: as many effects as promised, in the book of its kind and in no other
// one, each over the amount that was asked for.
func checkMoved(o *operation, a *history.Attempt, book string, promised int, f *findings) {
	n := 0
	for _, e := range o.effects {
		if e.Declined || e.Reference != a.Reference {
			continue
		}
		if e.Book == book {
			n++
		} else {
			f.add("I2", o, "a client saw %s, but effect %s (%s) is in %s, where a %s has none",
				describe(a), e.ID, e.Reference, e.Book, a.Kind)
		}
		if e.Amount != a.Amount {
			f.add("I2", o, "a client saw %s, but effect %s (%s) in %s moved %d instead of %d",
				describe(a), e.ID, e.Reference, e.Book, e.Amount, a.Amount)
		}
	}
	if n != promised {
		f.add("I2", o, "a client saw %s, but %s has %d effects %s instead of %d", describe(a), book, n, a.Reference, promised)
	}
}

// checkRefusals is the first half of I4: what the application refused left no trace.
func checkRefusals(o *operation, f *findings) {
	for _, a := range o.requests(refusal) {
		if trace := o.trace(a); trace != "" {
			f.add("I4", o, "a client saw %s, but there is %s", describe(a), trace)
		}
	}
}

// checkNeverExecuted is the other half of I4: if every client was told that nothing was done, nothing was.
func checkNeverExecuted(o *operation, f *findings) {
	for _, a := range o.attempts {
		if !classOf(a).withoutEffect() {
			return
		}
	}
	if len(o.attempts) == 0 {
		return
	}
	if trace := o.anyTrace(); trace != "" {
		f.add("I4", o, "every attempt was told that it executed nothing, but there is %s", trace)
	}
}

// checkOrphans is I5: each effect has a record that accounts for it.
func checkOrphans(o *operation, f *findings) {
	for _, e := range o.effects {
		state := o.state()
		switch {
		case e.Declined, e.Stray, state == "in_progress" && f.unsettled:
		case len(o.attempts) == 0:
			f.add("I5", o, "effect %s in %s (%s) belongs to no operation that a client asked for", e.ID, e.Book, e.Reference)
		case state != "completed" && state != "unknown" && !o.busted:
			f.add("I5", o, "effect %s in %s (%s) exists, but the record is %s", e.ID, e.Book, e.Reference, state)
		}
	}
}

// checkMismatches is I8: what was refused as a mismatch was not executed.
func checkMismatches(o *operation, f *findings) {
	succeeded := o.requests(success)
	for _, a := range o.requests(mismatch) {
		if containsPayload(succeeded, a.Payload) {
			continue
		}
		if trace := o.trace(a); trace != "" {
			f.add("I8", o, "payload %q was a mismatch, but there is %s", a.Payload, trace)
		}
	}
}

// state is the state of the record, for people as well.
func (o *operation) state() string {
	if o.record == nil {
		return "missing"
	}
	return o.record.State
}
