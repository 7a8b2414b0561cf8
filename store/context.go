package store

import "context"

// ContextName is the name under which an adapter keeps the context of a handler's attempt among the values of a
// framework's own context. Handlers of gin and fiber often pass the framework's context to functions that take a
// [context.Context].
const ContextName = "github.com/onceward/onceward/store.Context"

// Value returns a value of the context that a handler runs in. It also finds the value if ctx is a framework's own
// context: see [ContextName].
func Value(ctx context.Context, key any) any {
	if v := ctx.Value(key); v != nil {
		return v
	}
	if attempt, ok := ctx.Value(ContextName).(context.Context); ok {
		return attempt.Value(key)
	}
	return nil
}
