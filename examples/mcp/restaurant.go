package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/store/sqlite"
)

// restaurant stores bookings in its own database, and takes deposits through a payment provider.
type restaurant struct {
	store    *sqlite.Store
	guard    *onceward.Guard
	mu       sync.Mutex
	provider map[string]int // the provider's charges, by idempotency key
}

func openRestaurant(ctx context.Context, path string) (*restaurant, error) {
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	err = s.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE booking (id INTEGER PRIMARY KEY, guest TEXT, at TEXT)`)
		return err
	})
	if err != nil {
		return nil, err
	}
	// A real service keeps its secret. This example needs it only for a moment.
	guard, err := onceward.New(s, onceward.Config{Secret: []byte(rand.Text())})
	if err != nil {
		return nil, err
	}
	return &restaurant{store: s, guard: guard, provider: make(map[string]int)}, nil
}

type booking struct {
	Guest string `json:"guest" jsonschema:"who comes"`
	Time  string `json:"time" jsonschema:"when, as in 19:00"`
}

type deposit struct {
	Guest  string `json:"guest" jsonschema:"who pays"`
	Amount int    `json:"amount" jsonschema:"in cents"`
}

// server returns a server with the two tools. A booking is written
// in the guard's transaction; a deposit is a call to another system.
func (r *restaurant) server() (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "restaurant", Version: "v1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "book_table", Description: "Books a table."}, r.bookTable)
	mcp.AddTool(server, &mcp.Tool{Name: "pay_deposit", Description: "Takes a deposit."}, r.payDeposit)
	tools, err := oncewardmcp.New(r.guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("assistant"),
		Tools: map[string]oncewardmcp.Tool{
			"book_table": {Options: []onceward.Option{onceward.Transactional()}, KeyArgument: "idempotency_key"},
			"pay_deposit": {
				Options:     []onceward.Option{onceward.Reserved(onceward.FailureUnknown)},
				KeyArgument: "idempotency_key",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	server.AddReceivingMiddleware(tools.Middleware)
	return server, nil
}

func (r *restaurant) bookTable(
	ctx context.Context, _ *mcp.CallToolRequest, in booking,
) (*mcp.CallToolResult, any, error) {
	var id int64
	err := onceward.Tx(ctx).QueryRowContext(ctx, `INSERT INTO booking (guest, at) VALUES (?, ?) RETURNING id`,
		in.Guest, in.Time).Scan(&id)
	return said("Booking %d: %s at %s.", id, in.Guest, in.Time), nil, err
}

func (r *restaurant) payDeposit(
	ctx context.Context, _ *mcp.CallToolRequest, in deposit,
) (*mcp.CallToolResult, any, error) {
	r.charge(onceward.FromContext(ctx).DownstreamKey("deposit"), in.Amount)
	return said("%s has paid %d.%02d.", in.Guest, in.Amount/100, in.Amount%100), nil, nil
}

// charge is the provider. It recognises a repeated key, as good providers do.
func (r *restaurant) charge(key string, amount int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.provider[key] = amount
}

// charges counts the payments.
func (r *restaurant) charges() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.provider)
}

// bookings counts the bookings.
func (r *restaurant) bookings(ctx context.Context) (n int, err error) {
	err = r.store.DB().QueryRowContext(ctx, `SELECT count(*) FROM booking`).Scan(&n)
	return n, err
}

func said(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}
