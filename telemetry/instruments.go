package telemetry

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
)

// maxNames is the number of names from the application, such as names of routes and topics, that have their own series.
const maxNames = 500

// other is the label for everything beyond a limit.
const other = "other"

// few is a map with few entries, which seldom changes: each request reads it without a lock, and each new entry copies
// it.
type few[K comparable, V any] struct {
	mu  sync.Mutex // held by writers
	now atomic.Pointer[map[K]V]
}

func (f *few[K, V]) get(key K) (value V, known bool) {
	if now := f.now.Load(); now != nil {
		value, known = (*now)[key]
	}
	return value, known
}

// add returns the entry of a key. If there is none, add creates it, unless the map already has most entries.
func (f *few[K, V]) add(key K, most int, create func() V) (value V, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if value, known = f.get(key); known {
		return value, true
	}
	next := make(map[K]V)
	if now := f.now.Load(); now != nil {
		if len(*now) >= most {
			return value, false
		}
		maps.Copy(next, *now)
	}
	value = create()
	next[key] = value
	f.now.Store(&next)
	return value, true
}

// all returns the entries.
func (f *few[K, V]) all() map[K]V {
	if now := f.now.Load(); now != nil {
		return *now
	}
	return nil
}

// names bounds the number of names that become labels. The application chooses the names, and an application that puts
// an id into a name must not overload the monitoring.
type names struct{ known few[string, string] }

// name returns the label for a name. A label must be valid UTF-8: otherwise Prometheus refuses the whole page.
func (n *names) name(name string) string {
	if label, known := n.known.get(name); known {
		return label
	}
	if len(n.known.all()) >= maxNames {
		return other // without a lock: if there are too many names, each request gets here
	}
	name = strings.Clone(name)
	label, known := n.known.add(name, maxNames, func() string { return strings.ToValidUTF8(name, "\uFFFD") })
	if !known {
		return other
	}
	return label
}

// routes are the known routes, each with the series that most of its requests are counted in: to find a series by its
// labels would take longer than to count.
type routes struct {
	names
	known few[string, *route]
}

// route holds the series of one route, or of all routes beyond the limit.
type route struct {
	label    string
	decided  [len(decisions)]atomic.Pointer[total]
	executed [len(outcomes)]atomic.Pointer[total]
	spent    atomic.Pointer[total]
	settled  [settledStates]atomic.Pointer[total]
}

func (r *routes) get(operation string) *route {
	if one, known := r.known.get(operation); known {
		return one
	}
	label := r.name(operation)
	if label == other { // one entry for all of them, which is found without a lock
		operation = other
		if one, known := r.known.get(other); known {
			return one
		}
	}
	one, _ := r.known.add(strings.Clone(operation), math.MaxInt, func() *route { return &route{label: label} })
	return one
}

// maxLabels is the largest number of labels of an instrument.
const maxLabels = 2

// labels are the values of the labels of one series.
type labels [maxLabels]string

// series are the series of an instrument, by the values of its labels. They keep what OpenTelemetry would otherwise
// create for each measurement.
type series[T any] struct {
	of    []string // the names of the labels
	make  func(attribute.Set) T
	known few[labels, T]
}

// get returns the series with these values.
func (s *series[T]) get(values labels) T {
	if one, known := s.known.get(values); known {
		return one
	}
	one, _ := s.known.add(values, math.MaxInt, func() T {
		attributes := make([]attribute.KeyValue, len(s.of))
		for i, name := range s.of {
			attributes[i] = attribute.String(name, values[i])
		}
		return s.make(attribute.NewSet(attributes...))
	})
	return one
}

// valuesOf returns the labels in a list.
func valuesOf(list []string) (values labels) {
	copy(values[:], list)
	return values
}

// counter counts by its labels. Its values are read when OpenTelemetry collects: adding to a counter of OpenTelemetry
// takes several times as long.
type counter struct{ series[*total] }

// total is one series of a counter.
type total struct {
	n      atomic.Int64
	labels metric.ObserveOption
}

func newCounter(of []string) *counter {
	with := func(set attribute.Set) *total { return &total{labels: metric.WithAttributeSet(set)} }
	return &counter{series[*total]{of: of, make: with}}
}

func (c *counter) add(n int64, values ...string) { c.get(valuesOf(values)).n.Add(n) }

// addAt adds to a series, and remembers the series at place.
func (c *counter) addAt(place *atomic.Pointer[total], n int64, values ...string) {
	one := place.Load()
	if one == nil {
		one = c.get(valuesOf(values))
		place.Store(one)
	}
	one.n.Add(n)
}

// observe reports all series to OpenTelemetry.
func (c *counter) observe(in metric.Int64Observable, o metric.Observer) {
	for _, one := range c.known.all() {
		o.ObserveInt64(in, one.n.Load(), one.labels)
	}
}

// histogram measures durations by its labels. It gathers durations and then records them together, because
// OpenTelemetry takes several times as long for a duration in the middle of other work as for one directly after
// another.
type histogram struct {
	in metric.Float64Histogram
	series[*gathered]
}

// gathered holds durations of one series that are not yet recorded in OpenTelemetry.
type gathered struct {
	labels []metric.RecordOption
	mu     sync.Mutex
	n      int
	list   [maxGathered]time.Duration
}

