package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/onceward/onceward/chaos/internal/node"
	"github.com/onceward/onceward/internal/provider"
)

// operation is what a client wants to happen once.
type operation struct {
	token, key, kind, path string
	amount                 int64
	// abandoned is set if the client does not come back: nobody but the workers in the background brings it to an end then.
	abandoned bool
	// requests are what is sent under the key: one, or a second one that is a mistake of the client.
	requests []request

	mu sync.Mutex
	// done is set when a definitive answer was seen.
	done bool
	// payment is the id of a payment that was made.
	payment string
}

// request is a body, and the name under which its effect can be found.
type request struct {
	reference, body string
}

func (o *operation) scope() string { return node.Tokens[o.token] }

func (o *operation) answered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done
}

// draw makes up the next operation of a client. It returns nil if there is nothing to be done of the kind that was drawn.
func (l *Load) draw(ctx context.Context, random *rand.Rand, client, n int) *operation {
	name := fmt.Sprintf("%d-%d", client, n)
	op := &operation{token: tokens[n%len(tokens)], key: "key-" + name}
	if random.Float64() < 0.3 {
		op.key = fmt.Sprintf("both-%d-%d", client, n/len(tokens)) // the next account may use the same one
	}
	op.abandoned = random.Float64() < 0.06
	op.amount = 100 + random.Int64N(500) // below what is declined
	switch kind := random.Float64(); {
	case kind < 0.15:
		op.kind, op.path, op.amount = "entry", "/entries", 0
		op.ask(random, name, func(reference string) any { return node.Entry{Reference: reference} })
	case kind < 0.45:
		op.kind, op.path = "payment", "/payments"
		op.mayBeDeclined(random)
		op.ask(random, name, func(reference string) any {
			return map[string]any{"customer": "c1", "amount": op.amount, "currency": "EUR", "reference": reference}
		})
	case kind < 0.70:
		op.kind, op.path = "transfer", "/transfers"
		op.ask(random, name, func(reference string) any { return node.Transfer{Reference: reference, Amount: op.amount} })
	case kind < 0.85:
		op.kind, op.path = "booking", "/bookings"
		item := []string{"concert", "theatre", "circus"}[min(random.IntN(12)/5, 2)] // there are no places in the circus
		op.mayBeDeclined(random)
		op.ask(random, name, func(reference string) any {
			return map[string]any{"item": item, "price": op.amount, "reference": reference}
		})
	default:
		payment := l.charged(ctx, random, op.token)
		if payment == "" {
			return nil
		}
		op.kind, op.path, op.amount = "refund", "/payments/"+payment+"/refund", 1
		op.ask(random, name, func(reference string) any { return map[string]any{"amount": op.amount, "reference": reference} })
	}
	return op
}

// mayBeDeclined has the provider decline the card now and then.
func (o *operation) mayBeDeclined(random *rand.Rand) {
	if random.Float64() < 0.04 {
		o.amount = provider.DeclinedAmount
	}
}

// ask writes the request; now and then a second one with the same key, which must not be taken for the first.
func (o *operation) ask(random *rand.Rand, name string, body func(reference string) any) {
	variants := 1
	if random.Float64() < 0.05 {
		variants = 2
	}
	for variant := range variants {
		reference := fmt.Sprintf("%s-%s-%c", o.kind, name, 'a'+variant)
		encoded, err := json.Marshal(body(reference))
		if err != nil {
			panic(err) // maps of strings and numbers can always be encoded
		}
		o.requests = append(o.requests, request{reference, string(encoded)})
	}
}

// charged draws a payment of an account that is charged, or nothing.
func (l *Load) charged(ctx context.Context, random *rand.Rand, token string) (id string) {
	l.mu.Lock()
	if mine := l.paid[token]; len(mine) > 0 {
		id = mine[random.IntN(len(mine)/2+1)] // among the older ones
	}
	l.mu.Unlock()
	if id == "" {
		return ""
	}
	front := l.Fronts[random.IntN(len(l.Fronts))]
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, front+"/payments/"+id, nil)
	if err != nil {
		return ""
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := l.http.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var shown struct{ State string }
	if err := json.NewDecoder(response.Body).Decode(&shown); err != nil || shown.State != "charged" {
		return ""
	}
	return id
}
