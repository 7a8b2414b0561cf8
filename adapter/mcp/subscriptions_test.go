package oncewardmcp_test

import (
	"context"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
)

// TestProxySubscriptions: completions are passed on, each client is told of the resources that it subscribed to, and one
// that leaves or unsubscribes takes nothing from the others.
func TestProxySubscriptions(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"with sessions": "2025-06-18", "newest": newest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			behind := mcp.NewServer(&mcp.Implementation{Name: "plain"}, &mcp.ServerOptions{
				SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
				UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
				CompletionHandler: func(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
					return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{req.Params.Argument.Value + "a"}}}, nil
				},
			})
			behind.AddResource(&mcp.Resource{Name: "card", URI: "file:///card"}, nil)
			var connections []mcp.Connection
			proxy := b.proxy(oncewardmcp.ProxyTool{}, func(ctx context.Context) (mcp.Transport, error) {
				here, there := mcp.NewInMemoryTransports()
				go func() { _ = behind.Run(ctx, there) }()
				return &keeping{here, &connections}, nil
			})
			front := listen(t, proxy.Server(), version)
			open := func() (*mcp.ClientSession, chan string) {
				told := make(chan string, 100)
				client := mcp.NewClient(&mcp.Implementation{Name: "test"}, &mcp.ClientOptions{
					ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) { told <- req.Params.URI },
				})
				session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: front}, &mcp.ClientSessionOptions{ProtocolVersion: version})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = session.Close() })
				return session, told
			}
			one, toldOne := open()
			two, toldTwo := open()
			done, err := one.Complete(t.Context(), &mcp.CompleteParams{
				Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "ask"}, Argument: mcp.CompleteParamsArgument{Name: "x", Value: "Ad"},
			})
			if err != nil || done.Completion.Values[0] != "Ada" {
				t.Errorf("completed %+v, %v", done, err)
			}
			for _, s := range []*mcp.ClientSession{one, two} {
				if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "file:///card"}); err != nil {
					t.Fatal(err)
				}
			}
			update := func(told chan string) {
				t.Helper()
				await.That(t, "there is an update", func() bool {
					_ = behind.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: "file:///card"})
					select {
					case <-told:
						return true
					case <-time.After(10 * time.Millisecond):
						return false
					}
				})
			}
			update(toldOne)
			update(toldTwo)
			if err := one.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "file:///card"}); err != nil {
				t.Fatal(err)
			}
			for range 20 { // the last update may still be on its way
				update(toldTwo)
			}
			_ = connections[0].Close()
			await.That(t, "the next session answers", func() bool {
				_, err := two.ListResources(t.Context(), nil)
				return err == nil
			})
			for range 20 {
				update(toldTwo)
			}
		})
	}
}
