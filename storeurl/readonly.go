package storeurl

import (
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
)

// looks are the calls that only read.
var looks = []wrap.Call{
	"get", "list", "stats", "find hash", "find provider id", "late completions", "external events", "audit", "list audit",
	"list executions", "wait",
}

// readOnly returns a store that refuses all calls that write, for a store that has no complete read-only mode.
func readOnly(inside store.Store) *wrap.Store {
	return wrap.New(inside, func(ctx context.Context, call wrap.Call, next func(ctx context.Context) error) error {
		if !slices.Contains(looks, call) {
			return fmt.Errorf("storeurl: %s: %w", call, store.ErrReadOnly)
		}
		return next(ctx)
	})
}
