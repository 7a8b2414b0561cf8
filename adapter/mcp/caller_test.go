package oncewardmcp_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/proc"
)

// losing is a transport whose connection ends in the place of the first reply to a call of a tool.
type losing struct {
	mcp.Transport
	lost *atomic.Bool
}

func (l *losing) Connect(ctx context.Context) (mcp.Connection, error) {
	connection, err := l.Transport.Connect(ctx)
	return &losingConnection{Connection: connection, lost: l.lost}, err
}

type losingConnection struct {
	mcp.Connection
	lost  *atomic.Bool
	calls atomic.Pointer[jsonrpc.ID]
}

func (c *losingConnection) Write(ctx context.Context, message jsonrpc.Message) error {
	if req, ok := message.(*jsonrpc.Request); ok && req.Method == "tools/call" {
		c.calls.Store(&req.ID)
	}
	return c.Connection.Write(ctx, message)
}

func (c *losingConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := c.Connection.Read(ctx)
	response, ok := message.(*jsonrpc.Response)
	if id := c.calls.Load(); ok && id != nil && response.ID == *id && c.lost.CompareAndSwap(false, true) {
		_ = c.Close()
		return nil, errors.New("the reply is lost")
	}
	return message, err
}

// callerOf is a caller whose first reply is lost.
func callerOf(t *testing.T, open func() mcp.Transport) (*oncewardmcp.Caller, *atomic.Int64) {
	t.Helper()
	var lost atomic.Bool
	sessions := new(atomic.Int64)
	caller, err := oncewardmcp.NewCaller(oncewardmcp.CallerConfig{
		MinBackoff: time.Millisecond,
		Connect: func(ctx context.Context) (*mcp.ClientSession, error) {
			sessions.Add(1)
			client := mcp.NewClient(&mcp.Implementation{Name: "caller"}, nil)
			return client.Connect(ctx, &losing{Transport: open(), lost: &lost}, nil)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caller.Close() })
	return caller, sessions
}

// TestCallerRepeats: a call whose reply was lost is made again with its key on a new session, and executed once.
func TestCallerRepeats(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, *bench) func() mcp.Transport{
		"stdio": func(_ *testing.T, b *bench) func() mcp.Transport {
			return func() mcp.Transport {
				return &mcp.CommandTransport{Command: proc.Self(serverVariable, "protected:"+b.path)}
			}
		},
		"HTTP": func(t *testing.T, b *bench) func() mcp.Transport {
			endpoint := listen(t, b.booking(), newest)
			return func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: endpoint} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			caller, sessions := callerOf(t, open(t, b))
			params := &mcp.CallToolParams{Name: "send_mail", Arguments: map[string]any{"guest": "Ada"}}
			result, err := caller.CallTool(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			if text(result) != "sent to Ada" || !replayed(result) || sessions.Load() != 2 {
				t.Errorf("got %+v after %d sessions", result, sessions.Load())
			}
			if params.Meta != nil {
				t.Errorf("the caller's params have %v now", params.Meta)
			}
			b.wantBookings(1)
			if result, err = caller.CallTool(t.Context(), params); err != nil || replayed(result) {
				t.Errorf("another call got %+v, %v", result, err)
			}
			b.wantBookings(2)
		})
	}
}

// TestCallerDoesNotRepeat: what does not know the key, and what cannot be settled by waiting.
func TestCallerDoesNotRepeat(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	endpoint := listen(t, plainServer(b.path+".lines"), newest)
	caller, _ := callerOf(t, func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: endpoint} })
	_, err := caller.CallTool(t.Context(), &mcp.CallToolParams{Name: "book", Arguments: map[string]any{"guest": "Ada"}})
	if !errors.Is(err, oncewardmcp.ErrReplyLost) {
		t.Errorf("a server that knows no keys: got %v", err)
	}
	if got := lines(t, b.path+".lines"); len(got) != 1 {
		t.Errorf("its effects are %q", got)
	}

	var runs atomic.Int64
	protected := b.acting(oncewardmcp.Tool{Options: []onceward.Option{onceward.Reserved(onceward.FailureUnknown)}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			runs.Add(1)
			return nil, errInternal
		})
	endpoint = listen(t, protected, newest)
	caller, _ = callerOf(t, func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: endpoint} })
	result, err := caller.CallTool(t.Context(), &mcp.CallToolParams{Name: "act"})
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, result, "outcome-unknown")
	if runs.Load() != 1 {
		t.Errorf("the tool ran %d times", runs.Load())
	}
}

// TestCallerAsksBeforeItRepeats: a server that is down when the caller wants to know whether a tool is protected is
// asked again, and the call is not repeated meanwhile.
func TestCallerAsksBeforeItRepeats(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	path := b.path + ".lines"
	var lost atomic.Bool
	var connects atomic.Int64
	caller, err := oncewardmcp.NewCaller(oncewardmcp.CallerConfig{
		MinBackoff: time.Millisecond,
		Connect: func(ctx context.Context) (*mcp.ClientSession, error) {
			if connects.Add(1) == 2 {
				return nil, errors.New("connection refused")
			}
			here, there := mcp.NewInMemoryTransports()
			go func() { _ = plainServer(path).Run(context.WithoutCancel(ctx), there) }()
			return mcp.NewClient(&mcp.Implementation{Name: "caller"}, nil).Connect(ctx, &losing{here, &lost}, nil)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	_, err = caller.CallTool(t.Context(), &mcp.CallToolParams{Name: "book", Arguments: map[string]any{"guest": "Ada"}})
	if !errors.Is(err, oncewardmcp.ErrReplyLost) {
		t.Errorf("got %v", err)
	}
	if got := lines(t, path); len(got) != 1 {
		t.Errorf("the effects are %q", got)
	}
}
