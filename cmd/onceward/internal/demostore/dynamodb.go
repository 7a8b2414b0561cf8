package demostore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/payments/items"
	"github.com/onceward/onceward/store/dynamodb"
)

// prepareTables chooses the names of two tables on DynamoDB, one for the
// records and one for what the system stores. They are created on first use.
func prepareTables(ctx context.Context, chosen, demo string) (rehearsal.Place, error) {
	table, query, _ := strings.Cut(chosen, "?")
	records := strings.TrimSuffix(strings.TrimPrefix(table, "dynamodb://"), "/") + "_demo_" + demo
	place := rehearsal.Place{
		URL: "dynamodb://" + records + "?" + query, Items: records + "_items",
		Kind: "DynamoDB", Where: "the tables " + records + " and " + records + "_items",
	}
	client, err := dynamodb.Client(ctx, place.URL)
	if err == nil {
		_, err = client.ListTables(ctx, &ddb.ListTablesInput{})
	}
	if err != nil {
		return rehearsal.Place{}, fmt.Errorf("the tables of --store cannot be used: %w", err)
	}
	place.Drop = func(ctx context.Context) error {
		return errors.Join(dropTable(ctx, client, records), dropTable(ctx, client, place.Items))
	}
	return place, nil
}

// dropTable removes a table, if it exists.
func dropTable(ctx context.Context, client *ddb.Client, table string) error {
	_, err := client.DeleteTable(ctx, &ddb.DeleteTableInput{TableName: &table})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return nil
	}
	return err
}

// openItems opens the tables.
func openItems(ctx context.Context, place rehearsal.Place, config *payments.Config) (io.Closer, error) {
	client, err := dynamodb.Client(ctx, place.URL)
	if err != nil {
		return nil, err
	}
	s, err := dynamodb.Open(ctx, place.URL, dynamodb.WithLogger(config.Logger))
	if err != nil {
		return nil, err
	}
	config.Items = &items.Storage{Store: s, Client: client, Table: place.Items}
	return s, nil
}
