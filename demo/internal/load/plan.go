package load

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/onceward/onceward/examples/provider"
)

// Kind is the kind of an order.
type Kind string

// These are the kinds of orders.
const (
	Payment Kind = "payment"
	Refund  Kind = "refund"
	Booking Kind = "booking"
)

// Count returns a number of orders in words: 1 payment, 2 payments.
func (k Kind) Count(n int) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", k)
	}
	return fmt.Sprintf("%d %ss", n, k)
}

// Order is one thing that a client wants to happen once.
type Order struct {
	Kind Kind
	// Key is the idempotency key, and also the order's reference in the provider's ledger.
	Key string
	// Account is the bearer token of the client.
	Account string
	Amount  int64
	// Refund is the refund that is requested after the payment is charged. It is nil for most payments.
	Refund *Order
}

// Of a hundred payments, refundPercent are refunded and declinedPercent have an amount
// that is declined. For a hundred payments there are also bookingPercent bookings.
const (
	refundPercent   = 8
	declinedPercent = 2
	bookingPercent  = 6
)

var accounts = []string{"alice", "bob"}

// Plan draws the orders of a run. The same seed gives the same orders except for their keys:
// keys begin with the name of the run, because a store may remember the keys of an earlier run.
func Plan(run string, seed uint64, payments int) []Order {
	draw := rand.New(rand.NewPCG(seed, 0))
	bookings := payments * bookingPercent / 100
	orders := make([]Order, 0, payments+bookings)
	for i := range payments {
		orders = append(orders, drawPayment(draw, fmt.Sprintf("%s-payment-%d", run, i)))
	}
	for i := range bookings {
		orders = append(orders, drawOrder(draw, Booking, fmt.Sprintf("%s-booking-%d", run, i)))
	}
	draw.Shuffle(len(orders), func(i, j int) { orders[i], orders[j] = orders[j], orders[i] })
	return orders
}

func drawPayment(draw *rand.Rand, key string) Order {
	o := drawOrder(draw, Payment, key)
	if o.Amount != provider.DeclinedAmount && draw.IntN(100) < refundPercent {
		// Only a part is refunded, so that a duplicate would find enough left to succeed.
		o.Refund = &Order{Kind: Refund, Key: key + "-refund", Account: o.Account, Amount: o.Amount / 3}
	}
	return o
}

func drawOrder(draw *rand.Rand, kind Kind, key string) Order {
	o := Order{Kind: kind, Key: key, Account: accounts[draw.IntN(len(accounts))], Amount: 1000 + draw.Int64N(49_000)}
	if draw.IntN(100) < declinedPercent {
		o.Amount = provider.DeclinedAmount
	}
	return o
}

// Asked counts the orders of a plan by kind.
func Asked(plan []Order) map[Kind]int {
	asked := make(map[Kind]int)
	for _, o := range plan {
		asked[o.Kind]++
		if o.Refund != nil {
			asked[Refund]++
		}
	}
	return asked
}

// body returns the body of the request. It is the same for every attempt, because otherwise it would not be a retry.
func (o *Order) body() []byte {
	fields := map[string]any{"reference": o.Key, "amount": o.Amount}
	switch o.Kind {
	case Payment:
		fields["customer"], fields["currency"] = "customer of "+o.Account, "EUR"
	case Booking:
		fields = map[string]any{"reference": o.Key, "item": "concert", "price": o.Amount}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return body
}
