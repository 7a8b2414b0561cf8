package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The circuit breaker around a store is a separate module, which users without a breaker do not need. So telemetry
// recognises the breaker and its event by their methods.
type (
	// breakerChange is the event of a breaker that has changed its state.
	breakerChange interface {
		BreakerStates() (from, to string)
	}
	// breakerStore is a store with a breaker around it.
	breakerStore interface {
		BreakerState() string
	}
)

// breakerStates are the names of the states of a breaker.
var breakerStates = []string{"closed", "half_open", "open"}

func (m *metrics) breakerChanged(e breakerChange) {
	_, to := e.BreakerStates()
	m.breakerChanges.add(1, to)
	m.breaker.Store(&to)
}

// breakerState registers the gauge of the breaker's state. It has one series for each state: 1 for the current state, 0
// for the others.
func (b *builder) breakerState(m *metrics) {
	gauge := b.gauge("onceward_breaker_state",
		"1 for the circuit breaker's state, 0 for the others.", "state")
	b.callback(func(_ context.Context, o metric.Observer) error {
		var now string
		if changed := m.breaker.Load(); changed != nil {
			now = *changed
		}
		if live := m.exported.breaker.Load(); live != nil {
			now = (*live).BreakerState()
		}
		if now == "" {
			return nil
		}
		for _, state := range breakerStates {
			var is int64
			if state == now {
				is = 1
			}
			o.ObserveInt64(gauge, is, metric.WithAttributes(attribute.String("state", state)))
		}
		return nil
	}, gauge)
}
