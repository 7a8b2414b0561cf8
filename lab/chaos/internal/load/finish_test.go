package load

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// TestFinishAsksForEachRequest: of two requests under one key, the one that has the key comes to its turn, whatever the
// seed is.
func TestFinishAsksForEachRequest(t *testing.T) {
	t.Parallel()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is cut off is not the winner
		if strings.Contains(string(body), "winner") {
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"code":"mismatch"}`)
	}))
	defer front.Close()
	recorder, err := history.NewRecorder(filepath.Join(t.TempDir(), "history"))
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	tokens := slices.Sorted(maps.Keys(node.Tokens))
	var all sync.WaitGroup
	turns := make(chan struct{}, 50) // the time of each is its own
	for seed := range uint64(1000) { // that all who finish draw the mistake first is rare
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			l := New(Config{Seed: seed, Fronts: []string{front.URL}, Recorder: recorder})
			l.open = []*operation{{kind: "entry", path: "/entries", token: tokens[0], key: "k", requests: []request{
				{reference: "a", body: `"mistake"`}, {reference: "b", body: `"winner"`},
			}}}
			ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
			defer cancel()
			if left := l.Finish(ctx); left > 0 {
				t.Errorf("with seed %d the operation was not answered", seed)
			}
		})
	}
	all.Wait()
}
