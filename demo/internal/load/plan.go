package load

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/onceward/onceward/examples/provider"
)

// Kind is what an order is for.
type Kind string

// The kinds of orders.
const (
	Payment Kind = "payment"
	Refund  Kind = "refund"
	Booking Kind = "booking"
)

// Count says how many there are: 1 payment, 2 payments.
func (k Kind) Count(n int) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", k)
	}
	return fmt.Sprintf("%d %ss", n, k)
}

// Order is one thing that a client wants to happen once.
type Order struct {
	Kind Kind
	// Key is the idempotency key, and also the reference by which the provider's ledger knows the order.
	Key string
	// Account is the bearer token of the client.
	Account string
	Amount  int64
	// Refund is asked for when the payment is charged. It is nil for most.
	Refund *Order
}

// In a hundred payments, this many are refunded, this many are of an amount that is declined, and this many bookings
// come along.
const (
	refundPercent   = 8
	declinedPercent = 2
	bookingPercent  = 6
)

var accounts = []string{"alice", "bob"}

// Plan draws the orders of a run. The same seed gives the same orders but for their keys: these begin with the name of
// the run, because a store may remember the keys of an earlier one.
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
		// A part of it, so that a second one would find enough left to succeed.
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

// body is what is sent. It is the same for every attempt, or it would not be a retry.
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
		panic(err) // strings and numbers can be encoded
	}
	return body
}
