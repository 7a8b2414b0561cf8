package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/storeurl"
)

// parcels is a transactional route that adds several messages about one thing, which have to arrive in their order.
// Their receiver has an inbox, and is not to be relied on.
const parcels = "POST /parcels"

// parcelsTopic is where the messages go, and shelf who receives them.
const (
	parcelsTopic = "parcels"
	shelf        = "shelf"
)

// Shipment is both what is asked for and the answer.
type Shipment struct {
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference"`
	// Street is where it goes: its parcels keep their order with those of other shipments there.
	Street string `json:"street"`
	// Parcels is how many messages there are to be.
	Parcels int `json:"parcels"`
	// Lapse is the number of the parcel whose first bearer is taken for dead, 0 for none.
	Lapse int `json:"lapse,omitempty"`
}

// parcel is one message of a shipment.
type parcel struct {
	Reference string `json:"reference"`
	Street    string `json:"street"`
	Number    int    `json:"number"`
	Lapse     bool   `json:"lapse,omitempty"`
}

// post is the route and the deliveries.
type post struct {
	db       *storeurl.Database
	box      *outbox.Outbox
	inbox    *inbox.Inbox
	silences *silences
}

func newPost(db *storeurl.Database, silences *silences) (*post, error) {
	box, err := outbox.New(db.Store, outbox.Config{Source: "https://parcels.example"})
	return &post{db: db, box: box, inbox: inbox.New(db.Store), silences: silences}, err
}

// ship adds the messages.
func (p *post) ship(w http.ResponseWriter, r *http.Request) {
	var s Shipment
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Parcels < 1 || s.Parcels > 20 {
		http.Error(w, "the body must be a shipment of 1 to 20 parcels", http.StatusBadRequest)
		return
	}
	for number := 1; number <= s.Parcels; number++ {
		payload, err := json.Marshal(parcel{
			Reference: s.Reference, Street: s.Street, Number: number,
			Lapse: number == s.Lapse,
		})
		if err == nil {
			_, err = p.box.AddToAnswer(r.Context(), outbox.Message{
				Topic: parcelsTopic, AggregateType: "street", AggregateID: s.Street, Type: "parcel.sent",
				Payload: payload,
				Step:    parcelsTopic + string(rune('a'+number)),
			})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	s.Account = onceward.FromContext(r.Context()).Scope()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(s) // it is kept in memory until the commit
}

// worker delivers the messages. Its leases are short, so that a bearer that is taken for dead is soon replaced.
func (p *post) worker(logger *slog.Logger) (*outbox.Worker, error) {
	return outbox.NewWorker(p.db.Store, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{parcelsTopic: {
			Handler: p.deliver, Timeout: 2 * longestLapse, MaxAttempts: 1000, MinBackoff: Timing.Backoff,
			MaxBackoff: 5 * Timing.Backoff, Concurrency: 16,
		}},
		Lease: 2 * LapseLease, Poll: Timing.Look, Logger: logger,
	})
}

// slowest is how long a parcel takes at most, if nothing happens to it.
const slowest = 150 * time.Millisecond

var errDropped = errors.New("the parcel was dropped")

// deliver takes a parcel to the shelf, or drops it: before it is there, on the shelf, or on the way back.
func (p *post) deliver(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
	var one parcel
	if err := json.Unmarshal(d.Payload, &one); err != nil {
		return outbox.Result{}, outbox.Permanent(err)
	}
	if one.Lapse && d.Attempts == 1 {
		p.silences.message(d.ID)
		p.awaitSuccessor(context.WithoutCancel(ctx), d.ID)
	} else if one.Lapse {
		time.Sleep(LapseLease / 2) // so that the one before meets this one
	}
	time.Sleep(time.Duration(rand.Int64N(int64(slowest))))
	luck := rand.Float64()
	if luck < 0.1 {
		return outbox.Result{}, errDropped
	}
	_, err := p.inbox.Handle(ctx, shelf, d.ID, func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx,
			p.db.Bind(`INSERT INTO arrival (street, reference, number, place)
			SELECT $1, $2, $3, count(*) + 1 FROM arrival WHERE street = $4`),
			one.Street, one.Reference, one.Number, one.Street)
		if err == nil && luck < 0.2 {
			err = errDropped
		}
		return err
	})
	if err == nil && luck < 0.3 {
		err = errDropped
	}
	return outbox.Result{}, err
}

// awaitSuccessor waits until another bearer has the message.
func (p *post) awaitSuccessor(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, longestLapse)
	defer cancel()
	for ctx.Err() == nil {
		found, err := p.db.Messages(ctx, outbox.Filter{ID: id})
		if err == nil && len(found) == 1 && found[0].Attempts > 1 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
