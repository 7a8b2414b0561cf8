package bank_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onceward/onceward/lab/bank"
)

// gateways returns the gRPC service of a bank behind a gateway in the process, and behind one that dials it.
func gateways(t *testing.T, b *bank.Bank) map[string]http.Handler {
	t.Helper()
	inProcess, err := b.Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server := b.GRPC()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // it ends when the server is stopped
	t.Cleanup(server.Stop)
	dialled, err := bank.Gateway(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]http.Handler{"in process": inProcess, "dialled": dialled}
}

func TestGateways(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	balance := 100.0
	for name, gateway := range gateways(t, server) {
		caller := &client{T: t, server: gateway, token: alice.token, header: http.Header{"Content-Type": {"application/json"}}}
		answer := caller.send("POST", "/v1/transfers", transferBody(from, to, 10), 200)
		balance -= 10
		if answer["transferId"] == "" {
			t.Errorf("%s: %v", name, answer)
		}
		alice.wantBalance(from, balance)
		caller.send("POST", "/v1/transfers", transferBody(from, to, 1000), 400)
		caller.send("POST", "/v1/transfers", transferBody(from, 999, 1), 404)
		caller.send("POST", "/v1/transfers", transferBody(to, from, 1), 403)
		caller.token = "forged"
		caller.send("POST", "/v1/transfers", transferBody(from, to, 10), 401)
		alice.wantBalance(from, balance)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	server := open(t, new(tasks))
	alice, from := newUser(t, server, "alice", 100)
	_, to := newUser(t, server, "bob", 0)
	session := connectTools(t, server, "alice")
	arguments := map[string]any{"from_account_id": from, "to_account_id": to, "amount": 10, "currency": "EUR"}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "transfer", Arguments: arguments})
	if err != nil || result.IsError {
		t.Fatalf("got %+v, %v", result, err)
	}
	if balance := result.StructuredContent.(map[string]any)["balance"]; balance != 90.0 {
		t.Errorf("the answer has the balance %v", balance)
	}
	arguments["amount"] = 1000
	result, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "transfer", Arguments: arguments})
	if err != nil || !result.IsError {
		t.Errorf("too much: got %+v, %v", result, err)
	}
	alice.wantBalance(from, 90)
}

// connectTools connects a client of a user to the tools of a bank.
func connectTools(t *testing.T, bank *bank.Bank, user string) *mcp.ClientSession {
	t.Helper()
	server, err := bank.Tools(user)
	if err != nil {
		t.Fatal(err)
	}
	here, there := mcp.NewInMemoryTransports()
	if _, err := server.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() }) // the test has what it wants
	return session
}
