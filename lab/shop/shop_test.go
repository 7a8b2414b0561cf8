package shop_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/oncewardtest"
)

// world is what the service runs in: a database in memory, and a double of its provider.
func world(t oncewardtest.TestingT) oncewardtest.Config {
	store, clock := oncewardtest.NewStore(t, `CREATE TABLE payment (amount INTEGER NOT NULL)`)
	provider := oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{})
	return oncewardtest.Config{
		Store: store, Clock: clock,
		Effects:   oncewardtest.Rows(store.DB(), "payment"), // what must happen once,
		Providers: []*oncewardtest.Provider{provider},       // as what the provider does
		Service: func(guard *onceward.Guard) http.Handler {
			return shop.New(guard, func(ctx context.Context, key string) error {
				_, err := provider.Call(ctx, "/refunds", key, `{}`)
				return err
			})
		},
	}
}

// TestShop sends each request through duplicates, crashes and lost replies.
func TestShop(t *testing.T) {
	oncewardtest.Check(t, world,
		oncewardtest.Post("/payments", `{"amount": 1200}`),
		oncewardtest.Post("/payments", `{"amount": 0}`),
		oncewardtest.Post("/refunds", `{}`))
}

// TestPayments tells one story.
func TestPayments(t *testing.T) {
	kit := oncewardtest.New(t, world(t))
	kit.Faults().CrashAt(oncewardtest.Before("commit"))
	kit.Post("/payments", "key-1", `{"amount": 1200}`) // no answer
	kit.Restart()
	first := kit.Post("/payments", "key-1", `{"amount": 1200}`).Executed(http.StatusCreated)
	kit.Post("/payments", "key-1", `{"amount": 1200.0}`).Replayed(first)
	kit.Post("/payments", "key-1", `{"amount": 1300}`).Refused("mismatch")
	kit.ExecutedOnce()

	kit.Post("/payments", "key-2", `{"amount": 0}`).Executed(http.StatusUnprocessableEntity)
	kit.Post("/payments", "key-2", `{"amount": 100}`).Executed(http.StatusCreated)
	kit.Advance(25 * time.Hour)
	kit.Post("/payments", "key-1", `{"amount": 1200}`).Executed(http.StatusCreated) // its answer has expired
}

// TestRefundIsUnknown: the provider's answer is lost.
func TestRefundIsUnknown(t *testing.T) {
	config := world(t)
	kit := oncewardtest.New(t, config)
	config.Providers[0].LoseReply(1)
	kit.Post("/refunds", "key-1", `{}`).Executed(http.StatusInternalServerError)
	kit.Advance(25 * time.Hour)
	kit.Post("/refunds", "key-1", `{}`).Refused("outcome-unknown")
	kit.ExecutedOnce()
}

// TestPayByItself calls the handler without a guard, in a transaction that is undone.
func TestPayByItself(t *testing.T) {
	oncewardtest.InTx(t, world(t).Store, func(ctx context.Context) {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": 1200}`))
		w := httptest.NewRecorder()
		shop.Pay(w, r.WithContext(ctx))

		var paid int
		err := onceward.Tx(ctx).QueryRowContext(ctx, `SELECT sum(amount) FROM payment`).Scan(&paid)
		if w.Code != http.StatusCreated || paid != 1200 || err != nil {
			t.Errorf("got %d, and %d was paid (%v), want 201 and 1200", w.Code, paid, err)
		}
	})
}
