package check

import (
	"cmp"
	"math"
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// checkArrivals is I10 for messages about one thing: all of them arrive, each once, in their order, or none was sent.
func checkArrivals(o *operation, f *findings) {
	for _, a := range o.attempts {
		if a.Kind != kindShipment {
			return
		}
	}
	var arrived []*history.Row
	for _, r := range o.rows {
		if r.Table == tableArrival {
			arrived = append(arrived, r)
		}
	}
	slices.SortFunc(arrived, func(a, b *history.Row) int { return cmp.Compare(a.Number, b.Number) })
	want := o.parcels()
	if len(arrived) == 0 && o.state() != "completed" || want == 0 {
		return
	}
	if len(arrived) > want || len(arrived) < want && !f.unsettled {
		f.add("I10", o, "%d of %d parcels have arrived", len(arrived), want)
	}
	for i, r := range arrived {
		if r.Number != i+1 || i > 0 && r.Place <= arrived[i-1].Place {
			f.add("I10", o, "parcel %d of %s has arrived in place %d, and is the %d. by its number", r.Number,
				r.Reference, r.Place, i+1)
			return
		}
	}
}

// checkStreets is the same among the shipments to one street: one that was asked for after another one had been
// answered arrives after it.
func checkStreets(x *index, f *findings) {
	streets := make(map[string][]*shipment)
	for _, o := range x.operations {
		if s := newShipment(o); s != nil {
			streets[s.street] = append(streets[s.street], s)
		}
	}
	for _, shipments := range streets {
		slices.SortFunc(shipments, func(a, b *shipment) int { return cmp.Compare(a.answered, b.answered) })
		for i, later := range shipments {
			for _, earlier := range shipments[:i] {
				if earlier.answered < later.asked && earlier.last > later.first {
					f.add("I10", later.operation, "place %d of %s was taken before one of %s, which was sent before",
						later.first, later.street, earlier.key)
					return
				}
			}
		}
	}
}

// shipment is one that has arrived: when it was asked for and answered, and its first and last place.
type shipment struct {
	*operation
	street          string
	asked, answered int64
	first, last     int
}

// newShipment returns nil if the operation is none that a client saw to succeed.
func newShipment(o *operation) *shipment {
	s := &shipment{operation: o, asked: math.MaxInt64, answered: math.MaxInt64, first: math.MaxInt}
	for _, r := range o.rows {
		if r.Table == tableArrival {
			s.street, s.first, s.last = r.Item, min(s.first, r.Place), max(s.last, r.Place)
		}
	}
	for _, a := range o.attempts {
		s.asked = min(s.asked, a.Sent)
		if classOf(a) == success {
			s.answered = min(s.answered, a.Returned)
		}
	}
	if s.street == "" || s.answered == math.MaxInt64 {
		return nil
	}
	return s
}

// parcels is how many parcels the shipment has that was answered, 0 if that is not known.
func (o *operation) parcels() int {
	for _, a := range o.requests(success) {
		return int(a.Amount)
	}
	return 0
}

// checkBearers is I6 for the outbox: nothing is accepted from a worker whose message was given to another one.
func checkBearers(run *history.Run, f *findings) {
	claims := make(map[string][]*history.Write)
	for i := range run.Writes {
		if w := &run.Writes[i]; w.Call == history.CallClaimMessage {
			claims[w.Message] = append(claims[w.Message], w)
		}
	}
	for i := range run.Writes {
		w := &run.Writes[i]
		if w.Call != history.CallFinishMessage || !w.Accepted {
			continue
		}
		if other := replacedBy(w, claims[w.Message]); other != nil {
			f.addRun("I6", "message %s was finished by %s (call %d) with token %d after %s had got token %d",
				w.Message, w.Node, w.Seq, w.Attempt, other.Node, other.Attempt)
		}
	}
}

// replacedBy returns the claim that took the message away before the write, for certain.
func replacedBy(w *history.Write, claims []*history.Write) *history.Write {
	own := slices.IndexFunc(claims, func(c *history.Write) bool { return c.Attempt == w.Attempt })
	if own < 0 {
		return nil
	}
	for _, c := range claims {
		if c.Attempt != w.Attempt && c.Began > claims[own].Ended && c.Ended < w.Began {
			return c
		}
	}
	return nil
}
