// Package demostore provides the stores that a URL can name for the demo: a schema of PostgreSQL, a database of
// MySQL, tables of DynamoDB or an SQLite file. The demo, package rehearsal, itself supports only its own SQLite file.
package demostore

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/storeurl"
)

// Servers implements [rehearsal.Servers].
type Servers struct{}

// Prepare implements [rehearsal.Servers].
func (Servers) Prepare(ctx context.Context, chosen, name string, kept bool) (rehearsal.Place, error) {
	at, err := storeurl.Parse(chosen)
	if err != nil {
		return rehearsal.Place{}, fmt.Errorf("--store: %w", err)
	}
	switch at.Engine {
	case storeurl.SQLite:
		if !kept {
			return rehearsal.Place{}, errors.New(
				"--store with a file needs --dir: the provider's ledger has to last as long as the file")
		}
		return rehearsal.Place{URL: chosen, Kind: "SQLite"}, nil
	case storeurl.Postgres:
		return prepareSchema(ctx, chosen, "onceward_demo_"+name)
	case storeurl.MySQL:
		return prepareMySQL(ctx, chosen, "onceward_demo_"+name)
	case storeurl.DynamoDB:
		return prepareTables(ctx, chosen, name)
	default:
		return rehearsal.Place{}, fmt.Errorf("--store: the demo needs transactions, which %s has not: use postgres://…, "+
			"mysql://…, dynamodb://… or sqlite:PATH", at.Engine)
	}
}

// Open implements [rehearsal.Servers].
func (Servers) Open(ctx context.Context, place rehearsal.Place, config *payments.Config) (io.Closer, error) {
	if place.Items != "" {
		return openItems(ctx, place, config)
	}
	db, err := storeurl.Open(ctx, place.URL, storeurl.WithLogger(config.Logger))
	if err != nil {
		return nil, err
	}
	config.Database, config.MySQL = db, db.Engine() == storeurl.MySQL
	return db, nil
}
