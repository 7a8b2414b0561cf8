package sealed_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestStatusWithoutTheKey: what became of an operation is told also if its content cannot be opened, and as before if it
// has expired. Of the content nothing is shown.
func TestStatusWithoutTheKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(t *testing.T, s store.Store)
		want onceward.Status
	}{
		"completed": {func(t *testing.T, s store.Store) { completed(t, s) }, onceward.Status{State: "completed"}},
		"in progress": {func(t *testing.T, s store.Store) {
			must(t, s.Checkpoint(t.Context(), reserve(t, s), store.Checkpoint{Point: "charged", Data: []byte("carried")}))
		}, onceward.Status{State: "in_progress"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &stopped{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			inside := memory.New(memory.WithClock(clock.read))
			c.make(t, open(t, inside, ring(1)))
			s := open(t, inside, ring(2))
			rec, err := s.Get(t.Context(), testID)
			if !errors.Is(err, store.ErrUnreadable) || rec.ID != testID || len(rec.Data)+len(rec.Response.Body) > 0 ||
				len(rec.Response.Header) > 0 {
				t.Errorf("without the key: %+v, %v", rec, err)
			}
			guard, err := onceward.New(s, onceward.Config{
				Scope:  func(*http.Request) (string, error) { return "acme", nil },
				Secret: []byte(strings.Repeat("s", 32)), Logger: slog.New(slog.DiscardHandler),
			})
			must(t, err)
			ask := func() *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				guard.StatusHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/operations/order-1", nil))
				return w
			}
			w := ask()
			var got onceward.Status
			must(t, json.Unmarshal(w.Body.Bytes(), &got))
			if w.Code != http.StatusOK || got.State != c.want.State || got.StatusCode != c.want.StatusCode ||
				got.Location != "" || got.CreatedAt == nil {
				t.Errorf("section 6: %d %s, want %+v", w.Code, w.Body, c.want)
			}
			clock.advance(1000 * time.Hour)
			if w := ask(); name == "completed" && w.Code != http.StatusNotFound {
				t.Errorf("section 4: past its expiry it is %d %s", w.Code, w.Body)
			}
		})
	}
}

// TestTamperedStatus: the status code is sealed along with the answer. One that was changed is not told.
func TestTamperedStatus(t *testing.T) {
	t.Parallel()
	inside := memory.New()
	completed(t, open(t, inside, ring(1)))
	s := open(t, tampered{wrap.New(inside, nil)}, ring(1))
	guard, err := onceward.New(s, onceward.Config{
		Scope:  func(*http.Request) (string, error) { return "acme", nil },
		Secret: []byte(strings.Repeat("s", 32)), Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	w := httptest.NewRecorder()
	guard.StatusHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/operations/order-1", nil))
	if !strings.Contains(w.Body.String(), `"completed"`) || strings.Contains(w.Body.String(), "status_code") {
		t.Errorf("L3: %d %s", w.Code, w.Body)
	}
}

// tampered is a store in which the status code of each answer was changed.
type tampered struct{ *wrap.Store }

func (s tampered) Get(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if rec.Response.Status != 0 {
		rec.Response.Status = http.StatusPaymentRequired
	}
	return rec, err
}
