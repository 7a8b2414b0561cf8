package sqltx_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/onceward/onceward/internal/sqltx"
)

// followed counts what waits for the end of a context.
type followed struct {
	context.Context
	followers atomic.Int64
}

func (f *followed) AfterFunc(do func()) (stop func() bool) {
	f.followers.Add(1)
	leave := context.AfterFunc(f.Context, do)
	return func() bool {
		f.followers.Add(-1)
		return leave()
	}
}

// Value hides the context of the standard library, which would be followed in its place.
func (f *followed) Value(any) any { return nil }

// TestWhileBusy: a statement ends with its context only while it is waited for, and leaves nothing behind.
func TestWhileBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, end := context.WithCancel(t.Context())
		ctx := &followed{Context: inner}
		var busy atomic.Bool
		for range 100 { // the statements of a handler
			_, stop := sqltx.WhileBusy(ctx, &busy)
			stop()
		}
		if n := ctx.followers.Load(); n != 0 {
			t.Errorf("%d statements that are over wait for the end of the handler", n)
		}
		idle, stopIdle := sqltx.WhileBusy(ctx, new(atomic.Bool))
		defer stopIdle()
		own, stop := sqltx.WhileBusy(ctx, &busy)
		defer stop()
		busy.Store(true)
		end()
		synctest.Wait()
		if idle.Err() != nil || own.Err() == nil {
			t.Errorf("one that nobody waits for ended: %v; one that is waited for: %v", idle.Err(), own.Err())
		}
	})
}
