package check

import "github.com/onceward/onceward/lab/chaos/internal/history"

// checkPayments is the first half of I10: each payment that committed was charged once, or declined once.
func checkPayments(o *operation, f *findings) {
	for _, r := range o.rows {
		if r.Table != tablePayment {
			continue
		}
		charges := o.charges(r.Reference)
		switch {
		case r.State == rowNew && len(charges) <= 1 && f.unsettled:
		case len(charges) != 1:
			f.add("I10", o, "payment %s (%s) has %d charges instead of one", r.ID, r.Reference, len(charges))
		case charges[0].Declined && r.State != rowDeclined, !charges[0].Declined && r.State != rowCharged:
			f.add("I10", o, "payment %s (%s) is %s, but declined is %t for its charge %s",
				r.ID, r.Reference, r.State, charges[0].Declined, charges[0].ID)
		}
	}
}

// checkUnsolicitedCharges is the other half of I10: no charge was asked for by a payment that did not commit.
func checkUnsolicitedCharges(o *operation, f *findings) {
	for _, e := range o.effects {
		if e.Book == bookCharges && !e.Stray && o.kindOf(e.Reference) == kindPayment && len(o.rowsOf(tablePayment,
			e.Reference)) == 0 {
			f.add("I10", o, "charge %s (%s) has no payment", e.ID, e.Reference)
		}
	}
}

// charges returns the charges under a reference, the declined ones too.
func (o *operation) charges(reference string) []*history.Effect {
	var charges []*history.Effect
	for _, e := range o.effects {
		if e.Book == bookCharges && e.Reference == reference {
			charges = append(charges, e)
		}
	}
	return charges
}

// kindOf is the kind of the request with the reference, or of the first one if none has it.
func (o *operation) kindOf(reference string) string {
	for _, a := range o.attempts {
		if a.Reference == reference {
			return a.Kind
		}
	}
	if len(o.attempts) == 0 {
		return ""
	}
	return o.attempts[0].Kind
}

// checkMessages is the rest of I10 and I13: the outbox is empty. What was captured has been handed over.
func checkMessages(run *history.Run, f *findings) {
	for i := range run.Messages {
		m := &run.Messages[i]
		if m.State == "done" || m.State == "captured" {
			continue
		}
		o := &operation{id: id{m.Scope, m.Key}}
		if !f.unsettled {
			f.add("I10", o, "message %s (%s) was not delivered: it is %s", m.ID, m.Topic, m.State)
		}
		f.add("I13", o, "message %s (%s) is %s after quiet", m.ID, m.Topic, m.State)
	}
}
