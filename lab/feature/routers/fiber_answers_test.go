package routers_test

import (
	"net/http"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/lab/feature/suite"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestFiberContentTypes: an explicit Content-Type is stored, also where it is the one that fasthttp sends by default.
func TestFiberContentTypes(t *testing.T) {
	t.Parallel()
	for _, explicit := range []bool{true, false} {
		app := fiber.New(fiber.Config{DisableDefaultContentType: true})
		guard := guardOfScope(t, onceward.SingleScope("shop"))
		app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
			if explicit {
				c.Set("Content-Type", "text/plain; charset=utf-8")
			}
			return c.Status(http.StatusCreated).Send([]byte("done"))
		}, onceward.Reserved(onceward.FailureUnknown)))
		caller := listen(t, app)
		for _, replayed := range []bool{false, true} {
			got, err := caller.Call(t.Context(), suite.Request{Key: "k", Payment: suite.Payment{Account: "a"}})
			if err != nil || got.Replayed != replayed || (got.Header.Get("Content-Type") != "") != explicit {
				t.Errorf("explicit %t, replayed %t: got %s with %v, error %v", explicit, replayed, got, got.Header, err)
			}
		}
	}
}

// TestFiberDrop: a handler that drops its client has given no answer: nothing is stored for it.
func TestFiberDrop(t *testing.T) {
	t.Parallel()
	s := memory.New()
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"), Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error { return c.Drop() },
		onceward.Reserved(onceward.FailureUnknown)))
	caller := listen(t, app)
	request := suite.Request{Key: "k", Payment: suite.Payment{Account: "a"}}
	if got, err := caller.Call(t.Context(), request); err == nil {
		t.Errorf("the dropped client got %s", got)
	}
	await.That(t, "the outcome is unknown to a retry", func() bool { // the client is dropped before that is recorded
		got, err := caller.Call(t.Context(), request)
		return err == nil && got.Code == "outcome-unknown"
	})
	rec, err := s.Get(t.Context(), store.ID{Scope: "shop", Key: "k"})
	if err != nil || rec.State != store.StateUnknown {
		t.Errorf("the record is %s, error %v; want an unknown outcome", rec.State, err)
	}
}
