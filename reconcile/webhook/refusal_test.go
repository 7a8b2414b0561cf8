package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

// untouched is a config where nothing may happen after the signature.
func untouched(t *testing.T, told *journal) setup {
	cfg := config(&keeper{before: func(context.Context) error {
		t.Error("something was stored")
		return nil
	}}, told)
	cfg.Parse = func(http.Header, []byte) (webhook.Event, error) {
		t.Error("something was parsed")
		return webhook.Event{}, errors.New("not to be parsed")
	}
	return cfg
}

// TestForgedAndStaleLookAlike: refused before anything is parsed, and the answer does not contain the reason.
func TestForgedAndStaleLookAlike(t *testing.T) {
	t.Parallel()
	unsigned := signedRequest(body)
	unsigned.Header.Del("Provider-Signature")
	forged := signedRequest(body)
	forged.Body = io.NopCloser(strings.NewReader(strings.Replace(body, "ch_1", "ch_2", 1)))
	stale := signedRequest(body)
	timestamped.Sign(stale.Header, []byte(body), now.Add(-time.Hour))
	future := signedRequest(body)
	timestamped.Sign(future.Header, []byte(body), now.Add(time.Hour))

	answers := map[string]bool{}
	for _, r := range []*http.Request{unsigned, forged, stale, future} {
		told := &journal{}
		w := deliver(t, untouched(t, told), r)
		expectStatus(t, w, http.StatusUnauthorized)
		told.expect(t, "provider: refused")
		problem := expectProblem(t, w, "unauthenticated")
		answers[strings.ReplaceAll(w.Body.String(), problem.Instance, "")+fmt.Sprint(w.Header())] = true
		if got := w.Header()["Www-Authenticate"]; !slices.Equal(got, []string{"Webhook-Signature"}) {
			t.Errorf("A8: WWW-Authenticate %q", got)
		}
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
}

// expectProblem checks that the answer is a whole problem document (A1), and returns it.
func expectProblem(t *testing.T, w *httptest.ResponseRecorder, code string) onceward.Problem {
	t.Helper()
	var problem onceward.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Code != code || problem.Status != w.Code ||
		problem.Type != onceward.DefaultProblemBase+code || problem.Title == "" || problem.Detail == "" ||
		!strings.HasPrefix(problem.Instance, "urn:uuid:") {
		t.Errorf("A1: %d %s, %v; want all of %s", w.Code, w.Body, err, code)
	}
	want := map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store",
		"Link": "<" + problem.Type + `>; rel="describedby"; type="text/html"`,
	}
	for name, value := range want {
		if got := w.Header().Get(name); got != value {
			t.Errorf("A1: %s is %q, want %q", name, got, value)
		}
	}
	return problem
}

// TestEveryRefusalIsAWholeProblem: also one of the sender's mistakes, or of ours, with a name that the log and the
// observer know.
func TestEveryRefusalIsAWholeProblem(t *testing.T) {
	t.Parallel()
	cut := signedRequest(body)
	cut.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	away := func(context.Context) error { return errors.New("the store is away") }
	get := signedRequest(body)
	get.Method = http.MethodGet
	page := must(os.ReadFile("../../docs/problems.md"))
	for code, test := range map[string]struct {
		request *http.Request
		keeper  *keeper
		status  int
		retry   bool
	}{
		"method-not-allowed": {get, &keeper{}, http.StatusMethodNotAllowed, false},
		"body-too-large":     {signedRequest(strings.Repeat(" ", 1<<20+1)), &keeper{}, http.StatusRequestEntityTooLarge, false},
		"body-incomplete":    {cut, &keeper{}, http.StatusBadRequest, true},
		"unauthenticated":    {httptest.NewRequest(http.MethodPost, "/", nil), &keeper{}, http.StatusUnauthorized, false},
		"invalid-request":    {signedRequest(`{}`), &keeper{}, http.StatusBadRequest, false},
		"store-unavailable":  {signedRequest(body), &keeper{before: away}, http.StatusServiceUnavailable, true},
		"event-failed":       {signedRequest(`{"kind":"panic"}`), &keeper{}, http.StatusInternalServerError, true},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			var told webhook.ReceivedEvent
			cfg := config(test.keeper, &journal{})
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			cfg.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
				told = e.(webhook.ReceivedEvent)
			})
			w := deliver(t, cfg, test.request)
			expectStatus(t, w, test.status)
			problem := expectProblem(t, w, code)
			if problem.Retryable != test.retry {
				t.Errorf("A1: retryable is %t", problem.Retryable)
			}
			if !strings.Contains(log.String(), problem.Instance) || told.Instance != problem.Instance && test.request != get {
				t.Errorf("A1: %s is not what the log and the observer were told: %s, %+v", problem.Instance, log.String(), told)
			}
			if !bytes.Contains(page, []byte("\n### "+code+"\n")) {
				t.Errorf("A1: docs/problems.md has no heading for %s", code)
			}
		})
	}
}

// TestProblemBase: the types of a service that documents them itself.
func TestProblemBase(t *testing.T) {
	t.Parallel()
	cfg := config(&keeper{}, &journal{})
	cfg.ProblemBase = "https://api.example.com/problems/"
	w := deliver(t, cfg, signedRequest(`{}`))
	if link := w.Header().Get("Link"); !strings.HasPrefix(link, "<https://api.example.com/problems/invalid-request>") {
		t.Errorf("A1: the link is %q", link)
	}
}

