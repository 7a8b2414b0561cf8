package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/store/dynamodb"
)

// openTables chooses the names of two tables on DynamoDB, one for the records and one for what the system writes down.
// They are made when they are first used.
func openTables(ctx context.Context, chosen, demo string) (demoStore, error) {
	place, query, _ := strings.Cut(chosen, "?")
	records := strings.TrimSuffix(strings.TrimPrefix(place, "dynamodb://"), "/") + "_demo_" + demo
	s := demoStore{
		url: "dynamodb://" + records + "?" + query, items: records + "_items",
		kind: "DynamoDB", where: "the tables " + records + " and " + records + "_items",
	}
	client, err := dynamodb.Client(ctx, s.url)
	if err == nil {
		_, err = client.ListTables(ctx, &ddb.ListTablesInput{})
	}
	if err != nil {
		return demoStore{}, fmt.Errorf("the tables of --store cannot be used: %s", oneLine(err))
	}
	s.drop = func(ctx context.Context) error {
		return errors.Join(dropTable(ctx, client, records), dropTable(ctx, client, s.items))
	}
	return s, nil
}

// dropTable removes a table, if it was made.
func dropTable(ctx context.Context, client *ddb.Client, table string) error {
	_, err := client.DeleteTable(ctx, &ddb.DeleteTableInput{TableName: &table})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return nil
	}
	return err
}

// openItems opens the tables.
func openItems(ctx context.Context, url, table string, logger *slog.Logger) (*payments.Items, error) {
	client, err := dynamodb.Client(ctx, url)
	if err != nil {
		return nil, err
	}
	s, err := dynamodb.Open(ctx, url, dynamodb.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	return &payments.Items{Store: s, Client: client, Table: table}, nil
}
