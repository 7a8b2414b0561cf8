package telemetry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// maxNames is how many names from the application, such as those of routes and topics, have series of their own.
const maxNames = 500

// other is the name of all that is beyond a limit.
const other = "other"

// names bounds how many names become labels: they are the application's, and one that puts an id into a name must not
// take the monitoring down.
type names struct {
	mu    sync.RWMutex
	known map[string]struct{}
}

func newNames() *names { return &names{known: make(map[string]struct{})} }

// name is the label for a name.
func (n *names) name(name string) string {
	n.mu.RLock()
	_, known := n.known[name]
	n.mu.RUnlock()
	if known {
		return name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.known[name]; !known {
		if len(n.known) >= maxNames {
			return other
		}
		n.known[name] = struct{}{}
	}
	return name
}

// maxLabels is the most labels that an instrument has.
const maxLabels = 2

// labels are the values of the labels of one series.
type labels [maxLabels]string

// series keeps the options of each series, which OpenTelemetry would make anew for each measurement otherwise.
type series[Option any] struct {
	of   []string // the names of the labels
	make func(attribute.Set) Option

	mu    sync.RWMutex
	known map[labels][]Option
}

func newSeries[Option any](of []string, with func(attribute.Set) Option) series[Option] {
	return series[Option]{of: of, make: with, known: make(map[labels][]Option)}
}

// options are those of the series with these values.
func (s *series[Option]) options(values labels) []Option {
	s.mu.RLock()
	options, known := s.known[values]
	s.mu.RUnlock()
	if known {
		return options
	}
	attributes := make([]attribute.KeyValue, len(s.of))
	for i, name := range s.of {
		attributes[i] = attribute.String(name, values[i])
	}
	options = []Option{s.make(attribute.NewSet(attributes...))}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[values] = options
	return options
}

// valuesOf is labels from a list.
func valuesOf(list []string) (values labels) {
	copy(values[:], list)
	return values
}

// counter counts by its labels.
type counter struct {
	in metric.Int64Counter
	series[metric.AddOption]
}

func (c *counter) add(ctx context.Context, n int64, values ...string) {
	c.in.Add(ctx, n, c.options(valuesOf(values))...)
}

// histogram measures durations by its labels.
type histogram struct {
	in metric.Float64Histogram
	series[metric.RecordOption]
}

func (h *histogram) record(ctx context.Context, d time.Duration, values ...string) {
	h.in.Record(ctx, d.Seconds(), h.options(valuesOf(values))...)
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
	in, err := b.meter.Int64Counter(name, metric.WithDescription(help))
	b.note(name+"_total", "counter", help, of, err)
	with := func(set attribute.Set) metric.AddOption { return metric.WithAttributeSet(set) }
	c := &counter{in: in, series: newSeries(of, with)}
	if len(of) == 0 && err == nil {
		c.add(context.Background(), 0) // so that it is there before it counts anything
	}
	return c
}

func (b *builder) histogram(name, help string, of ...string) *histogram {
	in, err := b.meter.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(durations...))
	b.note(name+"_seconds", "histogram", help, of, err)
	with := func(set attribute.Set) metric.RecordOption { return metric.WithAttributeSet(set) }
	return &histogram{in: in, series: newSeries(of, with)}
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
