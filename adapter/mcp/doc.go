// Package oncewardmcp lets tool calls of the Model Context Protocol happen once. A language model that does not see the
// reply to a call makes the call again, and so does its client: with a key for each call, the work is done once and
// every repetition gets the first answer.
//
// [New] protects the tools of a server that is built with the official Go SDK, by the same [onceward.Guard] as HTTP
// handlers:
//
//	tools, err := oncewardmcp.New(guard, oncewardmcp.Config{
//		Scope: oncewardmcp.SingleScope("assistant"),
//		Tools: map[string]oncewardmcp.Tool{
//			"book_table": {Options: []onceward.Option{onceward.Transactional()}, KeyArgument: "idempotency_key"},
//		},
//	})
//	server.AddReceivingMiddleware(tools.Middleware)
//
// [Caller] is the client's side, and [Proxy] stands in front of a server that knows nothing of Onceward.
package oncewardmcp
