package oncewardmcp_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
)

// A tool that is called twice with the same key does its work once.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := openStore(ctx, filepath.Join(dir, "store.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	guard, err := onceward.New(store, onceward.Config{Secret: []byte("of 16 bytes or more")})
	if err != nil {
		log.Fatal(err)
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "restaurant"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "book_table"},
		func(ctx context.Context, _ *mcp.CallToolRequest, in booking) (*mcp.CallToolResult, any, error) {
			_, err := onceward.Tx(ctx).ExecContext(ctx, "INSERT INTO bookings VALUES (?)", in.Guest)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "booked for " + in.Guest}}}, nil, err
		})
	tools, err := oncewardmcp.New(guard, oncewardmcp.Config{
		Scope: oncewardmcp.SingleScope("assistant"),
		Tools: map[string]oncewardmcp.Tool{
			"book_table": {Options: []onceward.Option{onceward.Transactional()}, KeyArgument: "idempotency_key"},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	server.AddReceivingMiddleware(tools.Middleware)

	there, here := mcp.NewInMemoryTransports()
	if _, err := server.Connect(ctx, there, nil); err != nil {
		log.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "assistant"}, nil).Connect(ctx, here, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	for range 2 {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{
			Name: "book_table", Arguments: map[string]any{"guest": "Ada", "idempotency_key": "7f3a"},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(text(result), "replayed:", replayed(result))
	}
	// Output:
	// booked for Ada replayed: false
	// booked for Ada replayed: true
}
