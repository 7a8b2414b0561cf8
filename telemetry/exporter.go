package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// DefaultExportInterval is the default time between two counts of the store.
const DefaultExportInterval = time.Minute

// ExporterConfig configures an [Exporter].
type ExporterConfig struct {
	// Store is the store that is counted: a [store.Lister], and an [outbox.Store] if it keeps messages. Required.
	Store store.Store
	// Guard is the guard whose active leases are shown. Default: none, and no leases are shown.
	Guard *onceward.Guard
	// Interval is the time between two counts of the store, at least a second. Default: [DefaultExportInterval].
	Interval time.Duration
	// Logger logs failures. Default: [slog.Default].
	Logger *slog.Logger
}

// Exporter counts what is in the store, for gauges: records by state, lost owners, the oldest unknown outcome, waiting
// messages, dead letters. One node at a time counts and shows the result; the others show nothing. Run an exporter on
// every node, as an [onceward.Worker].
type Exporter struct {
	telemetry *Telemetry
	config    ExporterConfig
	lister    store.Lister
	messages  outbox.Store              // nil if the store keeps none
	claims    store.ExternalEventKeeper // nil if the store keeps none: then every node counts
	node      string
	clock     storeClock
	term      time.Time // the last term that was claimed, by this node or by another one
	held      bool      // this node claimed it
}

