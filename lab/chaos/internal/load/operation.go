package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// operation is what a client wants to happen once.
type operation struct {
	window, token, key, kind, path string
	// abandoned is set if the client does not come back: only the workers in the background bring it to an end
	// then.
	abandoned bool
	// requests are what is sent under the key: one, or a second one that is a mistake of the client.
	requests []request

	mu sync.Mutex
	// done is set when a definitive answer was seen.
	done bool
	// payment is the id of a payment that was made.
	payment string
	// charge is that of the payment that a refund is about.
	charge string
	// asked is how often it was sent.
	asked int
}

// request is a body, the name under which its effect can be found, and how much it asks to move.
type request struct {
	reference, body string
	amount          int64
}

// expires reports whether the answers of a kind are kept so briefly that the same key executes again within a run.
func (o *operation) expires() bool { return o.kind == "flash" || o.kind == "spark" }

func (o *operation) scope() string { return node.Tokens[o.token] }

func (o *operation) answered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done
}

// begin begins an operation of a client, and names it.
func (l *Load) begin(client, n int) (op *operation, name string) {
	name = fmt.Sprintf("%d-%d", client, n)
	return &operation{window: l.Window, token: tokens[n%len(tokens)], key: l.Window + "key-" + name}, name
}

// draw makes up the next operation of a client. It returns nil if there is nothing to be done of the kind that was
// drawn.
func (l *Load) draw(ctx context.Context, random *rand.Rand, client, n int) *operation {
	op, name := l.begin(client, n)
	if random.Float64() < 0.3 {
		op.key = fmt.Sprintf("%sboth-%d-%d", l.Window, client, n/len(tokens)) // the next account may use the same one
	}
	op.abandoned = random.Float64() < 0.06
	amount := 100 + random.Int64N(500) // below what is declined
	switch kind := random.Float64(); {
	case l.Plain && l.Entries && kind < 0.25:
		op.drawEntry(random, name)
	case l.Plain && kind < 0.4:
		op.drawTransfer(random, name, amount)
	case l.Plain:
		op.drawHarder(random, client, n, name, 1+random.IntN(6)) // past the flashes, before the shipments
	case kind < 0.10:
		op.drawEntry(random, name)
	case kind < 0.30:
		op.kind, op.path = "payment", "/payments"
		op.ask(random, name, orDeclined(random, amount), func(reference string, amount int64) any {
			return map[string]any{"customer": "c1", "amount": amount, "currency": "EUR", "reference": reference}
		})
	case kind < 0.48:
		op.drawTransfer(random, name, amount)
	case kind < 0.58:
		op.kind, op.path = "booking", "/bookings"
		item := []string{"concert", "theatre", "circus"}[min(random.IntN(12)/5, 2)] // there are no places in the circus
		op.ask(random, name, orDeclined(random, amount), func(reference string, amount int64) any {
			return map[string]any{"item": item, "price": amount, "reference": reference}
		})
	case kind < 0.86:
		op.drawHarder(random, client, n, name, random.IntN(11))
	default:
		payment, charge := l.charged(ctx, random, op.token)
		if payment == "" {
			return nil
		}
		op.kind, op.path, op.charge = "refund", "/payments/"+payment+"/refund", charge
		op.ask(random, name, 1, func(reference string, amount int64) any {
			return map[string]any{"amount": amount, "reference": reference}
		})
	}
	return op
}

// drawEntry makes up an entry.
func (o *operation) drawEntry(random *rand.Rand, name string) {
	o.kind, o.path = "entry", "/entries"
	o.ask(random, name, 0, func(reference string, _ int64) any { return node.Entry{Reference: reference} })
}

// drawTransfer makes up a transfer. The owner of some outlasts its lease.
func (o *operation) drawTransfer(random *rand.Rand, name string, amount int64) {
	o.kind, o.path = "transfer", "/transfers"
	stall := random.Float64() < 0.1
	o.ask(random, name, amount, func(reference string, amount int64) any {
		return node.Transfer{Reference: reference, Amount: amount, Stall: stall}
	})
}

// drawSpark makes up an operation without an effect, whose answer operators remove.
func (o *operation) drawSpark(random *rand.Rand, name string) {
	o.kind, o.path, o.abandoned = "spark", "/sparks", false
	o.ask(random, name, 0, func(reference string, _ int64) any { return node.Entry{Reference: reference} })
}