// TestObserverLearnsWhy: the event contains what the answer does not.
func TestObserverLearnsWhy(t *testing.T) {
	t.Parallel()
	cfg := config(&keeper{}, &journal{})
	var got error
	cfg.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
		got = e.(webhook.ReceivedEvent).Err
	})
	cfg.Now = func() time.Time { return now.Add(time.Hour) }
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusUnauthorized)
	if !errors.Is(got, webhook.ErrStale) {
		t.Error(got)
	}
}

// TestSchemeOfOnesOwn: any error refuses, not only the errors of this package.
func TestSchemeOfOnesOwn(t *testing.T) {
	t.Parallel()
	told := &journal{}
	cfg := untouched(t, told)
	cfg.Scheme = schemeFunc(func() error { return errors.New("no") })
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusUnauthorized)
	cfg.Scheme = schemeFunc(func() error { panic("the fault of the scheme") })
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusInternalServerError)
	told.expect(t, "provider: refused", "provider: failed")
}

type schemeFunc func() error

func (f schemeFunc) Verify(http.Header, []byte, time.Time) error { return f() }

func TestOnlyPostIsTaken(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete,
		http.MethodOptions,
	} {
		told := &journal{}
		r := signedRequest(body)
		r.Method = method
		w := deliver(t, untouched(t, told), r)
		expectStatus(t, w, http.StatusMethodNotAllowed)
		if w.Header().Get("Allow") != http.MethodPost {
			t.Errorf("%s: %v", method, w.Header())
		}
		told.expect(t)
	}
}

func TestBodyThatIsTooLarge(t *testing.T) {
	t.Parallel()
	told := &journal{}
	cfg := untouched(t, told)
	cfg.MaxBody = int64(len(body)) - 1
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusRequestEntityTooLarge)
	told.expect(t, "provider: refused")
	cfg.MaxBody = 0
	expectStatus(t, deliver(t, cfg, signedRequest(strings.Repeat(" ", 1<<20+1))), http.StatusRequestEntityTooLarge)
	told.expect(t, "provider: refused")

	cfg = config(&keeper{}, told)
	cfg.MaxBody = int64(len(body))
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	told.expect(t, "provider: kept", "apply evt_1")
}

func TestBodyThatIsCutOff(t *testing.T) {
	t.Parallel()
	told := &journal{}
	r := signedRequest(body)
	// All of the signed bytes are there, and yet the sender had not said that this is the end.
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(body), iotest.ErrReader(io.ErrUnexpectedEOF)))
	expectStatus(t, deliver(t, untouched(t, told), r), http.StatusBadRequest)
	told.expect(t, "provider: refused")
}

func TestEventThatCannotBeIdentified(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "no JSON", `{}`, `{"id":"evt_1"}`, `{"object":"ch_1"}`} {
		store, told := &keeper{}, &journal{}
		w := deliver(t, config(store, told), signedRequest(body))
		expectStatus(t, w, http.StatusBadRequest)
		told.expect(t, "provider: refused")
		if ids := store.ids(); len(ids) != 0 {
			t.Errorf("%q: kept %q", body, ids)
		}
	}
}

// TestSenderLeavesDuringTheStoring: the connection is gone, and the server knows, before the external event is kept.
func TestSenderLeavesDuringTheStoring(t *testing.T) {
	t.Parallel()
	gone, stored, applied := make(chan (<-chan struct{}), 1), make(chan error, 1), make(chan error, 1)
	hangUp := make(chan struct{})
	s := &keeper{before: func(ctx context.Context) error {
		close(hangUp)
		<-<-gone
		stored <- ctx.Err()
		return ctx.Err()
	}}
	cfg := config(s, &journal{})
	cfg.Apply = func(ctx context.Context, _ store.ExternalEvent) error {
		applied <- ctx.Err()
		return nil
	}
	receiver := must(cfg.receiver())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone <- r.Context().Done()
		receiver.ServeHTTP(w, r)
	}))
	defer server.Close()

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hangUp
		cancel()
	}()
	r := must(http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body)))
	timestamped.Sign(r.Header, []byte(body), now)
	if answer, err := server.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Fatal(answer, err)
	}
	if err := <-stored; err != nil {
		t.Fatal("the storing was cancelled:", err)
	}
	if err := <-applied; err != nil {
		t.Error("the applying was cancelled:", err)
	}
}

// TestTimeouts: neither a store nor an Apply that hangs holds the sender for longer than it may.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		told, start := &journal{}, time.Now()
		expectStatus(t, deliver(t, config(&keeper{before: hang}, told), signedRequest(body)), http.StatusServiceUnavailable)
		told.expect(t, "provider: failed")
		if took := time.Since(start); took != webhook.DefaultStoreTimeout {
			t.Errorf("the store had %s", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		told, start := &journal{}, time.Now()
		cfg := config(&keeper{}, told)
		cfg.ApplyTimeout = time.Minute
		cfg.Apply = func(ctx context.Context, _ store.ExternalEvent) error { return hang(ctx) }
		expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
		told.expect(t, "provider: kept", "provider: failed")
		if took := time.Since(start); took != time.Minute {
			t.Errorf("the Apply had %s", took)
		}
	})
}
