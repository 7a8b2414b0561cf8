// Command mcp shows a booking and a payment that a language model
// makes by calling tools, over a connection that loses replies:
//
//	go run ./examples/mcp
//
// The example's client plays the part of the model: when it sees no result, it calls again.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run serves the tools, calls them over a connection that loses replies, and prints the result.
func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "onceward-mcp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	restaurant, err := openRestaurant(ctx, filepath.Join(dir, "restaurant.db"))
	if err != nil {
		return err
	}
	defer restaurant.store.Close()
	server, err := restaurant.server()
	if err != nil {
		return err
	}
	url, stop, err := serve(server)
	if err != nil {
		return err
	}
	defer stop()
	if err := converse(ctx, out, url); err != nil {
		return err
	}
	bookings, err := restaurant.bookings(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nBookings made: %d. Payments taken: %d.\n", bookings, restaurant.charges())
	return nil
}

// serve serves on the loopback interface.
func serve(server *mcp.Server) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	web := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true})}
	go func() { _ = web.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = web.Close() }, nil
}

// converse makes the calls of one conversation.
func converse(ctx context.Context, out io.Writer, url string) error {
	wire := &lossy{out: out}
	caller, err := oncewardmcp.NewCaller(oncewardmcp.CallerConfig{
		MinBackoff: 10 * time.Millisecond,
		Connect: func(ctx context.Context) (*mcp.ClientSession, error) {
			client := mcp.NewClient(&mcp.Implementation{Name: "assistant"}, nil)
			transport := &mcp.StreamableClientTransport{
				Endpoint: url, HTTPClient: &http.Client{Transport: wire}, DisableStandaloneSSE: true,
			}
			return client.Connect(ctx, transport, nil)
		},
	})
	if err != nil {
		return err
	}
	defer caller.Close()

	say := func(words string, tool string, arguments map[string]any) error {
		fmt.Fprintf(out, "\n%s\n  call %s %v\n", words, tool, arguments)
		wire.loseNext(tool)
		result, err := caller.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			return err
		}
		replayed := ""
		if result.Meta[oncewardmcp.MetaReplayed] == true {
			replayed = " (the result of the first call)"
		}
		for _, content := range result.Content {
			if text, ok := content.(*mcp.TextContent); ok {
				fmt.Fprintf(out, "  result%s: %s\n", replayed, text.Text)
			}
		}
		return nil
	}
	if err := say("A table for Ada, and the reply is lost:", "book_table",
		map[string]any{"guest": "Ada", "time": "19:00", "idempotency_key": "booking-7f3a"}); err != nil {
		return err
	}
	if err := say("The deposit, and the reply is lost:", "pay_deposit",
		map[string]any{"guest": "Ada", "amount": 2000, "idempotency_key": "deposit-91cc"}); err != nil {
		return err
	}
	return say("The model confuses two calls, and uses a key again:", "pay_deposit",
		map[string]any{"guest": "Bob", "amount": 5000, "idempotency_key": "deposit-91cc"})
}
