package payments

import (
	"context"
	"errors"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/storeurl"
)

// storage is where the system writes down what it has done: rows of a database, or items of DynamoDB.
type storage interface {
	// create makes the tables that are missing.
	create(ctx context.Context) error
	// payments reads up to a hundred payments of an account.
	payments(ctx context.Context, account string) ([]Payment, error)
	// payment reads one payment of an account. The error is errNoPayment if it has none of that id.
	payment(ctx context.Context, account, id string) (*Payment, error)
	// noteRefund writes a refund down under the provider's id, which is its natural key: the one that learns of it first
	// inserts it, and to do so again changes nothing.
	noteRefund(ctx context.Context, payment string, made provider.Refund) error
	// waiting counts the charges that were ordered and are not made yet.
	waiting(ctx context.Context) (int, error)
}

var errNoPayment = errors.New("there is no such payment")

// sqlStorage is rows of a database.
type sqlStorage struct{ db *storeurl.Database }

func (b sqlStorage) payments(ctx context.Context, account string) ([]Payment, error) {
	return b.find(ctx, `account = $1 ORDER BY created_at DESC LIMIT 100`, account)
}

func (b sqlStorage) payment(ctx context.Context, account, id string) (*Payment, error) {
	found, err := b.find(ctx, `account = $1 AND id = $2`, account, id)
	if err == nil && len(found) == 0 {
		err = errNoPayment
	}
	if err != nil {
		return nil, err
	}
	return &found[0], nil
}

// find reads the payments that a condition chooses.
func (b sqlStorage) find(ctx context.Context, where string, args ...any) ([]Payment, error) {
	query := b.db.Bind(`SELECT ` + paymentColumns + ` FROM payment WHERE ` + where)
	rows, err := b.db.Reads().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := []Payment{}
	for rows.Next() {
		p, err := scanPayment(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, *p)
	}
	return found, rows.Err()
}

func (b sqlStorage) noteRefund(ctx context.Context, payment string, made provider.Refund) error {
	return b.db.InTx(ctx, func(ctx context.Context) error {
		_, err := b.db.UpsertRow(ctx, onceward.Tx(ctx), natural.Upsert{
			Table: "refund", Key: []natural.Column{{Name: "id", Value: made.ID}},
			Values: []natural.Column{
				{Name: "payment", Value: payment},
				{Name: "amount", Value: made.Amount},
				{Name: "reference", Value: made.Reference},
				{Name: "made_at", Value: made.Created.UnixMicro()},
			},
		})
		return err
	})
}

func (b sqlStorage) waiting(ctx context.Context) (int, error) {
	messages, err := b.db.MessageStats(ctx)
	return messages.Waiting, err
}
