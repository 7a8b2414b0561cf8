// Package items stores the reference payments system on DynamoDB: the system's data are items of
// one table, beside the records in another table. There is no outbox and no comparison of ledgers.
package items

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/store/dynamodb"
)

// Storage stores a system's data on DynamoDB, for [payments.Config]. All fields are required. The items of its table
// have a partition key and a sort key:
//
//	account#ACCOUNT   payment#ID     a payment
//	account#ACCOUNT   booking#ID     a booking
//	payment#ID        refund#ID      a refund
//	stock             ITEM           how many places are left
//	charges           ID             an order to charge a payment
//	dead charges      ID             an order that the provider has permanently refused
//
// The writes of a handler or a step are collected, and committed together with its record. They have conditions,
// because what the handler has read may have changed by then.
type Storage struct {
	// Store is the store of the records.
	Store *dynamodb.Store
	// Client reads items, and writes items outside of handlers.
	Client *ddb.Client
	// Table is the table of the items, beside the table of the records. It is created if it is missing.
	Table string
}

var _ payments.Items = (*Storage)(nil)

// Records implements [payments.Items].
func (s *Storage) Records() payments.Store { return s.Store }

// These are the names of the attributes: the two parts of the key,
// the content as JSON, and the attributes used in conditions.
const (
	attrPartition = "pk"
	attrSort      = "sk"
	attrData      = "data"
	attrState     = "state"
	attrPlaces    = "places"
)

const (
	stockPartition       = "stock"
	chargesPartition     = "charges"
	deadChargesPartition = "dead charges"
)

type item = map[string]types.AttributeValue

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func keyOf(partition, sort string) item {
	return item{attrPartition: text(partition), attrSort: text(sort)}
}

func accountPartition(account string) string { return "account#" + account }

// itemOf returns an item with a content.
func itemOf(partition, sort, state string, content any) (item, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	one := keyOf(partition, sort)
	one[attrData], one[attrState] = text(string(data)), text(state)
	return one, nil
}

// read decodes the content of an item.
func read[T any](one item) (content T, err error) {
	data, ok := one[attrData].(*types.AttributeValueMemberS)
	if !ok {
		return content, errors.New("an item has no content")
	}
	return content, json.Unmarshal([]byte(data.Value), &content)
}

// get returns the current item; nil if there is none.
func (s *Storage) get(ctx context.Context, partition, sort string) (item, error) {
	found, err := s.Client.GetItem(ctx, &ddb.GetItemInput{
		TableName: &s.Table, Key: keyOf(partition, sort), ConsistentRead: aws.Bool(true),
	})
	if err != nil || len(found.Item) == 0 {
		return nil, err
	}
	return found.Item, nil
}

// list returns items of a partition whose sort keys have a prefix.
func (s *Storage) list(ctx context.Context, partition, prefix string, limit int32) ([]item, error) {
	in := &ddb.QueryInput{
		TableName: &s.Table, Limit: &limit, ConsistentRead: aws.Bool(true),
		KeyConditionExpression:    aws.String(attrPartition + " = :partition"),
		ExpressionAttributeValues: item{":partition": text(partition)},
	}
	if prefix != "" {
		*in.KeyConditionExpression += " AND begins_with(" + attrSort + ", :prefix)"
		in.ExpressionAttributeValues[":prefix"] = text(prefix)
	}
	found, err := s.Client.Query(ctx, in)
	if err != nil {
		return nil, err
	}
	return found.Items, nil
}

// putNew returns a write of an item that must not exist.
func (s *Storage) putNew(one item) types.Put {
	return types.Put{
		TableName: &s.Table, Item: one, ConditionExpression: aws.String("attribute_not_exists(" + attrPartition + ")"),
	}
}

// putOver returns a write of an item over an existing item in a certain state.
func (s *Storage) putOver(one item, state string) types.Put {
	return types.Put{
		TableName: &s.Table, Item: one, ConditionExpression: aws.String("#state = :state"),
		ExpressionAttributeNames:  map[string]string{"#state": attrState}, // the name is a reserved word
		ExpressionAttributeValues: item{":state": text(state)},
	}
}

// Create implements [payments.Storage].
func (s *Storage) Create(ctx context.Context) error {
	_, err := s.Client.CreateTable(ctx, &ddb.CreateTableInput{
		TableName: &s.Table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String(attrPartition), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String(attrSort), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String(attrPartition), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String(attrSort), KeyType: types.KeyTypeRange},
		},
	})
	var there *types.ResourceInUseException
	if err != nil && !errors.As(err, &there) {
		return fmt.Errorf("create the table: %w", err)
	}
	exists := ddb.NewTableExistsWaiter(s.Client, func(o *ddb.TableExistsWaiterOptions) { o.MinDelay = 100 * time.Millisecond })
	if err := exists.Wait(ctx, &ddb.DescribeTableInput{TableName: &s.Table}, time.Minute); err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	for name, places := range map[string]int{"concert": 1_000_000, "theatre": 1_000_000, "cellar": 1} {
		one := keyOf(stockPartition, name)
		one[attrPlaces] = &types.AttributeValueMemberN{Value: strconv.Itoa(places)}
		put := s.putNew(one)
		_, err := s.Client.PutItem(ctx, &ddb.PutItemInput{
			TableName: put.TableName, Item: put.Item, ConditionExpression: put.ConditionExpression,
		})
		var before *types.ConditionalCheckFailedException
		if err != nil && !errors.As(err, &before) {
			return fmt.Errorf("fill the table: %w", err)
		}
	}
	return nil
}

