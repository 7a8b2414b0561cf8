package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/telemetry"
)

// A service gives the telemetry to its guard, and lets Prometheus read the metrics.
func Example() {
	meters, metrics, err := telemetry.Prometheus()
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := telemetry.New(telemetry.Config{MeterProvider: meters})
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := onceward.New(memory.New(), onceward.Config{
		Secret: []byte("at least sixteen random bytes"), Observer: t, Propagator: t,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		call := onceward.Call{Scope: "jobs", Key: "2026-01-01", Operation: "nightly"}
		_, err := guard.Do(context.Background(), call, func(context.Context) ([]byte, error) { return nil, nil },
			onceward.Reserved(onceward.FailureStore))
		if err != nil {
			fmt.Println(err)
		}
	}

	page := httptest.NewRecorder()
	metrics.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "onceward_reservations_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// onceward_reservations_total{decision="created",route="nightly"} 1
	// onceward_reservations_total{decision="replay",route="nightly"} 2
}
