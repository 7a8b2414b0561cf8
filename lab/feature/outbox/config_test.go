package outbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/memory"
)

const year = 365 * 24 * time.Hour

// TestWrappedStoreWithoutMessages is refused at once: a wrapper has all methods, whatever it is around.
func TestWrappedStoreWithoutMessages(t *testing.T) {
	t.Parallel()
	s := wrap.New(memory.New(), nil)
	_, newErr := outbox.New(s, outbox.Config{})
	_, workerErr := outbox.NewWorker(s, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{topic: {Handler: new(clerk).deliver}},
	})
	_, operatorErr := outbox.NewOperator(s)
	for name, err := range map[string]error{"New": newErr, "NewWorker": workerErr, "NewOperator": operatorErr} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s over a store in memory: %v", name, err)
		}
	}
}

// TestRefusedConfigs: a worker that could not work is not made, and the error says why.
func TestRefusedConfigs(t *testing.T) {
	t.Parallel()
	route := func(change func(r *outbox.Route)) outbox.WorkerConfig {
		r := outbox.Route{Handler: new(clerk).deliver}
		change(&r)
		return outbox.WorkerConfig{Routes: map[string]outbox.Route{topic: r}}
	}
	worker := func(change func(c *outbox.WorkerConfig)) outbox.WorkerConfig {
		c := route(func(*outbox.Route) {})
		change(&c)
		return c
	}
	for want, config := range map[string]outbox.WorkerConfig{
		"outbox: WorkerConfig.Routes is missing: it says who delivers the messages of a topic": {},
		"outbox: a route without a topic: messages without one are for change-data-capture alone": {
			Routes: map[string]outbox.Route{"": {Handler: new(clerk).deliver}},
		},
		`outbox: the route for "charges" has no Handler`:                            route(func(r *outbox.Route) { r.Handler = nil }),
		`outbox: the route for "charges" has a negative MaxAttempts or Concurrency`: route(func(r *outbox.Route) { r.MaxAttempts = -1 }),
		`outbox: Timeout is negative: -1ns`:                                         route(func(r *outbox.Route) { r.Timeout = -1 }),
		`outbox: MinBackoff is negative: -1ns`:                                      route(func(r *outbox.Route) { r.MinBackoff = -1 }),
		`outbox: MaxBackoff is negative: -1ns`:                                      route(func(r *outbox.Route) { r.MaxBackoff = -1 }),
		`outbox: Lease is negative: -1s`:                                            worker(func(c *outbox.WorkerConfig) { c.Lease = -time.Second }),
		`outbox: Poll is negative: -1s`:                                             worker(func(c *outbox.WorkerConfig) { c.Poll = -time.Second }),
		`outbox: Retention is negative: -1s`:                                        worker(func(c *outbox.WorkerConfig) { c.Retention = -time.Second }),
		`outbox: a Lease of 876000h0m0s: the limits are 100ms and 24h0m0s`:          worker(func(c *outbox.WorkerConfig) { c.Lease = 100 * year }),
		`outbox: a Lease of 1ns: the limits are 100ms and 24h0m0s`:                  worker(func(c *outbox.WorkerConfig) { c.Lease = 1 }),
		`outbox: a Poll of 1ns: the limits are 1ms and 438000h0m0s`:                 worker(func(c *outbox.WorkerConfig) { c.Poll = 1 }),
		`outbox: a Retention of 876000h0m0s: the limits are 1ns and 438000h0m0s`: worker(func(c *outbox.WorkerConfig) {
			c.Retention = 100 * year
		}),
		`outbox: a Timeout of 1ns: the limits are 1ms and 438000h0m0s`: route(func(r *outbox.Route) { r.Timeout = 1 }),
		`outbox: a MaxBackoff of 876000h0m0s: the limits are 1ns and 438000h0m0s`: route(func(r *outbox.Route) {
			r.MaxBackoff = 100 * year
		}),
		`outbox: Grace is negative: -1s`: worker(func(c *outbox.WorkerConfig) { c.Grace = -time.Second }),
	} {
		if _, err := outbox.NewWorker(new(spyStore), config); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	concurrency := route(func(r *outbox.Route) { r.Concurrency = -1 })
	if _, err := outbox.NewWorker(new(spyStore), concurrency); err == nil {
		t.Error("a negative Concurrency was taken")
	}
	if _, err := outbox.NewWorker(nil, route(func(*outbox.Route) {})); err == nil ||
		err.Error() != "outbox: there is no store" {
		t.Errorf("without a store: %v", err)
	}
}

// TestConfigIsCopied: who changes the routes afterwards changes nothing.
func TestConfigIsCopied(t *testing.T) {
	inTime(t, func(b *bench) {
		mail := new(clerk)
		routes := map[string]outbox.Route{topic: {Handler: mail.deliver}}
		w := b.worker(b.store, outbox.Route{}, func(c *outbox.WorkerConfig) { c.Routes = routes })
		delete(routes, topic)
		b.add(about("", "m"))
		b.run(w, outbox.Report{Delivered: 1})
	})
}
