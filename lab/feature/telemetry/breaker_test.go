package telemetry_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/telemetry"
)

// deaf is a store that cannot be reached.
type deaf struct{ *memory.Store }

func (deaf) Get(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, store.ErrUnavailable
}

// TestBreakerIsRecognised: telemetry counts and logs the event of a real breaker, whose package it does not import.
func TestBreakerIsRecognised(t *testing.T) {
	t.Parallel()
	meters, page, err := telemetry.Prometheus()
	must(t, err)
	var log strings.Builder
	observer, err := telemetry.New(telemetry.Config{
		MeterProvider: meters, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	must(t, err)
	sick, err := breaker.New(deaf{memory.New()}, breaker.Config{ConsecutiveFailures: 1, Observer: observer, Logger: quiet})
	must(t, err)
	_, _ = sick.Get(t.Context(), store.ID{Scope: "s", Key: "k"}) // it fails, and opens the breaker
	if got, want := sick.BreakerState(), sick.State().String(); got != want || got != "open" {
		t.Errorf("the state is %q and %q, want open", got, want)
	}
	shown := httptest.NewRecorder()
	page.ServeHTTP(shown, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`onceward_breaker_changes_total{to="open"} 1`, `onceward_breaker_state{state="open"} 1`} {
		if !strings.Contains(shown.Body.String(), want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if !strings.Contains(log.String(), "from=closed to=open") {
		t.Errorf("the log does not have the change: %s", log.String())
	}
}
