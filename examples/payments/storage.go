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

// Store is the part of a store that the system needs, whatever the store keeps its records in.
type Store interface {
	store.Store
	store.Lister
	store.ExternalEventKeeper
}

// Database is a store in an SQL database, with access to the system's own tables beside
// the records. *storeurl.Database implements it for all databases that Onceward supports.
type Database interface {
	Store
	outbox.Store
	natural.Store

	// InTx runs work in a transaction, which work gets from its
	// context with [onceward.Tx]. It commits if work returns nil.
	InTx(ctx context.Context, work func(ctx context.Context) error) error
	// Bind converts a statement with the parameters $1, $2 and so on to the form that the database expects.
	Bind(statement string) string
	// Define creates tables, by statements that can be repeated.
	// Processes that start at the same time wait for each other.
	Define(ctx context.Context, statements ...string) error
	// HasColumn reports whether a table has a column.
	HasColumn(ctx context.Context, tx *sql.Tx, table, column string) (bool, error)
	// Reads returns the database for reading tables. Writes use a transaction of the store.
	Reads() *sql.DB
}

// Items is the system's storage on a store without SQL. Package items implements it for DynamoDB.
type Items interface {
	Storage
	// Records returns the store of the records.
	Records() Store
	// Charger returns the worker that charges the payments with an order to charge.
	Charger(c Charging) onceward.Worker
}

// Storage stores the system's data: rows of a database, or items of DynamoDB.
// Writes for a request are made in the transaction of its handler, or of its step.
type Storage interface {
	// Create creates the tables that are missing.
	Create(ctx context.Context) error

	// AddPayment stores a payment. If the same request stored it so long ago
	// that its record has expired, AddPayment returns the existing payment.
	AddPayment(ctx context.Context, p *Payment) (*Payment, error)
	// OrderCharge orders the worker to charge a payment. A repeated order is harmless:
	// the downstream key is the same, and the provider returns the existing charge.
	OrderCharge(ctx context.Context, p *Payment) error
	// Payments returns up to a hundred payments of an account.
	Payments(ctx context.Context, account string) ([]Payment, error)
	// Payment returns one payment of an account. The error is
	// [ErrNoPayment] if the account has no payment with this id.
	Payment(ctx context.Context, account, id string) (*Payment, error)
	// NoteRefund stores a refund under the provider's id, which is its natural key: the part
	// of the system that sees it first inserts it, and a second insertion changes nothing.
	NoteRefund(ctx context.Context, payment string, made provider.Refund) error
	// Messages counts the charges that were ordered and are not made yet.
	Messages(ctx context.Context) (OpenMessages, error)

	// Reserve takes a place and stores the booking, or reads the existing booking.
	Reserve(ctx context.Context, b *Booking) (Reservation, error)
	// Confirm stores how a booking ended, and releases its place if no money moved.
	Confirm(ctx context.Context, b *Booking) error
}

// Reservation is the outcome of taking a place.
type Reservation int

// These are the outcomes of taking a place.
const (
	ReservedNow Reservation = iota + 1
	ReservedBefore
	SoldOut
)

// ErrNoPayment is returned when there is no payment with an id.
var ErrNoPayment = errors.New("there is no such payment")

// OpenMessages counts orders to charge.
type OpenMessages struct {
	Waiting     int       `json:"waiting"`
	DeadLetters int       `json:"dead_letters"`
	Oldest      time.Time `json:"oldest,omitzero"`
}

// Charging contains what a worker without an outbox needs to charge payments.
type Charging struct {
	// Charge charges a payment at the provider, and sets the result in the payment. Refused is why
	// the provider has permanently refused: then there is no result, and a retry would be useless.
	Charge func(ctx context.Context, key string, p *Payment) (refused string, err error)
	// Done counts a payment whose result was stored.
	Done func()
	// Poll is the time between two searches for orders.
	Poll time.Duration
	// Logger is the logger for operators.
	Logger *slog.Logger
}
