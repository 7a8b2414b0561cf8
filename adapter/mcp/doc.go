// Package oncewardmcp executes tool calls of the Model Context Protocol once. A language model that does not see the
// reply to a call makes the call again, and so does its client. With a key for each call, the work is done once and
// every repetition gets the first answer.
//
// [New] protects the tools of a server that is built with the official Go SDK. It uses the same [onceward.Guard] as
// HTTP handlers:
//
//	tools, err := oncewardmcp.New(guard, oncewardmcp.Config{
//		Scope: oncewardmcp.SingleScope("assistant"),
//		Tools: map[string]oncewardmcp.Tool{
//			"book_table": {Options: []onceward.Option{onceward.Transactional()}, KeyArgument: "idempotency_key"},
//		},
//	})
//	server.AddReceivingMiddleware(tools.Middleware)
//
// [Caller] is the client side. [Proxy] protects a server that does not use Onceward.
package oncewardmcp
