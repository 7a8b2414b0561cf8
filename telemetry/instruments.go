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

// maxNames is how many names from the application, such as those of routes and topics, have series of their own.
const maxNames = 500

// other is the name of all that is beyond a limit.
const other = "other"

// few is a map that soon has all that it will ever have: it is read on the path of each request, without a lock, and
// copied for each entry that is new.
type few[K comparable, V any] struct {
	mu  sync.Mutex // of those who write
	now atomic.Pointer[map[K]V]
}

func (f *few[K, V]) get(key K) (value V, known bool) {
	if now := f.now.Load(); now != nil {
		value, known = (*now)[key]
	}
	return value, known
}

// add puts an entry in that is not there, unless there are so many already, and returns the one that is there then.
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

// all are its entries.
func (f *few[K, V]) all() map[K]V {
	if now := f.now.Load(); now != nil {
		return *now
	}
	return nil
}

// names bounds how many names become labels: they are the application's, and one that puts an id into a name must not
// take the monitoring down.
type names struct{ known few[string, string] }

// name is the label for a name. Prometheus refuses the whole page if one label is no UTF-8.
func (n *names) name(name string) string {
	if label, known := n.known.get(name); known {
		return label
	}
	if len(n.known.all()) >= maxNames {
		return other // without a lock: with names that are too many each request comes here
	}
	name = strings.Clone(name)
	label, known := n.known.add(name, maxNames, func() string { return strings.ToValidUTF8(name, "\uFFFD") })
	if !known {
		return other
	}
	return label
}

// routes are the routes that were met, each with the series that most requests to it count in: to find one by its
// labels would take longer than to count.
type routes struct {
	names
	known few[string, *route]
}

// route has the series of one route, or of all that are beyond the limit.
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
	if label == other { // all together, and found without a lock
		operation = other
		if one, known := r.known.get(other); known {
			return one
		}
	}
	one, _ := r.known.add(strings.Clone(operation), math.MaxInt, func() *route { return &route{label: label} })
	return one
}

// maxLabels is the most labels that an instrument has.
const maxLabels = 2

// labels are the values of the labels of one series.
type labels [maxLabels]string

// series are those of an instrument, by the values of its labels. What OpenTelemetry would make again for each
// measurement is made once.
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

// valuesOf is labels from a list.
func valuesOf(list []string) (values labels) {
	copy(values[:], list)
	return values
}

// counter counts by its labels. It is read when OpenTelemetry collects: to add to one of its own counters takes several
// times as long.
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

// addAt is add for a series that has a place where it is remembered.
func (c *counter) addAt(place *atomic.Pointer[total], n int64, values ...string) {
	one := place.Load()
	if one == nil {
		one = c.get(valuesOf(values))
		place.Store(one)
	}
	one.n.Add(n)
}

// observe shows all series.
func (c *counter) observe(in metric.Int64Observable, o metric.Observer) {
	for _, one := range c.known.all() {
		o.ObserveInt64(in, one.n.Load(), one.labels)
	}
}

// histogram measures durations by its labels. What OpenTelemetry does with a duration takes several times as long in
// the midst of other work as right behind another duration: they are gathered, and handed on together.
type histogram struct {
	in metric.Float64Histogram
	series[*gathered]
}

// gathered are durations of one series that OpenTelemetry does not have yet.
type gathered struct {
	labels []metric.RecordOption
	mu     sync.Mutex
	n      int
	list   [maxGathered]time.Duration
}

// maxGathered is how many durations are gathered at most.
const maxGathered = 64

// record measures a duration. One of a sampled trace is handed on at once, with its context: it may become an example
// that leads to the trace.
func (h *histogram) record(ctx context.Context, d time.Duration, values ...string) {
	h.recordAt(ctx, h.get(valuesOf(values)), d)
}

// recordAt is record for a series that was found before.
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

// handOn gives OpenTelemetry what was gathered. The caller has the lock, so that a collection after it has all.
func (h *histogram) handOn(g *gathered) {
	for _, d := range g.list[:g.n] {
		h.in.Record(context.Background(), d.Seconds(), g.labels...)
	}
	g.n = 0
}

// collect hands on what is left.
func (h *histogram) collect() {
	for _, g := range h.known.all() {
		g.mu.Lock()
		h.handOn(g)
		g.mu.Unlock()
	}
}

// durations are the bounds of histograms, in seconds: from what a store in the next rack takes to what a client waits.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metric is one of the metrics, as Prometheus shows it.
type Metric struct {
	Name   string
	Type   string
	Labels []string
	Help   string
}

// builder makes instruments, and remembers them for the table of the documentation.
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
		c.add(0) // so that it is there before it counts anything
	}
	b.callback(func(_ context.Context, o metric.Observer) error {
		c.observe(in, o)
		return nil
	}, in)
	return c
}

// spent is a counter of nanoseconds that is shown in seconds. It costs a small part of a histogram.
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

// tally is a counter whose values are asked for.
func (b *builder) tally(name, help string, of ...string) metric.Int64ObservableCounter {
	in, err := b.meter.Int64ObservableCounter(name, metric.WithDescription(help))
	b.note(name+"_total", "counter", help, of, err)
	return in
}

// gauge is a number that is asked for.
func (b *builder) gauge(name, help string, of ...string) metric.Int64ObservableGauge {
	in, err := b.meter.Int64ObservableGauge(name, metric.WithDescription(help))
	b.note(name, "gauge", help, of, err)
	return in
}

// seconds is a gauge in seconds that is asked for.
func (b *builder) seconds(name, help string, of ...string) metric.Float64ObservableGauge {
	in, err := b.meter.Float64ObservableGauge(name, metric.WithDescription(help), metric.WithUnit("s"))
	b.note(name+"_seconds", "gauge", help, of, err)
	return in
}

// collectHistograms has histograms complete when they are read: OpenTelemetry asks all that can be asked first.
func (b *builder) collectHistograms() {
	histograms := b.histograms
	b.callback(func(context.Context, metric.Observer) error {
		for _, h := range histograms {
			h.collect()
		}
		return nil
	}, b.observable...)
}

// callback has instruments asked together.
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

// Metrics returns all metrics that a [Telemetry] can show, under the names that Prometheus shows them by.
func Metrics() []Metric {
	m, err := newMetrics(noop.Meter{}, &Config{TopScopes: 1, ScopeLabels: true})
	if err != nil {
		return nil // the meter that does nothing refuses nothing
	}
	return m.made
}
