package payments

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
)

// sqlStorage stores the system's data in a database. Orders to charge go through the outbox.
type sqlStorage struct {
	db  Database
	box *outbox.Outbox
	// mySQL means that the tables are declared as MySQL requires.
	mySQL bool
}

func (b *sqlStorage) AddPayment(ctx context.Context, p *Payment) (*Payment, error) {
	inserted, err := b.insert(ctx, "payment", p.ID, []natural.Column{
		{Name: "account", Value: p.Account},
		{Name: "request", Value: onceward.FromContext(ctx).Key()},
		{Name: "reference", Value: p.Reference},
		{Name: "customer", Value: p.Customer},
		{Name: "amount", Value: p.Amount},
		{Name: "currency", Value: p.Currency},
		{Name: "state", Value: p.State},
		{Name: "created_at", Value: p.CreatedAt},
	})
	if err != nil || inserted {
		return p, err
	}
	return scanPayment(onceward.Tx(ctx).QueryRowContext(ctx,
		b.db.Bind(`SELECT `+paymentColumns+` FROM payment WHERE id = $1`), p.ID))
}

func (b *sqlStorage) OrderCharge(ctx context.Context, p *Payment) error {
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = b.box.Add(ctx, onceward.Tx(ctx), outbox.Message{
		Topic: chargesTopic, AggregateType: "payment", AggregateID: p.ID, Type: "payment.created", Payload: payload,
	})
	return err
}

// notePaymentCharged stores the result of a payment, in the transaction that finishes its message.
func (b *sqlStorage) notePaymentCharged(ctx context.Context, id string, made provider.Charge) error {
	changed, err := rowsChanged(onceward.Tx(ctx).ExecContext(ctx,
		b.db.Bind(`UPDATE payment SET state = $1, charge = $2, charged_at = $3 WHERE id = $4`),
		chargeState(made), made.ID, made.Created.UnixMicro(), id))
	if err == nil && changed != 1 {
		err = fmt.Errorf("payment %s: %d rows changed, want 1", id, changed)
	}
	return err
}

func (b *sqlStorage) Payments(ctx context.Context, account string) ([]Payment, error) {
	return b.find(ctx, `account = $1 ORDER BY created_at DESC LIMIT 100`, account)
}

func (b *sqlStorage) Payment(ctx context.Context, account, id string) (*Payment, error) {
	found, err := b.find(ctx, `account = $1 AND id = $2`, account, id)
	if err == nil && len(found) == 0 {
		err = ErrNoPayment
	}
	if err != nil {
		return nil, err
	}
	return &found[0], nil
}

// find returns the payments that match a condition.
func (b *sqlStorage) find(ctx context.Context, where string, args ...any) ([]Payment, error) {
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

const paymentColumns = `id, account, reference, customer, amount, currency, state, charge, created_at`

// scanPayment reads the paymentColumns of a row.
func scanPayment(row interface{ Scan(into ...any) error }) (*Payment, error) {
	var p Payment
	err := row.Scan(&p.ID, &p.Account, &p.Reference, &p.Customer, &p.Amount, &p.Currency, &p.State, &p.Charge,
		&p.CreatedAt)
	return &p, err
}

func (b *sqlStorage) NoteRefund(ctx context.Context, payment string, made provider.Refund) error {
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

func (b *sqlStorage) Messages(ctx context.Context) (OpenMessages, error) {
	found, err := b.db.MessageStats(ctx)
	return OpenMessages{found.Waiting, found.DeadLetters, found.Oldest}, err
}

func (b *sqlStorage) Reserve(ctx context.Context, booked *Booking) (Reservation, error) {
	inserted, err := b.insert(ctx, "booking", booked.ID, []natural.Column{
		{Name: "account", Value: booked.Account},
		{Name: "request", Value: onceward.FromContext(ctx).Key()},
		{Name: "reference", Value: booked.Reference},
		{Name: "item", Value: booked.Item},
		{Name: "price", Value: booked.Price},
		{Name: "state", Value: booked.State},
	})
	tx := onceward.Tx(ctx)
	switch {
	case err != nil:
		return 0, err
	case !inserted:
		row := tx.QueryRowContext(ctx, b.db.Bind(
			`SELECT reference, item, price, state, charge, charged_at, reason FROM booking WHERE id = $1`), booked.ID)
		return ReservedBefore, row.Scan(&booked.Reference, &booked.Item, &booked.Price, &booked.State, &booked.Charge,
			&booked.ChargedAt, &booked.Reason)
	}
	taken, err := rowsChanged(tx.ExecContext(ctx,
		b.db.Bind(`UPDATE stock SET places = places - 1 WHERE item = $1 AND places > 0`), booked.Item))
	if taken == 0 {
		return SoldOut, err
	}
	return ReservedNow, err
}

func (b *sqlStorage) Confirm(ctx context.Context, booked *Booking) error {
	tx := onceward.Tx(ctx)
	if !booked.Moved() {
		_, err := tx.ExecContext(ctx, b.db.Bind(`UPDATE stock SET places = places + 1 WHERE item = $1`), booked.Item)
		if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx,
		b.db.Bind(`UPDATE booking SET state = $1, charge = $2, charged_at = $3, reason = $4 WHERE id = $5`),
		booked.State, booked.Charge, booked.ChargedAt, booked.Reason, booked.ID)
	return err
}
