package doctor_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
)

// healthyMetrics are those of a service whose leases and retention fit. Each test adds what does not.
const healthyMetrics = `# TYPE onceward_reservations_total counter
onceward_reservations_total{route="POST /payments",decision="created"} 1200
onceward_reservations_total{route="POST /payments",decision="replay"} 40
# TYPE onceward_leases_lost_total counter
onceward_leases_lost_total{route="POST /payments"} %d
# TYPE onceward_fenced_writes_total counter
onceward_fenced_writes_total{route="POST /payments"} 0
# TYPE onceward_store_call_duration_seconds histogram
onceward_store_call_duration_seconds_bucket{call="reserve",outcome="ok",le="1"} 1190
onceward_store_call_duration_seconds_bucket{call="reserve",outcome="ok",le="60"} 1200
onceward_store_call_duration_seconds_bucket{call="reserve",outcome="ok",le="+Inf"} 1200
onceward_store_call_duration_seconds_sum{call="reserve",outcome="ok"} 200
onceward_store_call_duration_seconds_count{call="reserve",outcome="ok"} 1200
onceward_store_call_duration_seconds_bucket{call="extend",outcome="ok",le="1"} 500
onceward_store_call_duration_seconds_bucket{call="extend",outcome="ok",le="10"} %d
onceward_store_call_duration_seconds_bucket{call="extend",outcome="ok",le="+Inf"} 500
onceward_store_call_duration_seconds_sum{call="extend",outcome="ok"} 60
onceward_store_call_duration_seconds_count{call="extend",outcome="ok"} 500
# TYPE onceward_oldest_replay_age_seconds gauge
onceward_oldest_replay_age_seconds %d
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0"} 0.0001
go_gc_duration_seconds{quantile="1"} %g
go_gc_duration_seconds_sum 1
go_gc_duration_seconds_count 100
`

// served is a service that shows these metrics.
func served(t *testing.T, text string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(text)) // the client has left
	}))
	t.Cleanup(s.Close)
	return s.URL + "/metrics"
}

func TestMetrics(t *testing.T) {
	file := newFile(t)
	wantHealthy(t, examine(t, file, doctor.Config{Metrics: served(t, fmt.Sprintf(healthyMetrics, 0, 500, 3600, 0.002))}))
	for name, test := range map[string]struct {
		text string
		want lie
	}{
		"leases that were lost": {
			fmt.Sprintf(healthyMetrics, 3, 500, 3600, 0.002), lie{"metrics/leases", doctor.Weak, "lost 3 leases", nil},
		},
		"a store that is slow to extend": {
			fmt.Sprintf(healthyMetrics, 0, 499, 3600, 0.002), lie{
				"metrics/pauses", doctor.Weak,
				"extend a lease took at least 10s", nil,
			},
		},
		"pauses longer than the lease": {
			fmt.Sprintf(healthyMetrics, 0, 500, 3600, 12.5), lie{
				"metrics/pauses", doctor.Weak,
				"stopped the process for at least 12.5s", nil,
			},
		},
		"heartbeats that are late": {
			fmt.Sprintf(healthyMetrics, 0, 500, 3600, 0.002) + `# TYPE onceward_heartbeat_delay_seconds histogram
onceward_heartbeat_delay_seconds_bucket{le="15"} 3
onceward_heartbeat_delay_seconds_bucket{le="+Inf"} 4
onceward_heartbeat_delay_seconds_sum 20
onceward_heartbeat_delay_seconds_count 4
`, lie{"metrics/pauses", doctor.Weak, "a heartbeat was late by at least 15s", nil},
		},
		"retries as old as the retention": {
			fmt.Sprintf(healthyMetrics, 0, 500, 72000, 0.002), lie{"metrics/retention", doctor.Weak, "20h0m0s old", nil},
		},
		"retries after the retention": {
			fmt.Sprintf(healthyMetrics, 0, 500, 3600, 0.002) +
				"onceward_reservations_total{route=\"POST /payments\",decision=\"recreated\"} 2\n",
			lie{"metrics/retention", doctor.Weak, "2 keys were used again", nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantFound(t, examine(t, file, doctor.Config{Metrics: served(t, test.text)}), test.want)
		})
	}
	// With a lease and a retention that fit, the same is healthy.
	wantHealthy(t, examine(t, file, doctor.Config{
		Metrics: served(t, fmt.Sprintf(healthyMetrics, 0, 499, 72000, 12.5)), Lease: time.Minute, Retention: 48 * time.Hour,
	}))
}

// TestOtherMetrics: what is no service of ours is not taken for a healthy one.
func TestOtherMetrics(t *testing.T) {
	file := newFile(t)
	report := examine(t, file, doctor.Config{Metrics: served(t, "# TYPE up gauge\nup 1\n")})
	if n := len(report.NotChecked()); n != 3 {
		t.Errorf("%d checks were not made:\n%s", n, text(report))
	}
	for url, says := range map[string]string{
		served(t, "<html>"):                     "text format of Prometheus",
		"http://ann:secret@127.0.0.1:1/metrics": "connection refused",
		strings.Replace(served(t, "<html>"), "http://", "http://ann:secret@", 1): "text format of Prometheus",
	} {
		report := examine(t, file, doctor.Config{Metrics: url})
		wantFound(t, report, lie{"metrics/read", doctor.Weak, says, nil})
		if n := len(report.NotChecked()); n != 3 || len(report.Results) < 10 {
			t.Errorf("%d checks were not made:\n%s", n, text(report))
		}
		if strings.Contains(text(report), "secret") {
			t.Errorf("the report has a password:\n%s", text(report))
		}
	}
	_, err := doctor.Examine(t.Context(), file, doctor.Config{Metrics: "http://ann:secret%zz@shop/metrics"})
	if !errors.Is(err, doctor.ErrUsage) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a URL that cannot be read: %v", err)
	}
}
