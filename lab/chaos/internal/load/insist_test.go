package load

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// TestInsist: the answer is asked for at least twice more before it is removed, so that a front has it, and once after;
// what was not answered stays open, for those who finish it.
func TestInsist(t *testing.T) {
	t.Parallel()
	var asked, removed, since, status atomic.Int64
	status.Store(http.StatusCreated)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == node.OperatorPath:
			if removed.Add(1) == 1 && asked.Load() < 3 {
				t.Errorf("removed when it was asked for %d times", asked.Load())
			}
			w.WriteHeader(http.StatusNoContent)
			return
		case removed.Load() > 0:
			since.Add(1)
		default:
			asked.Add(1)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer front.Close()
	recorder, err := history.NewRecorder(filepath.Join(t.TempDir(), "history"))
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	l := New(Config{Seed: 1, Clients: 6, Fronts: []string{front.URL}, Recorder: recorder})
	l.Insist(t.Context(), 0)
	if removed.Load() != 1 || since.Load() < 1 || l.Open() != 0 {
		t.Errorf("removed %d times, asked for %d times since, %d open", removed.Load(), since.Load(), l.Open())
	}
	status.Store(http.StatusServiceUnavailable)
	l.Insist(t.Context(), 1)
	if removed.Load() != 1 || l.Open() != 1 {
		t.Errorf("without an answer it was removed %d times, %d open", removed.Load()-1, l.Open())
	}
}
