package payments

import (
	"context"
	"errors"

	"github.com/onceward/onceward/examples/provider"
)

// storage is where the system writes down what it has done: rows of a database, or items of DynamoDB. What is done for a
// request is done in the transaction of its handler, or of its step.
type storage interface {
	// create makes the tables that are missing.
	create(ctx context.Context) error

	// addPayment writes a payment down, or returns the one that is there if the same request wrote it so long ago that its
	// record has expired.
	addPayment(ctx context.Context, p *Payment) (*Payment, error)
	// orderCharge has the worker charge a payment. To order it again is harmless: the downstream key is the same, and the
	// provider answers with the charge that it has.
	orderCharge(ctx context.Context, p *Payment) error
	// payments reads up to a hundred payments of an account.
	payments(ctx context.Context, account string) ([]Payment, error)
	// payment reads one payment of an account. The error is errNoPayment if it has none of that id.
	payment(ctx context.Context, account, id string) (*Payment, error)
	// noteRefund writes a refund down under the provider's id, which is its natural key: the one that learns of it first
	// inserts it, and to do so again changes nothing.
	noteRefund(ctx context.Context, payment string, made provider.Refund) error
	// messages counts the charges that were ordered and are not made yet.
	messages(ctx context.Context) (openMessages, error)

	// reserve takes a place and writes the booking down, or reads the one that is there.
	reserve(ctx context.Context, b *booking) (reservation, error)
	// confirm writes down how a booking ended, and gives its place back if no money moved.
	confirm(ctx context.Context, b *booking) error
}

// reservation is what came of taking a place.
type reservation int

const (
	reservedNow reservation = iota + 1
	reservedBefore
	soldOut
)

var errNoPayment = errors.New("there is no such payment")
