package phase_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
)

// inDoubt is an operation of a seat, a charge whose first answer is lost, and a confirmation.
func (b *bench) inDoubt() *phase.Operation[order] {
	lost := true
	return b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *order) error {
		if lost {
			lost = false
			return errDown
		}
		return charge(ctx, key, o)
	}), b.local("confirm", confirm))
}

// TestCompletedSkipsNoStep: a resolver that answers for the whole of an operation, when it knows of one step, is refused (I15).
func TestCompletedSkipsNoStep(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		o := b.inDoubt()
		b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
		poller, err := reconcile.NewPoller(b.store, reconcile.Config{
			Default: &reconcile.Rule{Resolver: reconcile.ResolverFunc(func(context.Context, *onceward.Record) (reconcile.Answer, error) {
				return reconcile.Completed(reconcile.Response(http.StatusCreated, nil, []byte("charged")), "ch_1"), nil
			})},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := poller.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rec := b.record("k"); rec.State != onceward.StateUnknown {
			t.Errorf("the record is %s, and its confirmation never ran", rec.State)
		}
		b.wantTrace("seat charge")
	})
}