// Exporter returns an exporter for a store. If the store cannot be listed, the error is [errors.ErrUnsupported]. A
// telemetry has one exporter: two would overwrite each other's gauges, which have no label for the store.
func (t *Telemetry) Exporter(config ExporterConfig) (*Exporter, error) {
	if config.Store == nil {
		return nil, errors.New("telemetry: ExporterConfig.Store is missing: it is what is counted")
	}
	if config.Interval == 0 {
		config.Interval = DefaultExportInterval
	}
	if config.Interval < time.Second {
		return nil, fmt.Errorf("telemetry: ExporterConfig.Interval is %s: the least is a second", config.Interval)
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	e := &Exporter{telemetry: t, config: config, node: rand.Text()}
	var ok bool
	if e.lister, ok = store.As[store.Lister](config.Store); !ok {
		return nil, fmt.Errorf("telemetry: %T cannot be looked through: %w", config.Store, errors.ErrUnsupported)
	}
	if t.metrics.exported.taken.Swap(true) {
		return nil, errors.New("telemetry: there is an exporter already: make a Telemetry, and a registry, for each store")
	}
	e.messages, _ = store.As[outbox.Store](config.Store)
	e.claims, _ = store.As[store.ExternalEventKeeper](config.Store)
	if config.Guard != nil {
		t.metrics.exported.guard.Store(config.Guard)
	}
	if b, ok := store.Find[breakerStore](config.Store); ok {
		t.metrics.exported.breaker.Store(&b)
	}
	return e, nil
}

// Run counts until the context ends, and then returns nil. Failures are logged, and it continues.
//
// The store's time is divided into terms as long as the interval, and a node counts in the terms that it has claimed.
// The node that had the last term claims the next one immediately; the other nodes try a quarter of a term later. So a
// node keeps counting as long as it lives, and when it is gone another node takes over within a term and a quarter. A
// node that fails twice in a row shows nothing any more, and claims after the others, because it may be the only node
// that cannot count.
func (e *Exporter) Run(ctx context.Context) error {
	defer e.telemetry.metrics.exported.counted.Store(nil)
	for failures := 0; ; {
		if err := e.RunOnce(ctx); err == nil {
			failures = 0
		} else if failures++; ctx.Err() == nil {
			e.config.Logger.WarnContext(ctx, "telemetry: the store could not be counted", "error", err)
		}
		now := e.clock.now()
		next := now.Truncate(e.config.Interval).Add(e.config.Interval)
		switch {
		case failures > 1:
			next = next.Add(e.config.Interval / 2)
		case !e.held:
			next = next.Add(e.config.Interval / 4)
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// RunOnce claims the current term and counts. If another node has claimed the term, this node shows nothing. After a
// failure the last count is shown for two intervals, so that firing alerts do not end because the store was slow once.
func (e *Exporter) RunOnce(ctx context.Context) (err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.config.Interval)
	defer cancel()
	if e.held, err = e.claim(ctx); err == nil && e.held {
		err = e.count(ctx)
	}
	if err == nil && !e.held {
		e.telemetry.metrics.exported.counted.Store(nil) // after a failure the last count is shown until it is too old
	}
	e.telemetry.Observe(ctx, onceward.WorkerEvent{Worker: "exporter", Elapsed: time.Since(began), Err: err})
	return err
}

// claimSource is the source under which claims are stored, apart from the events of all senders.
const claimSource = "onceward exporter"

// claim reports whether this node has claimed the current term. A claim is an external event with its own source, whose
// id is the term: the store accepts each id once, and old claims are removed with the other old events.
//
// A claim that was made more than a term before its term began is ignored, and the next id is claimed: the claim came
// from a node whose clock was ahead, and that node may be gone.
func (e *Exporter) claim(ctx context.Context) (bool, error) {
	if e.claims == nil {
		return true, nil
	}
	if err := e.askTime(ctx); err != nil {
		return false, err
	}
	term := e.clock.now().Truncate(e.config.Interval)
	if term.Equal(e.term) {
		return e.held, nil
	}
	id := term.UTC().Format(time.RFC3339)
	for n := 2; ; n++ {
		kept, err := e.keep(ctx, id)
		if err != nil {
			return false, err
		}
		own := string(kept.Body) == e.node
		if own || term.Sub(kept.ReceivedAt) <= e.config.Interval {
			e.term = term
			return own, nil
		}
		id = fmt.Sprint(term.UTC().Format(time.RFC3339), " ", n)
	}
}

// keep stores an event of this node, unless the store has an event with that id, and returns the stored event.
func (e *Exporter) keep(ctx context.Context, id string) (store.ExternalEvent, error) {
	event := store.ExternalEvent{
		Source: claimSource, EventID: id, Subject: id, AnyScope: true, At: time.Now(), Body: []byte(e.node),
	}
	if _, err := e.claims.AddExternalEvent(ctx, event); err != nil {
		return event, err
	}
	kept, err := e.claims.ExternalEvents(ctx, store.ExternalEventFilter{Source: claimSource, Subjects: []string{id}})
	if err == nil && len(kept) != 1 {
		err = fmt.Errorf("telemetry: the store has %d events of the id %q that it keeps", len(kept), id)
	}
	if err != nil {
		return event, err
	}
	return kept[0], nil
}

// storeClock is the store's clock, as last read: the clocks of nodes may differ, but all nodes must use the same terms.
type storeClock struct {
	seen time.Time // the time of the store's clock
	at   time.Time // the time of the node's clock at that moment
}

// now returns the store's time, or the node's time until the store's clock was read.
func (c *storeClock) now() time.Time {
	if c.at.IsZero() {
		return time.Now()
	}
	return c.seen.Add(time.Since(c.at))
}

// askEvery is how often the store's clock is read: in an hour clocks do not drift apart by much.
const askEvery = time.Hour

// askTime reads the store's clock, if that is due: each event that the store keeps contains the store's time.
func (e *Exporter) askTime(ctx context.Context) error {
	if !e.clock.at.IsZero() && time.Since(e.clock.at) < askEvery {
		return nil
	}
	began := time.Now()
	kept, err := e.keep(ctx, "node "+rand.Text())
	if err == nil {
		e.clock = storeClock{seen: kept.ReceivedAt, at: began.Add(time.Since(began) / 2)}
	}
	return err
}

// count counts the records and the messages of the store, with one query each.
func (e *Exporter) count(ctx context.Context) error {
	records, err := e.lister.Stats(ctx)
	if err != nil {
		return err
	}
	c := &counted{records: records, until: time.Now().Add(2 * e.config.Interval)}
	if e.messages != nil {
		messages, err := e.messages.MessageStats(ctx)
		if err != nil {
			return err
		}
		c.messages = &messages
	}
	e.telemetry.metrics.exported.counted.Store(c)
	return nil
}

// exported holds what the gauges show.
type exported struct {
	taken   atomic.Bool // there is an exporter
	guard   atomic.Pointer[onceward.Guard]
	breaker atomic.Pointer[breakerStore]
	counted atomic.Pointer[counted]
}

// counted is the result of a count, and the time until which it may be shown.
type counted struct {
	records  store.Stats
	messages *outbox.Stats
	until    time.Time
}

func (b *builder) activeLeases(x *exported) {
	gauge := b.gauge("onceward_active_leases", "Attempts of this node that hold a lease.")
	b.callback(func(_ context.Context, o metric.Observer) error {
		if guard := x.guard.Load(); guard != nil {
			o.ObserveInt64(gauge, int64(guard.ActiveLeases()))
		}
		return nil
	}, gauge)
}

// states are the states that the gauges show.
var states = []store.State{
	store.StateInProgress, store.StateCompleted, store.StateRetryable, store.StateUnknown, store.StateExpired,
}

func (b *builder) storeGauges(x *exported) {
	records := b.gauge("onceward_records", "Records in the store.", "state")
	deadLetters := b.gauge("onceward_dead_letters", "Unknown outcomes that wait for a person.")
	oldest := b.seconds("onceward_oldest_unknown_age",
		"Age of the oldest unknown outcome that is no dead letter.")
	lost := b.gauge("onceward_lost_owners", "Records in progress whose lease has ended.")
	oldestLost := b.seconds("onceward_oldest_lost_owner_age",
		"Time since the first of their leases ended.")
	depth := b.gauge("onceward_outbox_depth", "Messages that wait to be delivered.")
	age := b.seconds("onceward_outbox_oldest_age", "Age of the oldest of them.")
	dead := b.gauge("onceward_outbox_dead_letters", "Messages that wait for a person.")
	b.callback(func(_ context.Context, o metric.Observer) error {
		c, now := x.counted.Load(), time.Now()
		if c == nil || now.After(c.until) {
			return nil
		}
		for _, state := range states {
			o.ObserveInt64(records, c.records.Records[state],
				metric.WithAttributes(attribute.String("state", state.String())))
		}
		o.ObserveInt64(deadLetters, c.records.DeadLetters)
		o.ObserveFloat64(oldest, ageOf(c.records.OldestUnknown, now))
		o.ObserveInt64(lost, c.records.LostOwners)
		o.ObserveFloat64(oldestLost, ageOf(c.records.OldestLostOwner, now))
		if c.messages != nil {
			o.ObserveInt64(depth, int64(c.messages.Waiting))
			o.ObserveFloat64(age, ageOf(c.messages.Oldest, now))
			o.ObserveInt64(dead, int64(c.messages.DeadLetters))
		}
		return nil
	}, records, deadLetters, oldest, lost, oldestLost, depth, age, dead)
}
