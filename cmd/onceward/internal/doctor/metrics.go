package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/onceward/onceward/cmd/onceward/internal/scrape"
)

var metricsTrials = []trial[*metrics]{
	{Check{
		"metrics/read", "The service's metrics can be read.",
		"Without them, lost leases, long pauses and retries after the retention stay unseen.",
		"S5, I1, I13 [1, 3, 22]",
	}, tryRead},
	{Check{
		"metrics/leases", "No owner lost its lease, and no write was refused, since the service started.",
		"Such an owner's outcome is unknown until reconciled. Two attempts may have worked at once.",
		"S5, S6, I13 [1, 3]",
	}, tryLeases},
	{Check{
		"metrics/pauses",
		"Heartbeat delays and pauses (garbage collection, scheduling, store calls) are well below a third of " +
			"`--lease`.",
		"A pause that outlasts the lease loses it, although the handler is alive.", "S5 [1, 3, 46]",
	}, tryPauses},
	{Check{
		"metrics/retention", "Clients do not retry when their records have expired, or are about to (`--retention`).",
		"A retry after its record has gone is executed again.", "I1, S2, L4 [22]",
	}, tryRetention},
}

// These are the names of the metrics, as docs/telemetry.md and Go's collectors define them.
const (
	metricReservations   = "onceward_reservations_total"
	metricLeasesLost     = "onceward_leases_lost_total"
	metricFenced         = "onceward_fenced_writes_total"
	metricSwept          = "onceward_zombies_swept_total"
	metricStoreCalls     = "onceward_store_call_duration_seconds"
	metricHeartbeatDelay = "onceward_heartbeat_delay_seconds"
	metricReplayAge      = "onceward_oldest_replay_age_seconds"
	metricCollections    = "go_gc_duration_seconds"
	metricScheduling     = "go_sched_latencies_seconds"
)

// metrics is the metrics of the service to examine.
type metrics struct {
	url              string
	families         map[string]*dto.MetricFamily // nil if they could not be read
	lease, retention time.Duration
}

// metricsLimit limits the time in which the service must return its metrics.
const metricsLimit = 10 * time.Second

// examineMetrics makes the checks of a running service. If its metrics cannot be read, this is the only finding.
func examineMetrics(ctx context.Context, c Config) []Result {
	m := &metrics{
		url: c.Metrics, lease: cmp.Or(c.Lease, 30*time.Second), retention: cmp.Or(c.Retention, 24*time.Hour),
	}
	results := examine(ctx, c.Timeout, m, metricsTrials[:1])
	if m.families != nil {
		return append(results, examine(ctx, c.Timeout, m, metricsTrials[1:])...)
	}
	for _, t := range metricsTrials[1:] {
		results = append(results, Result{
			Check: t.Name, Status: StatusNotChecked, Seen: "the metrics could not be read", about: t.Check,
		})
	}
	return results
}

func tryRead(ctx context.Context, m *metrics, r *Result) (err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsLimit)
	defer cancel()
	if m.families, err = scrape.Read(ctx, m.url); err != nil {
		m.families = nil
		r.find(Weak, "see whether the service runs, and whether --metrics is where it shows its metrics",
			"the metrics of the service could not be read: %v", err)
		return nil
	}
	r.saw("%d metrics", len(m.families))
	return nil
}

// errNoMetrics is the reason why nothing is known about a service.
const errNoMetrics = errNotTried("the service shows no metrics of Onceward there: see docs/telemetry.md")

// total returns the sum of a counter over all series with these labels, as name=value.
func (m *metrics) total(name string, labels ...string) (sum float64, shown bool) {
	family, shown := m.families[name]
	for _, each := range family.GetMetric() {
		if hasLabels(each, labels) {
			sum += each.GetCounter().GetValue() + each.GetUntyped().GetValue()
		}
	}
	return sum, shown
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for _, label := range labels {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return strings.EqualFold(l.GetName()+"="+l.GetValue(), label)
		}) {
			return false
		}
	}
	return true
}

// longest returns a lower bound of the longest observation: the lower end of its bucket, the largest
// quantile, or the value of a gauge. The upper end of the bucket may never have been reached.
func (m *metrics) longest(name string, labels ...string) (at time.Duration, shown bool) {
	for _, each := range m.families[name].GetMetric() {
		if !hasLabels(each, labels) {
			continue
		}
		shown = true
		seconds := 0.0
		for _, q := range each.GetSummary().GetQuantile() {
			if !math.IsNaN(q.GetValue()) {
				seconds = max(seconds, q.GetValue())
			}
		}
		seconds = max(seconds, lowerEnd(each.GetHistogram()), each.GetGauge().GetValue())
		at = max(at, time.Duration(seconds*float64(time.Second)))
	}
	return at, shown
}

