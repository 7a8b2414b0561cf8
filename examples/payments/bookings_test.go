package payments_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// place is the body of a booking.
func place(item string, price int64, reference string) string {
	return fmt.Sprintf(`{"item":"%s","price":%d,"reference":"%s"}`, item, price, reference)
}

// booked is what the answer to a booking shows.
type booked struct {
	ID, Account, Reference, Item, State, Charge, Error string
	Price                                              int64
	ChargedAt                                          int64 `json:"charged_at"`
}

func (w *world) places(item string) int {
	w.Helper()
	return w.number(`SELECT places FROM stock WHERE item = $1`, item)
}

func TestBookings(t *testing.T) {
	t.Parallel()
	stories{
		"confirmed":      bookingConfirmed,
		"sold out":       bookingSoldOut,
		"declined":       bookingDeclined,
		"provider fails": bookingInTheEnd,
		"stopped":        bookingStopped,
		"not a booking":  notABooking,
	}.onStores(t, func(s *settings) {
		s.Timing.Look = soon
		fails := strikes(provider.ErrorBefore, "/charges", "in the end")
		fails.Times = 3
		deaf := strikes(provider.ResetAfter, "/charges", "stopped")
		deaf.Times = 0 // it charges, and never says so
		s.faults = []provider.Rule{fails, strikes(provider.ResetAfter, "/charges", "in the end"), deaf}
	})
}

func bookingConfirmed(w *world) {
	first := w.post("/bookings", "b", place("concert", 4500, "confirmed")).want(http.StatusCreated, `"state":"confirmed"`)
	b := decode[booked](first)
	made := w.bank.Charges("confirmed")
	if len(made) != 1 || b.Charge != made[0].ID || made[0].Metadata["booking"] != b.ID || b.Account != "alice" {
		w.Errorf("the booking is %+v, and the charges are %+v", b, made)
	}
	w.post("/bookings", "b", place("concert", 4500, "confirmed")).wantReplay(first)
	w.post("/bookings", "b", place("concert", 4600, "confirmed")).want(http.StatusUnprocessableEntity, "")
	if n := w.number(`SELECT count(*) FROM booking WHERE reference = 'confirmed' AND state = 'confirmed'`); n != 1 {
		w.Errorf("%d bookings are written down, want one", n)
	}
}

// bookingSoldOut: the cellar has one place.
func bookingSoldOut(w *world) {
	w.post("/bookings", "the last", place("cellar", 900, "the last")).want(http.StatusCreated, "confirmed")
	first := w.post("/bookings", "too late", place("cellar", 900, "too late")).want(http.StatusConflict, "sold out")
	w.post("/bookings", "too late", place("cellar", 900, "too late")).wantReplay(first)
	w.post("/bookings", "nothing", place("nothing", 900, "too late")).want(http.StatusConflict, "sold out")
	w.wantCharges("too late", 0)
	if n := w.number(`SELECT count(*) FROM booking WHERE reference = 'too late'`); n != 0 {
		w.Errorf("%d bookings are written down, want none", n)
	}
}

// bookingDeclined is the only one that takes places in the theatre.
func bookingDeclined(w *world) {
	before := w.places("theatre")
	body := place("theatre", provider.DeclinedAmount, "declined")
	first := w.post("/bookings", "declined", body).want(http.StatusPaymentRequired, "declined")
	w.post("/bookings", "declined", body).wantReplay(first)
	if after := w.places("theatre"); after != before {
		w.Errorf("there were %d places, and now there are %d: the place was not given back", before, after)
	}
	w.wantCharges("declined", 0)
}

// bookingInTheEnd: the provider fails three times and then loses its answer. The client does not ask again: the resumer
// goes on.
func bookingInTheEnd(w *world) {
	w.post("/bookings", "in the end", place("concert", 4500, "in the end")).want(http.StatusConflict, "in-progress")
	w.eventually("the booking to be confirmed", func() bool {
		return w.number(`SELECT count(*) FROM booking WHERE reference = 'in the end' AND state = 'confirmed'`) == 1
	})
	var last reply
	w.eventually("the answer", func() bool {
		last = w.post("/bookings", "in the end", place("concert", 4500, "in the end"))
		return last.status == http.StatusCreated
	})
	charge := w.bank.Charges("in the end")[0].ID
	last.want(http.StatusCreated, charge)
	w.wantCharges("in the end", 1)
	wantFound(w, charge, "in-the-end")
}

// wantFound: the charge leads to the operation that made it.
func wantFound(w *world, charge, key string) {
	w.Helper()
	finder, _ := store.As[store.Finder](w.db.Store)
	found, err := finder.FindProviderID(w.Context(), charge)
	if err != nil || len(found) != 1 || found[0].Key != key {
		w.Errorf("O3: by the id of the charge %v is found, %v, want the record of %q", found, err, key)
	}
}

// bookingStopped: the charge is made but never answered, until a person stops the booking. The poller finds the charge,
// and the booking goes on behind it.
func bookingStopped(w *world) {
	w.post("/bookings", "stopped", place("concert", 4500, "stopped")).want(http.StatusConflict, "in-progress")
	guard, err := onceward.New(w.db.Store, onceward.Config{Secret: []byte(testSecret)})
	if err != nil {
		w.Fatal(err)
	}
	operator, err := reconcile.NewOperator(guard, w.db.Store)
	if err != nil {
		w.Fatal(err)
	}
	id := store.ID{Scope: "alice", Key: "stopped"}
	w.eventually("the booking to be stopped", func() bool {
		rec, err := w.db.Store.Get(w.Context(), id)
		if err == nil {
			by := reconcile.By{Who: "zoe", Why: "the provider does not answer"}
			_, err = operator.Stop(w.Context(), by, store.Claim{ID: id, Attempt: rec.Attempt})
		}
		return err == nil
	})
	w.eventually("the booking to be confirmed", func() bool {
		return w.number(`SELECT count(*) FROM booking WHERE reference = 'stopped' AND state = 'confirmed'`) == 1
	})
	w.wantCharges("stopped", 1)
	wantFound(w, w.bank.Charges("stopped")[0].ID, "stopped")
}

func notABooking(w *world) {
	for i, body := range []string{``, `{}`, place("", 1, ""), place("concert", 0, ""), place("concert", 100_000_001, "")} {
		w.post("/bookings", fmt.Sprint("bad ", i), body).want(http.StatusBadRequest, "price")
	}
	w.post("/bookings", "not plain", place(`con\u0000cert`, 1, "")).want(http.StatusBadRequest, "control characters")
}