// AddPayment implements [payments.Storage].
func (s *Storage) AddPayment(ctx context.Context, p *payments.Payment) (*payments.Payment, error) {
	found, err := s.Payment(ctx, p.Account, p.ID)
	if !errors.Is(err, payments.ErrNoPayment) {
		return found, err
	}
	one, err := paymentItem(p)
	if err != nil {
		return nil, err
	}
	return p, dynamodb.Writes(ctx).Put(s.putNew(one))
}

func paymentItem(p *payments.Payment) (item, error) {
	return itemOf(accountPartition(p.Account), "payment#"+p.ID, p.State, p)
}

// chargeOrder is an order to charge a payment, with the key for the provider.
type chargeOrder struct {
	Payment payments.Payment `json:"payment"`
	Key     string           `json:"key"`
	// Error is why the provider has permanently refused the order.
	Error string `json:"error,omitempty"`
}

// OrderCharge implements [payments.Storage].
func (s *Storage) OrderCharge(ctx context.Context, p *payments.Payment) error {
	order := chargeOrder{Payment: *p, Key: onceward.FromContext(ctx).DownstreamKey("charge")}
	one, err := itemOf(chargesPartition, p.ID, "ordered", order)
	if err != nil {
		return err
	}
	return dynamodb.Writes(ctx).Put(types.Put{TableName: &s.Table, Item: one})
}

// Payments implements [payments.Storage]. The payments are in
// the order of their ids: the order of time would need an index.
func (s *Storage) Payments(ctx context.Context, account string) ([]payments.Payment, error) {
	found, err := s.list(ctx, accountPartition(account), "payment#", 100)
	all := []payments.Payment{}
	for _, one := range found {
		p, err := read[payments.Payment](one)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, err
}

// Payment implements [payments.Storage].
func (s *Storage) Payment(ctx context.Context, account, id string) (*payments.Payment, error) {
	found, err := s.get(ctx, accountPartition(account), "payment#"+id)
	if err == nil && found == nil {
		err = payments.ErrNoPayment
	}
	if err != nil {
		return nil, err
	}
	p, err := read[payments.Payment](found)
	return &p, err
}

// NoteRefund implements [payments.Storage].
func (s *Storage) NoteRefund(ctx context.Context, payment string, made provider.Refund) error {
	one, err := itemOf("payment#"+payment, "refund#"+made.ID, "made", made)
	if err != nil {
		return err
	}
	_, err = s.Client.PutItem(ctx, &ddb.PutItemInput{TableName: &s.Table, Item: one})
	return err
}

// mostOrders is the number of orders that are read at a time.
const mostOrders = 100

// Messages implements [payments.Storage].
func (s *Storage) Messages(ctx context.Context) (payments.OpenMessages, error) {
	waiting, err := s.list(ctx, chargesPartition, "", mostOrders)
	if err != nil {
		return payments.OpenMessages{}, err
	}
	dead, err := s.list(ctx, deadChargesPartition, "", mostOrders)
	return payments.OpenMessages{Waiting: len(waiting), DeadLetters: len(dead)}, err
}

// Reserve implements [payments.Storage].
func (s *Storage) Reserve(ctx context.Context, b *payments.Booking) (payments.Reservation, error) {
	found, err := s.get(ctx, accountPartition(b.Account), "booking#"+b.ID)
	if err != nil {
		return 0, err
	}
	if found != nil {
		*b, err = read[payments.Booking](found)
		return payments.ReservedBefore, err
	}
	left, err := s.get(ctx, stockPartition, b.Item)
	if err != nil {
		return 0, err
	}
	if places, ok := left[attrPlaces].(*types.AttributeValueMemberN); !ok || places.Value == "0" {
		return payments.SoldOut, nil
	}
	one, err := bookingItem(b)
	if err != nil {
		return 0, err
	}
	writes := dynamodb.Writes(ctx)
	return payments.ReservedNow, errors.Join(writes.Put(s.putNew(one)), writes.Update(s.takePlaces(b.Item, 1)))
}

func bookingItem(b *payments.Booking) (item, error) {
	return itemOf(accountPartition(b.Account), "booking#"+b.ID, b.State, b)
}

// takePlaces returns an update that takes places of an item, which must exist.
func (s *Storage) takePlaces(name string, n int) types.Update {
	return types.Update{
		TableName: &s.Table, Key: keyOf(stockPartition, name),
		UpdateExpression:          aws.String("SET " + attrPlaces + " = " + attrPlaces + " - :n"),
		ConditionExpression:       aws.String(attrPlaces + " >= :n"),
		ExpressionAttributeValues: item{":n": &types.AttributeValueMemberN{Value: strconv.Itoa(n)}},
	}
}

// Confirm implements [payments.Storage].
func (s *Storage) Confirm(ctx context.Context, b *payments.Booking) error {
	one, err := bookingItem(b)
	if err != nil {
		return err
	}
	writes := dynamodb.Writes(ctx)
	err = writes.Put(s.putOver(one, payments.Reserved))
	if !b.Moved() {
		err = errors.Join(err, writes.Update(s.takePlaces(b.Item, -1)))
	}
	return err
}