// drawHarder makes up one of the operations that are there to meet what is rare otherwise. Those that only an
// operator could settle are not abandoned: a retry has to take them over.
func (o *operation) drawHarder(random *rand.Rand, client, n int, name string, which int) {
	switch which {
	case 0:
		o.kind, o.path = "flash", "/flashes"
		o.ask(random, name, 0, func(reference string, _ int64) any { return node.Entry{Reference: reference} })
	case 1, 10:
		o.drawSpark(random, name)
	case 2, 3:
		o.kind, o.path, o.abandoned = "lapse", "/lapses", false
		outcome := []string{
			node.LapseComplete, node.LapseComplete, node.LapseRelease, node.LapseAbandon,
			node.LapseCheckpoint,
		}[random.IntN(5)]
		o.ask(random, name, 0, func(reference string,
			_ int64,
		) any {
			return node.Lapse{Reference: reference, Outcome: outcome}
		})
	case 4, 5:
		o.kind, o.path = "trip", []string{"/trips", "/tours"}[random.IntN(2)]
		o.ask(random, name, 100+random.Int64N(500), func(reference string, amount int64) any {
			return node.Trip{Reference: reference, Amount: amount}
		})
	case 6:
		o.kind, o.path, o.abandoned = "doubt", "/doubts", false
		o.ask(random, name, 0, func(reference string, _ int64) any { return node.Lapse{Reference: reference} })
	default:
		o.kind, o.path = "shipment", "/parcels"
		parcels := 2 + random.IntN(3)
		street := fmt.Sprintf("%sstreet-%d-%d", o.window, client%streets, n/shipments)
		lapse := 0
		if random.IntN(6) == 0 {
			lapse = 1 + random.IntN(parcels)
		}
		o.ask(random, name, int64(parcels), func(reference string, parcels int64) any {
			return node.Shipment{Reference: reference, Street: street, Parcels: int(parcels), Lapse: lapse}
		})
	}
}

// streets is how many places there are that parcels are sent to, and shipments after how many operations of a client
// they are others: parcels to one street arrive one by one, so that those of a long run would never all have arrived.
const (
	streets   = 4
	shipments = 30
)

// orDeclined is the amount, or now and then one for which the provider declines the card.
func orDeclined(random *rand.Rand, amount int64) int64 {
	if random.Float64() < 0.04 {
		return provider.DeclinedAmount
	}
	return amount
}

// ask writes the request; now and then a second one with the same key, which must not be taken for the first. It is
// about something else, or differs in the amount alone.
func (o *operation) ask(random *rand.Rand, name string, amount int64, body func(reference string, amount int64) any) {
	reference := fmt.Sprintf("%s%s-%s-a", o.window, o.kind, name)
	o.add(reference, amount, body)
	switch mistake := random.Float64(); {
	case mistake < 0.04 && amount > 0:
		o.add(reference, amount+1, body)
	case mistake < 0.08:
		o.add(fmt.Sprintf("%s%s-%s-b", o.window, o.kind, name), amount, body)
	}
}

func (o *operation) add(reference string, amount int64, body func(reference string, amount int64) any) {
	encoded, err := json.Marshal(body(reference, amount))
	if err != nil {
		panic(err) // maps of strings and numbers can always be encoded
	}
	o.requests = append(o.requests, request{reference, string(encoded), amount})
}

// charged draws a payment of an account that is charged, with its charge, or nothing.
func (l *Load) charged(ctx context.Context, random *rand.Rand, token string) (id, charge string) {
	l.mu.Lock()
	if mine := l.paid[token]; len(mine) > 0 {
		id = mine[random.IntN(len(mine)/2+1)] // among the older ones
	}
	l.mu.Unlock()
	if id == "" {
		return "", ""
	}
	front := l.Fronts[random.IntN(len(l.Fronts))]
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, front+"/payments/"+id, nil)
	if err != nil {
		return "", ""
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := l.http.Do(request)
	if err != nil {
		return "", ""
	}
	defer response.Body.Close()
	var shown struct{ State, Charge string }
	if err := json.NewDecoder(response.Body).Decode(&shown); err != nil || shown.State != "charged" {
		return "", ""
	}
	return id, shown.Charge
}
