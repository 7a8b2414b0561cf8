package items

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
)

// charger charges payments on DynamoDB, where there is no outbox. An order is an item that was committed with its
// payment, and is removed in the transaction that stores the result. If two processes charge the same order, the
// provider makes one charge, because the key is the same. In production a stream of the table would wake the charger.
type charger struct {
	payments.Charging
	items *Storage
}

// Charger implements [payments.Items].
func (s *Storage) Charger(c payments.Charging) onceward.Worker { return &charger{c, s} }

// chargesAtOnce is the number of charges that run at the same time.
const chargesAtOnce = 16

// Run implements [onceward.Worker].
func (c *charger) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.Poll)
	defer ticker.Stop()
	for {
		if err := c.runOnce(ctx); err != nil && ctx.Err() == nil {
			c.Logger.WarnContext(ctx, "payments: cannot charge", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// runOnce charges one page of orders. Failed orders are retried the next time.
func (c *charger) runOnce(ctx context.Context) error {
	found, err := c.items.list(ctx, chargesPartition, "", mostOrders)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, chargesAtOnce)
	for _, one := range found {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := c.charge(ctx, one); err != nil && ctx.Err() == nil {
				c.Logger.WarnContext(ctx, "payments: a charge was not made, and is tried again", "error", err)
			}
		})
	}
	all.Wait()
	return nil
}

func (c *charger) charge(ctx context.Context, one item) error {
	order, err := read[chargeOrder](one)
	if err != nil {
		return err
	}
	refused, err := c.Charge(ctx, order.Key, &order.Payment)
	switch {
	case err != nil:
		return err
	case refused != "":
		return c.giveUp(ctx, order, refused)
	default:
		return c.note(ctx, &order.Payment)
	}
}

// note stores the result of a payment, and removes the order.
func (c *charger) note(ctx context.Context, p *payments.Payment) error {
	one, err := paymentItem(p)
	if err != nil {
		return err
	}
	ended, err := c.end(ctx, p.ID, types.Put{TableName: &c.items.Table, Item: one})
	if ended {
		c.Done()
	}
	return err
}

// giveUp turns an order that the provider has permanently refused into a dead letter, for a person.
func (c *charger) giveUp(ctx context.Context, order chargeOrder, reason string) error {
	order.Error = reason
	one, err := itemOf(deadChargesPartition, order.Payment.ID, "refused", order)
	if err != nil {
		return err
	}
	_, err = c.end(ctx, order.Payment.ID, types.Put{TableName: &c.items.Table, Item: one})
	return err
}

// end writes an item and removes the order in one transaction. It reports
// whether this call removed the order: another process may have been faster.
func (c *charger) end(ctx context.Context, id string, put types.Put) (ended bool, err error) {
	_, err = c.items.Client.TransactWriteItems(ctx, &ddb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		{Put: &put},
		{Delete: &types.Delete{
			TableName: &c.items.Table, Key: keyOf(chargesPartition, id),
			ConditionExpression: aws.String("attribute_exists(" + attrPartition + ")"),
		}},
	}})
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) {
		for _, reason := range cancelled.CancellationReasons {
			if aws.ToString(reason.Code) == "ConditionalCheckFailed" {
				return false, nil
			}
		}
	}
	return err == nil, err
}
