package payments

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
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/store/dynamodb"
)

// Items is a system's place on DynamoDB. All fields are required.
type Items struct {
	// Store keeps the records.
	Store *dynamodb.Store
	// Client reads items, and writes those that belong to no handler.
	Client *ddb.Client
	// Table is that of the items, apart from that of the records. It is made if it is missing.
	Table string
}

// itemStorage is items in one table, by a partition and a place in it:
//
//	account#ACCOUNT   payment#ID     a payment
//	account#ACCOUNT   booking#ID     a booking
//	payment#ID        refund#ID      a refund
//	stock             ITEM           how many places are left
//	charges           ID             an order to charge a payment
//	dead charges      ID             one that the provider has refused for good
//
// What a handler or a step writes is collected, and committed together with its record. What it reads may have changed
// by then, so that its writes have conditions.
type itemStorage struct{ Items }

// The names of the attributes: the two of the key, the content as JSON, and what conditions look at.
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

// itemOf is an item with a content.
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

// get reads an item as it is now; nil if there is none.
func (s *itemStorage) get(ctx context.Context, partition, sort string) (item, error) {
	found, err := s.Client.GetItem(ctx, &ddb.GetItemInput{
		TableName: &s.Table, Key: keyOf(partition, sort), ConsistentRead: aws.Bool(true),
	})
	if err != nil || len(found.Item) == 0 {
		return nil, err
	}
	return found.Item, nil
}

// list reads items of a partition whose places begin so.
func (s *itemStorage) list(ctx context.Context, partition, prefix string, limit int32) ([]item, error) {
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

// putNew is a write of an item that must not be there.
func (s *itemStorage) putNew(one item) types.Put {
	return types.Put{
		TableName: &s.Table, Item: one, ConditionExpression: aws.String("attribute_not_exists(" + attrPartition + ")"),
	}
}

// putOver is a write of an item over one in a state.
func (s *itemStorage) putOver(one item, state string) types.Put {
	return types.Put{
		TableName: &s.Table, Item: one, ConditionExpression: aws.String("#state = :state"),
		ExpressionAttributeNames:  map[string]string{"#state": attrState}, // which is a word of its own there
		ExpressionAttributeValues: item{":state": text(state)},
	}
}

func (s *itemStorage) create(ctx context.Context) error {
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

func (s *itemStorage) addPayment(ctx context.Context, p *Payment) (*Payment, error) {
	found, err := s.payment(ctx, p.Account, p.ID)
	if !errors.Is(err, errNoPayment) {
		return found, err
	}
	one, err := paymentItem(p)
	if err != nil {
		return nil, err
	}
	return p, dynamodb.Writes(ctx).Put(s.putNew(one))
}

func paymentItem(p *Payment) (item, error) {
	return itemOf(accountPartition(p.Account), "payment#"+p.ID, p.State, p)
}

// chargeOrder is what is to be charged, and the key for the provider.
type chargeOrder struct {
	Payment Payment `json:"payment"`
	Key     string  `json:"key"`
	// Error is why the provider has refused it for good.
	Error string `json:"error,omitempty"`
}

func (s *itemStorage) orderCharge(ctx context.Context, p *Payment) error {
	order := chargeOrder{Payment: *p, Key: onceward.FromContext(ctx).DownstreamKey("charge")}
	one, err := itemOf(chargesPartition, p.ID, pending, order)
	if err != nil {
		return err
	}
	return dynamodb.Writes(ctx).Put(types.Put{TableName: &s.Table, Item: one})
}

// payments are in the order of their ids: to have them in that of time takes an index.
func (s *itemStorage) payments(ctx context.Context, account string) ([]Payment, error) {
	found, err := s.list(ctx, accountPartition(account), "payment#", 100)
	all := []Payment{}
	for _, one := range found {
		p, err := read[Payment](one)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, err
}

func (s *itemStorage) payment(ctx context.Context, account, id string) (*Payment, error) {
	found, err := s.get(ctx, accountPartition(account), "payment#"+id)
	if err == nil && found == nil {
		err = errNoPayment
	}
	if err != nil {
		return nil, err
	}
	p, err := read[Payment](found)
	return &p, err
}

func (s *itemStorage) noteRefund(ctx context.Context, payment string, made provider.Refund) error {
	one, err := itemOf("payment#"+payment, "refund#"+made.ID, charged, made)
	if err != nil {
		return err
	}
	_, err = s.Client.PutItem(ctx, &ddb.PutItemInput{TableName: &s.Table, Item: one})
	return err
}

// mostOrders is how many orders are looked at, at a time.
const mostOrders = 100

func (s *itemStorage) messages(ctx context.Context) (openMessages, error) {
	waiting, err := s.list(ctx, chargesPartition, "", mostOrders)
	if err != nil {
		return openMessages{}, err
	}
	dead, err := s.list(ctx, deadChargesPartition, "", mostOrders)
	return openMessages{Waiting: len(waiting), DeadLetters: len(dead)}, err
}

func (s *itemStorage) reserve(ctx context.Context, b *booking) (reservation, error) {
	found, err := s.get(ctx, accountPartition(b.Account), "booking#"+b.ID)
	if err != nil {
		return 0, err
	}
	if found != nil {
		*b, err = read[booking](found)
		return reservedBefore, err
	}
	left, err := s.get(ctx, stockPartition, b.Item)
	if err != nil {
		return 0, err
	}
	if places, ok := left[attrPlaces].(*types.AttributeValueMemberN); !ok || places.Value == "0" {
		return soldOut, nil
	}
	one, err := bookingItem(b)
	if err != nil {
		return 0, err
	}
	writes := dynamodb.Writes(ctx)
	return reservedNow, errors.Join(writes.Put(s.putNew(one)), writes.Update(s.takePlaces(b.Item, 1)))
}

func bookingItem(b *booking) (item, error) {
	return itemOf(accountPartition(b.Account), "booking#"+b.ID, b.State, b)
}

// takePlaces takes so many places of an item, of which there must be one.
func (s *itemStorage) takePlaces(name string, n int) types.Update {
	return types.Update{
		TableName: &s.Table, Key: keyOf(stockPartition, name),
		UpdateExpression:          aws.String("SET " + attrPlaces + " = " + attrPlaces + " - :n"),
		ConditionExpression:       aws.String(attrPlaces + " >= :n"),
		ExpressionAttributeValues: item{":n": &types.AttributeValueMemberN{Value: strconv.Itoa(n)}},
	}
}

func (s *itemStorage) confirm(ctx context.Context, b *booking) error {
	one, err := bookingItem(b)
	if err != nil {
		return err
	}
	writes := dynamodb.Writes(ctx)
	err = writes.Put(s.putOver(one, reserved))
	if !b.moved() {
		err = errors.Join(err, writes.Update(s.takePlaces(b.Item, -1)))
	}
	return err
}
