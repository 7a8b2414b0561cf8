package onceward_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unsafe"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestWithoutBody: the first caller gets the answer, the store and all replays a reference in place of its body (L3).
func TestWithoutBody(t *testing.T) {
	t.Parallel()
	const secret = "4242 4242 4242 4242"
	handler := func(reference string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Location", "/payments/7")
			h.Set("Content-Type", "text/html")
			h.Set("Etag", `"abc"`)
			h.Set("Content-Length", "25")
			h.Set("Content-Location", "/cards/7")
			h.Set("Signature", "sig=:AA==:")
			h.Set("X-Kept", "yes")
			if reference != "" {
				onceward.FromContext(r.Context()).SetReference(reference)
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte("card: " + secret))
		}
	}
	modes := map[string]onceward.Option{"reserved": reserved, "transactional": onceward.Transactional()}
	for mode, option := range modes {
		for want, reference := range map[string]string{`{"reference":"/payments/7"}`: "", `{"reference":"pay_7"}`: "pay_7"} {
			t.Run(mode+" "+reference, func(t *testing.T) {
				t.Parallel()
				inside := &scriptedTransactor{Store: memory.New(), reruns: 1}
				run := &counted{then: handler(reference)}
				protected := newGuard(t, inside).Handler(run, option, onceward.WithoutBody(), onceward.OperationName("pay"))
				send := func() *httptest.ResponseRecorder {
					r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
					r.Header.Set("Authorization", "Bearer alice")
					r.Header.Set("Idempotency-Key", "key")
					w := httptest.NewRecorder()
					protected.ServeHTTP(w, r)
					return w
				}
				first, ran := send(), run.runs.Load()
				if first.Code != http.StatusCreated || first.Body.String() != "card: "+secret || first.Header().Get("Etag") == "" {
					t.Errorf("the first caller got %d %q %v", first.Code, first.Body, first.Header())
				}
				rec, err := inside.Get(t.Context(), aliceID("key"))
				if err != nil || strings.Contains(string(rec.AppendBinary(nil)), secret) {
					t.Errorf("L3: the body is stored: %v", err)
				}
				again := send()
				h := again.Header()
				if again.Code != http.StatusCreated || again.Body.String() != want || h.Get("X-Kept") != "yes" ||
					h.Get("Location") != "/payments/7" || h.Get("Etag") != "" || h.Get("Content-Type") != "application/json" ||
					h.Get("Content-Location") != "" || h.Get("Signature") != "" ||
					h.Get("Idempotent-Replayed") != "true" || run.runs.Load() != ran {
					t.Errorf("L3: the replay is %d %q %v", again.Code, again.Body, h)
				}
			})
		}
	}
}

// TestWithoutBodyThatIsEmpty: an answer without a body is stored as it is.
func TestWithoutBodyThatIsEmpty(t *testing.T) {
	t.Parallel()
	s := memory.New()
	guard := newGuard(t, s, func(c *onceward.Config) { c.Scope = nil })
	none := func(context.Context) ([]byte, error) { return nil, nil }
	for range 2 {
		got, err := guard.Do(t.Context(), someCall, none, reserved, onceward.WithoutBody())
		if err != nil || len(got.Value) != 0 {
			t.Errorf("L3: %q, %v", got.Value, err)
		}
	}
}

// TestWithoutBodyOfAPart: a reference is whole, also in the place of a part.
func TestWithoutBodyOfAPart(t *testing.T) {
	t.Parallel()
	run := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-3/8")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte("4242"))
	}}
	h := newGuard(t, memory.New()).Handler(run, reserved, onceward.WithoutBody(), onceward.OperationName("pay"))
	post(h, "key", "{}").want(t, "L3: the first", http.StatusPartialContent, false)
	post(h, "key", "{}").want(t, "L3: the replay", http.StatusOK, true)
}

// TestDoWithoutBody: of a function the value is replaced in the store, and so for all who repeat the call.
func TestDoWithoutBody(t *testing.T) {
	t.Parallel()
	s := memory.New()
	guard := newGuard(t, s, func(c *onceward.Config) { c.Scope = nil })
	w := &work{then: func(_ context.Context, op *onceward.Operation) ([]byte, error) {
		id := []byte("pay_7")
		op.SetReference(unsafe.String(&id[0], len(id))) // as from memory that a framework uses again
		copy(id, "pay_8")
		return []byte("4242"), nil
	}}
	first, err := guard.Do(t.Context(), someCall, w.do, reserved, onceward.WithoutBody())
	if err != nil || string(first.Value) != "4242" {
		t.Errorf("the first caller got %q, %v", first.Value, err)
	}
	again, err := guard.Do(t.Context(), someCall, w.do, reserved, onceward.WithoutBody())
	if err != nil || string(again.Value) != string(onceward.ReferenceBody("pay_7")) || !again.Replayed {
		t.Errorf("L3: the replay is %q, %v", again.Value, err)
	}
	rec, err := s.Get(t.Context(), store.ID{Scope: someCall.Scope, Key: someCall.Key})
	if err != nil || strings.Contains(string(rec.AppendBinary(nil)), "4242") {
		t.Errorf("L3: the value is stored: %v", err)
	}
	w.wantRuns(t, "L3", 1)
}