// lowerEnd returns the lower end of the highest bucket of a histogram with an observation in it.
func lowerEnd(h *dto.Histogram) (seconds float64) {
	before, below := uint64(0), 0.0
	for _, bucket := range h.GetBucket() {
		if bucket.GetCumulativeCount() > before {
			seconds = below
		}
		before, below = bucket.GetCumulativeCount(), max(bucket.GetUpperBound(), 0)
	}
	if h.GetSampleCount() > before {
		seconds = below // above the last bucket with an end
	}
	return seconds
}

func tryLeases(_ context.Context, m *metrics, r *Result) error {
	lost, shown := m.total(metricLeasesLost)
	fenced, also := m.total(metricFenced)
	if _, reserving := m.total(metricReservations); !shown && !also && !reserving {
		return errNoMetrics
	}
	swept, _ := m.total(metricSwept)
	r.saw("%.0f leases lost, %.0f writes refused, %.0f records without an owner", lost, fenced, swept)
	if lost > 0 {
		r.find(Weak, "give the routes a longer onceward.Lease, or find what pauses the process or the store; settle what "+
			"is unknown",
			"owners have lost %.0f leases, of which the shortest are of %s", lost, m.lease)
	}
	if fenced > 0 {
		r.find(Weak, "look at the late completions of these records (docs/unknown-outcomes.md), and give the routes a "+
			"longer lease",
			"%.0f writes were refused because another attempt had taken over", fenced)
	}
	return nil
}

func tryPauses(_ context.Context, m *metrics, r *Result) error {
	most := m.lease / 3 // heartbeats are sent at a third of the lease: another third is left to extend it
	any := false
	for _, source := range []struct {
		what, name string
		labels     []string
		do         string
	}{
		{"a heartbeat was late by", metricHeartbeatDelay, nil, "give the process more processor time, or the routes a " +
			"longer lease"},
		{
			"a call to extend a lease took", metricStoreCalls,
			[]string{"call=extend"},
			"look at the store's latency, or give the routes a longer lease",
		},
		{
			"a garbage collection stopped the process for", metricCollections, nil,
			"give the process more memory, or the routes a longer lease",
		},
		{
			"a goroutine waited to be run for", metricScheduling, nil,
			"give the process more processor time, or the routes a longer lease",
		},
	} {
		longest, shown := m.longest(source.name, source.labels...)
		if !shown {
			continue
		}
		any = true
		r.saw("%s at least %s", source.what, longest)
		if longest >= most {
			r.find(Weak, source.do, "%s at least %s, and the lease is %s", source.what, longest, m.lease)
		}
	}
	if !any {
		return errNotTried(fmt.Sprintf("the service shows nothing of pauses yet: %s, %s of the call extend, %s, %s",
			metricHeartbeatDelay, metricStoreCalls, metricCollections, metricScheduling))
	}
	return nil
}

// lateReplay is the part of the retention after which a retry counts as late.
const lateReplay = 0.8

func tryRetention(_ context.Context, m *metrics, r *Result) error {
	recreated, shown := m.total(metricReservations, "decision=recreated")
	if !shown {
		return errNoMetrics
	}
	replays, _ := m.total(metricReservations, "decision=replay")
	r.saw("%.0f replays, %.0f keys used again after their record had expired", replays, recreated)
	if recreated > 0 {
		r.find(Weak, "keep records for longer than clients retry (onceward.Retain), and let clients send "+
			"Idempotency-First-Sent",
			"%.0f keys were used again after their record had expired, and were executed again", recreated)
	}
	oldest, shown := m.longest(metricReplayAge)
	if !shown {
		return errors.New("how old replays are is not shown (" + metricReplayAge + ")")
	}
	r.saw("the oldest answer that was replayed was %s old", oldest)
	if float64(oldest) >= lateReplay*float64(m.retention) {
		r.find(Weak, "keep records for longer than clients retry (onceward.Retain)",
			"an answer was replayed that was %s old, and the retention is %s", oldest, m.retention)
	}
	return nil
}
