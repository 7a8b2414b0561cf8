package sqlite_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward"
)

// TestTrailersOfATransaction: they reach the first client behind an answer that is committed, and are not replayed
// (A9).
func TestTrailersOfATransaction(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/1.1": (*httptest.Server).Start,
		"HTTP/2": func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.StartTLS()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := openBusiness(t, newFile(t))
			server := httptest.NewUnstartedServer(newGuard(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				if err := insert(r.Context(), "payment"); err != nil {
					t.Error(err)
				}
				io.WriteString(w, strings.Repeat("paid ", 1000))
				w.Header().Set("X-Sum", "1")
				w.Header().Set(http.TrailerPrefix+"X-Rows", "2")
			}, onceward.Transactional()))
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			start(server)
			t.Cleanup(server.Close)
			for i := range 2 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", strings.NewReader(`{}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Idempotency-Key", "key")
				res, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || len(body) != 5000 || !strings.HasPrefix(res.Proto, name) {
					t.Errorf("A9: answer %d came by %s with %d bytes: %v", i+1, res.Proto, len(body), err)
				}
				sum, rows := res.Trailer.Get("X-Sum"), res.Trailer.Get("X-Rows")
				if first := sum == "1" && rows == "2"; first != (i == 0) || i == 1 && len(res.Trailer) != 0 {
					t.Errorf("A9: answer %d has the trailers %v", i+1, res.Trailer)
				}
			}
			wantRows(t, store, "payment", 1, "I1")
		})
	}
}
