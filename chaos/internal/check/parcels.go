package check

import (
	"cmp"
	"slices"

	"github.com/onceward/onceward/chaos/internal/history"
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
	if len(arrived) != want {
		f.add("I10", o, "%d of %d parcels have arrived", len(arrived), want)
	}
	for i, r := range arrived {
		if r.Number != i+1 || r.Place != r.Number {
			f.add("I10", o, "parcel %d of %s has arrived in place %d, and is the %d. by its number", r.Number, r.Reference, r.Place, i+1)
			return
		}
	}
}

// parcels is how many parcels the shipment has that was answered, 0 if nobody knows.
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
			f.addRun("I6", "message %s was finished by %s (call %d) with token %d after it had been given to %s with token %d",
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
