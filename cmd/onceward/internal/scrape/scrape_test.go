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

func TestRead(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			_, _ = w.Write([]byte(page))
		case "/damaged":
			_, _ = w.Write([]byte("m{a=\"b"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	families, err := Read(t.Context(), server.URL+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	got := Sum(families["onceward_reservations_total"], "decision")
	if want := map[string]float64{"created": 7, "replay": 15}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Sum(families["absent"], "decision"); len(got) != 0 {
		t.Errorf("a metric that is not there: %v", got)
	}
	for path, want := range map[string]string{"/": "404", "/damaged": "text format"} {
		if _, err := Read(t.Context(), server.URL+path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want one that says %q", path, err, want)
		}
	}
}
