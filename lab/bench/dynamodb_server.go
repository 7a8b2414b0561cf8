package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/dynamodb"
)

// dynamodbServer is the server that the contenders share, with the client that all of them use.
type dynamodbServer struct {
	*servers.DynamoDBServer
	client *ddb.Client
	// tables counts those that were made, so that each has a name of its own.
	tables int
}

func openDynamoDBServer(ctx context.Context) (*dynamodbServer, error) {
	server, err := servers.StartDynamoDBInMemory(ctx)
	if err != nil {
		return nil, err
	}
	s := &dynamodbServer{DynamoDBServer: server}
	s.client, err = dynamodb.Client(ctx, s.storeURL("unused"))
	return s, err
}

// storeURL is where the store finds a table.
func (s *dynamodbServer) storeURL(table string) string {
	return "dynamodb://" + table + "?region=eu-central-1&endpoint=" + s.URL()
}

// newTable is a name that is not taken.
func (s *dynamodbServer) newTable() string {
	s.tables++
	return fmt.Sprintf("bench-%d", s.tables)
}

// serveDynamoDB is the server, started if it was not needed before.
func (e *engines) serveDynamoDB(ctx context.Context) (_ *dynamodbServer, err error) {
	if e.dynamodb == nil {
		e.dynamodb, err = openDynamoDBServer(ctx)
	}
	return e.dynamodb, err
}

// expect makes sure that a table holds so many items at least: a store may keep some of its own.
func (s *dynamodbServer) expect(ctx context.Context, table string, want int64) error {
	var n int64
	pages := ddb.NewScanPaginator(s.client, &ddb.ScanInput{TableName: &table, Select: types.SelectCount})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		n += int64(page.Count)
	}
	if n < want {
		return fmt.Errorf("table %s holds %d items, want %d", table, n, want)
	}
	return nil
}

// drop removes a table.
func (s *dynamodbServer) drop(table string) error {
	_, err := s.client.DeleteTable(context.Background(), &ddb.DeleteTableInput{TableName: aws.String(table)})
	return err
}

// requestCounter counts the requests that go through it.
type requestCounter struct {
	next http.RoundTripper
	sent atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (c *requestCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return c.next.RoundTrip(r)
}
