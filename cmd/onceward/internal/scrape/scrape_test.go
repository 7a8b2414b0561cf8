package scrape

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const page = `# HELP onceward_reservations_total Reservations.
# TYPE onceward_reservations_total counter
onceward_reservations_total{decision="created",operation="POST /a {\"x\", }"} 3
onceward_reservations_total{operation="POST /b", decision="created"} 4 1763366400000
onceward_reservations_total{decision="replay",operation="a\nb"} 1.5e1
onceward_reservations_total_more{decision="created"} 100
other 7
`

func TestSum(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(server.Close)
	got, err := Sum(t.Context(), server.URL+"/metrics", "onceward_reservations_total", "decision")
	if want := map[string]float64{"created": 7, "replay": 15}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := Sum(t.Context(), server.URL, "x", "y"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a page that is not there: %v", err)
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`m{a="b`, `m{a="b"} x`, `m{a`, `m{a=b} 1`} {
		if got, err := sum(strings.NewReader(text), "m", "a"); err == nil {
			t.Errorf("%s gives %v", text, got)
		}
	}
}
