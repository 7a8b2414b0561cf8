package payments

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Store is what the parts of the system need of a store, whatever the store keeps its records in.
type Store interface {
	store.Store
	store.Lister
	store.ExternalEventKeeper
}

// Database is a store in a database of SQL, with a way to the system's own tables beside the records. *storeurl.Database
// is one, for all the databases that Onceward supports.
type Database interface {
	Store
	outbox.Store
	natural.Store

	// InTx runs work in a transaction, which work takes from its context with [onceward.Tx], and commits if work returns
	// nil.
	InTx(ctx context.Context, work func(ctx context.Context) error) error
	// Bind writes a statement with the parameters $1, $2 and so on as the database takes it.
	Bind(statement string) string
	// Define makes tables, by statements that can be repeated. Processes that start at one time wait for each other.
	Define(ctx context.Context, statements ...string) error
	// HasColumn reports whether a table has a column.
	HasColumn(ctx context.Context, tx *sql.Tx, table, column string) (bool, error)
	// Reads is for reading tables. Writes go through a transaction of the store.
	Reads() *sql.DB
}

// Items is the system's place on a store without SQL. Package items has one for DynamoDB.
type Items interface {
	Storage
	// Records is the store of the records.
	Records() Store
	// Charger returns the worker that charges the payments for which charges were ordered.
	Charger(c Charging) onceward.Worker
}

// Storage is where the system writes down what it has done: rows of a database, or items of DynamoDB. What is done for a
// request is done in the transaction of its handler, or of its step.
type Storage interface {
	// Create makes the tables that are missing.
	Create(ctx context.Context) error

	// AddPayment writes a payment down, or returns the one that is there if the same request wrote it so long ago that its
	// record has expired.
	AddPayment(ctx context.Context, p *Payment) (*Payment, error)
	// OrderCharge has the worker charge a payment. To order it again is harmless: the downstream key is the same, and the
	// provider answers with the charge that it has.
	OrderCharge(ctx context.Context, p *Payment) error
	// Payments reads up to a hundred payments of an account.
	Payments(ctx context.Context, account string) ([]Payment, error)
	// Payment reads one payment of an account. The error is [ErrNoPayment] if the account has none of that id.
	Payment(ctx context.Context, account, id string) (*Payment, error)
	// NoteRefund writes a refund down under the provider's id, which is its natural key: the first part of the system that
	// knows of it inserts it, and a second insertion changes nothing.
	NoteRefund(ctx context.Context, payment string, made provider.Refund) error
	// Messages counts the charges that were ordered and are not made yet.
	Messages(ctx context.Context) (OpenMessages, error)

	// Reserve takes a place and writes the booking down, or reads the one that is there.
	Reserve(ctx context.Context, b *Booking) (Reservation, error)
	// Confirm writes down how a booking ended, and gives its place back if no money moved.
	Confirm(ctx context.Context, b *Booking) error
}

// Reservation is what came of taking a place.
type Reservation int

// The outcomes of taking a place.
const (
	ReservedNow Reservation = iota + 1
	ReservedBefore
	SoldOut
)

// ErrNoPayment is returned when there is no payment of an id.
var ErrNoPayment = errors.New("there is no such payment")

// OpenMessages counts orders to charge.
type OpenMessages struct {
	Waiting     int       `json:"waiting"`
	DeadLetters int       `json:"dead_letters"`
	Oldest      time.Time `json:"oldest,omitzero"`
}

// Charging is what a worker without an outbox needs to charge payments.
type Charging struct {
	// Charge has the provider charge a payment, and notes in the payment what came of it. Refused is why the provider has
	// refused permanently: then there is nothing to note, and no use in another try.
	Charge func(ctx context.Context, key string, p *Payment) (refused string, err error)
	// Done counts a payment whose end was written down.
	Done func()
	// Poll is the time between two looks at what was ordered.
	Poll time.Duration
	// Logger gets what an operator should know.
	Logger *slog.Logger
}