// maxGathered is the largest number of gathered durations.
const maxGathered = 64

// record measures a duration. A duration in a sampled trace is recorded immediately, with its context, because it may
// become an exemplar, which links to the trace.
func (h *histogram) record(ctx context.Context, d time.Duration, values ...string) {
	h.recordAt(ctx, h.get(valuesOf(values)), d)
}

// recordAt measures a duration in a series that was already found.
func (h *histogram) recordAt(ctx context.Context, g *gathered, d time.Duration) {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		h.in.Record(ctx, d.Seconds(), g.labels...)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list[g.n] = d
	g.n++
	if g.n == maxGathered {
		h.handOn(g)
	}
}

// handOn records the gathered durations in OpenTelemetry. The caller holds the lock, so that a later collection has all
// of them.
func (h *histogram) handOn(g *gathered) {
	for _, d := range g.list[:g.n] {
		h.in.Record(context.Background(), d.Seconds(), g.labels...)
	}
	g.n = 0
}

// collect records the durations that are still gathered.
func (h *histogram) collect() {
	for _, g := range h.known.all() {
		g.mu.Lock()
		h.handOn(g)
		g.mu.Unlock()
	}
}

// durations are the bucket bounds of histograms, in seconds: from a call to a nearby store to the longest wait of a
// client.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metric describes a metric, as Prometheus shows it.
type Metric struct {
	Name   string
	Type   string
	Labels []string
	Help   string
}

// builder makes instruments, and records them for the table of the documentation.
type builder struct {
	meter metric.Meter
	errs  []error
	made  []Metric

	histograms []*histogram
	observable []metric.Observable
}

func (b *builder) note(name, kind, help string, of []string, err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
	b.made = append(b.made, Metric{Name: name, Type: kind, Labels: of, Help: help})
}

func (b *builder) counter(name, help string, of ...string) *counter {
	in := b.tally(name, help, of...)
	c := newCounter(of)
	if len(of) == 0 {
		c.add(0) // so that the series exists before the first count
	}
	b.callback(func(_ context.Context, o metric.Observer) error {
		c.observe(in, o)
		return nil
	}, in)
	return c
}

// spent returns a counter of nanoseconds that is shown in seconds. It costs much less than a histogram.
func (b *builder) spent(name, help string, of ...string) *counter {
	in, err := b.meter.Float64ObservableCounter(name, metric.WithDescription(help), metric.WithUnit("s"))
	b.note(name+"_seconds_total", "counter", help, of, err)
	c := newCounter(of)
	b.callback(func(_ context.Context, o metric.Observer) error {
		for _, one := range c.known.all() {
			o.ObserveFloat64(in, time.Duration(one.n.Load()).Seconds(), one.labels)
		}
		return nil
	}, in)
	return c
}

func (b *builder) histogram(name, help string, of ...string) *histogram {
	in, err := b.meter.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(durations...))
	b.note(name+"_seconds", "histogram", help, of, err)
	with := func(set attribute.Set) *gathered {
		return &gathered{labels: []metric.RecordOption{metric.WithAttributeSet(set)}}
	}
	h := &histogram{in: in, series: series[*gathered]{of: of, make: with}}
	b.histograms = append(b.histograms, h)
	return h
}

// tally returns a counter whose values are read by a callback.
func (b *builder) tally(name, help string, of ...string) metric.Int64ObservableCounter {
	in, err := b.meter.Int64ObservableCounter(name, metric.WithDescription(help))
	b.note(name+"_total", "counter", help, of, err)
	return in
}

// gauge returns a gauge whose values are read by a callback.
func (b *builder) gauge(name, help string, of ...string) metric.Int64ObservableGauge {
	in, err := b.meter.Int64ObservableGauge(name, metric.WithDescription(help))
	b.note(name, "gauge", help, of, err)
	return in
}

// seconds returns a gauge in seconds whose values are read by a callback.
func (b *builder) seconds(name, help string, of ...string) metric.Float64ObservableGauge {
	in, err := b.meter.Float64ObservableGauge(name, metric.WithDescription(help), metric.WithUnit("s"))
	b.note(name+"_seconds", "gauge", help, of, err)
	return in
}

// collectHistograms registers a callback that completes the histograms before they are read: OpenTelemetry first calls
// all callbacks.
func (b *builder) collectHistograms() {
	histograms := b.histograms
	b.callback(func(context.Context, metric.Observer) error {
		for _, h := range histograms {
			h.collect()
		}
		return nil
	}, b.observable...)
}

// callback registers a callback for instruments that are read together.
func (b *builder) callback(f metric.Callback, of ...metric.Observable) {
	if len(b.errs) > 0 {
		return
	}
	b.observable = append(b.observable, of...)
	if _, err := b.meter.RegisterCallback(f, of...); err != nil {
		b.errs = append(b.errs, err)
	}
}

func (b *builder) err() error { return errors.Join(b.errs...) }

// Metrics returns all metrics that a [Telemetry] can show, under their names in Prometheus.
func Metrics() []Metric {
	m, err := newMetrics(noop.Meter{}, &Config{TopScopes: 1, ScopeLabels: true})
	if err != nil {
		return nil // the no-op meter returns no errors
	}
	return m.made
}
