package dynamodb_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/dynamodb"
	"github.com/onceward/onceward/store/storetest"
)

// TestMain lets the suite draw few random sequences for every change: each of them is hundreds of requests.
func TestMain(m *testing.M) {
	nightly.DrawLess("8")
	os.Exit(servers.Main(watchdog.Over(m)))
}

var quiet = dynamodb.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// urlOf is the URL of a table on a server.
func urlOf(server *servers.DynamoDBServer, table string) string {
	return "dynamodb://" + table + "?" + url.Values{"region": {"eu-central-1"}, "endpoint": {server.URL()}}.Encode()
}

// newName is a name that no other test has.
func newName(kind string) string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return kind + "-" + hex.EncodeToString(b[:])
}

// newURL is the URL of a table that belongs to the test, and is removed with it.
func newURL(t testing.TB) string {
	t.Helper()
	table := newName("records")
	where := urlOf(servers.DynamoDB(t), table)
	t.Cleanup(func() {
		_, _ = clientOf(t, where).DeleteTable(context.Background(), &ddb.DeleteTableInput{TableName: &table})
	})
	return where
}

// clientOf is a client for what handlers and tests do beside the store.
func clientOf(t testing.TB, where string) *ddb.Client {
	t.Helper()
	client, err := dynamodb.Client(context.Background(), where)
	must(t, err)
	return client
}

// open opens a store that is closed with the test.
func open(t testing.TB, where string, options ...dynamodb.Option) *dynamodb.Store {
	t.Helper()
	s, err := dynamodb.Open(t.Context(), where, append([]dynamodb.Option{quiet}, options...)...)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// fresh opens an empty store on the shared server.
func fresh(t testing.TB, options ...dynamodb.Option) *dynamodb.Store {
	t.Helper()
	return open(t, newURL(t), options...)
}

// business is a table of the application beside the store.
type business struct {
	t      testing.TB
	client *ddb.Client
	table  string
}

// newBusiness makes the table on the server of a store.
func newBusiness(t testing.TB, where string) *business {
	t.Helper()
	b := &business{t: t, client: clientOf(t, where), table: newName("business")}
	_, err := b.client.CreateTable(t.Context(), &ddb.CreateTableInput{
		TableName: &b.table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("value"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("row"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("value"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("row"), KeyType: types.KeyTypeRange},
		},
	})
	var exists *types.ResourceInUseException
	if !errors.As(err, &exists) { // it was made by a request whose reply came too late
		must(t, err)
	}
	t.Cleanup(func() {
		_, _ = b.client.DeleteTable(context.Background(), &ddb.DeleteTableInput{TableName: &b.table})
	})
	return b
}

// row is an item of the table.
func (b *business) row(value string) types.Put {
	return types.Put{TableName: &b.table, Item: map[string]types.AttributeValue{
		"value": &types.AttributeValueMemberS{Value: value},
		"row":   &types.AttributeValueMemberS{Value: newName("row")},
	}}
}

func (b *business) insert(ctx context.Context, value string) error {
	return dynamodb.Writes(ctx).Put(b.row(value))
}

// require makes a commit depend on a row.
func (b *business) require(ctx context.Context, row types.Put) error {
	return dynamodb.Writes(ctx).Check(types.ConditionCheck{
		TableName: &b.table, Key: row.Item, ConditionExpression: aws.String("attribute_exists(#value)"),
		ExpressionAttributeNames: map[string]string{"#value": "value"},
	})
}

func (b *business) count(value string) int {
	b.t.Helper()
	out, err := b.client.Query(context.Background(), &ddb.QueryInput{
		TableName: &b.table, ConsistentRead: aws.Bool(true), Select: types.SelectCount,
		KeyConditionExpression:    aws.String("#value = :value"),
		ExpressionAttributeNames:  map[string]string{"#value": "value"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":value": &types.AttributeValueMemberS{Value: value}},
	})
	must(b.t, err)
	return int(out.Count)
}

// instance opens an empty store for the suite, whose clock stands still until the suite moves it.
func instance(t testing.TB, options ...dynamodb.Option) storetest.Instance {
	t.Helper()
	where := newURL(t)
	var clock atomic.Int64
	clock.Store(time.Now().UnixMicro())
	again := func(t testing.TB) *dynamodb.Store {
		s := open(t, where, options...)
		s.SetClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })
		return s
	}
	s, rows := again(t), newBusiness(t, where)
	return storetest.Instance{
		Store:   s,
		Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
		Reopen: func(t testing.TB) store.Store {
			must(t, s.Close())
			before := s
			s = again(t)
			s.ContinueFrom(before)
			return s
		},
		Business: &storetest.Business{Insert: rows.insert, Count: rows.count, Collects: true},
		Lossy: func(t testing.TB) storetest.Lossy {
			wire := servers.NewDynamoDBTransport(1)
			t.Cleanup(wire.Close)
			lossy := trying(t, where, wire, 2)
			lossy.SetClock(func() time.Time { return time.UnixMicro(clock.Load()).UTC() })
			return storetest.Lossy{Store: lossy, LoseCommit: func(reply bool) (func(context.Context) error, func()) {
				return loseCommit(wire, reply)
			}}
		},
	}
}

// features says that an item holds 400 KB.
var features = storetest.Features{MaxBody: 350 << 10}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{
		Features: features,
		Open:     func(t testing.TB) storetest.Instance { return instance(t) },
	})
}
