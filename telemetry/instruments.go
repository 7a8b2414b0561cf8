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

// maxLabels is the most labels that an instrument has.
const maxLabels = 2

// labels are the values of the labels of one series.
type labels [maxLabels]string

// series are those of an instrument, by the values of its labels. What OpenTelemetry would make anew for each
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

// observe shows all series.
func (c *counter) observe(in metric.Int64Observable, o metric.Observer) {
	for _, one := range c.known.all() {
		o.ObserveInt64(in, one.n.Load(), one.labels)
	}
}

// histogram measures durations by its labels.
type histogram struct {
	in metric.Float64Histogram
	series[[]metric.RecordOption]
}

func (h *histogram) record(ctx context.Context, d time.Duration, values ...string) {
	h.in.Record(ctx, d.Seconds(), h.get(valuesOf(values))...)
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
	with := func(set attribute.Set) []metric.RecordOption {
		return []metric.RecordOption{metric.WithAttributeSet(set)}
	}
	return &histogram{in: in, series: series[[]metric.RecordOption]{of: of, make: with}}
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

// callback has instruments asked together.
func (b *builder) callback(f metric.Callback, of ...metric.Observable) {
	if len(b.errs) > 0 {
		return
	}
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
