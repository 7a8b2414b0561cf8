package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

const (
	secretText      = "0123456789abcdef0123456789abcdef"
	otherSecretText = "fedcba9876543210fedcba9876543210"
	body            = `{"id":"evt_1","object":"ch_1"}`
)

// now is 1767225600, the time of the vectors.
var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// must is for constructors that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// keeper is a store in memory that keeps external events. The hooks run before and after one is kept.
type keeper struct {
	before func(ctx context.Context) error
	after  func()

	mu     sync.Mutex
	events []store.ExternalEvent
}

func (k *keeper) AddExternalEvent(ctx context.Context, n store.ExternalEvent) (bool, error) {
	if k.before != nil {
		if err := k.before(ctx); err != nil {
			return false, err
		}
	}
	added := k.add(n)
	if k.after != nil {
		k.after()
	}
	return added, nil
}

func (k *keeper) add(n store.ExternalEvent) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, known := range k.events {
		if known.Source == n.Source && known.Scope == n.Scope && known.AnyScope == n.AnyScope && known.EventID == n.EventID {
			return false
		}
	}
	n.Body = bytes.Clone(n.Body)
	k.events = append(k.events, n)
	return true
}

func (k *keeper) ExternalEvents(_ context.Context, f store.ExternalEventFilter) ([]store.ExternalEvent, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var found []store.ExternalEvent
	for _, n := range k.events {
		if n.Source == f.Source && n.MaySettle(f.Scope) && slices.Contains(f.Subjects, n.Subject) {
			found = append(found, n)
		}
	}
	return found, nil
}

func (k *keeper) PurgeExternalEvents(context.Context, time.Duration, int) (int, error) { return 0, nil }

// ids are the event ids in the order in which they were kept.
func (k *keeper) ids() (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.events {
		ids = append(ids, n.EventID)
	}
	return ids
}

// journal collects what happens, in order: the observer's events and the notes of a test.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) Observe(_ context.Context, e onceward.ObserverEvent) {
	event := e.(webhook.ReceivedEvent)
	j.note(fmt.Sprintf("%s: %s", event.Source, event.Outcome))
}

// expect compares the journal so far, and begins a new one.
func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.lines, want) {
		t.Errorf("happened: %q, want %q", j.lines, want)
	}
	j.lines = nil
}

// payload is what the test's sender sends.
type payload struct {
	ID     string    `json:"id"`
	Object string    `json:"object"`
	At     time.Time `json:"at,omitzero"`
	Kind   string    `json:"kind,omitempty"`
}

func parsePayload(_ http.Header, p payload) (webhook.Event, error) {
	switch p.Kind {
	case "ignored":
		return webhook.Event{}, fmt.Errorf("%w: %s", webhook.ErrIgnored, p.Kind)
	case "panic":
		panic("the parser's fault")
	}
	return webhook.Event{ID: p.ID, Subject: p.Object, At: p.At}, nil
}

var timestamped = must(webhook.NewTimestamped(webhook.TimestampedConfig{
	Header: "Provider-Signature", Secrets: [][]byte{[]byte(secretText)},
}))

// setup is what a receiver is made of.
type setup struct {
	webhook.Config
	keeper store.ExternalEventKeeper
}

func (s setup) receiver() (*webhook.Receiver, error) { return webhook.New(s.keeper, s.Config) }

// config returns the config of a receiver with a journal, where every Apply is noted.
func config(k store.ExternalEventKeeper, j *journal) setup {
	return setup{keeper: k, Config: webhook.Config{
		Source: "provider", Scheme: timestamped, Scope: webhook.AllScopes(), Parse: webhook.ParseJSON(parsePayload),
		Apply: func(_ context.Context, n store.ExternalEvent) error {
			j.note("apply " + n.EventID)
			return nil
		},
		Observer: j, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	}}
}

// signedRequest is a delivery as the sender makes it.
func signedRequest(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hooks/provider", bytes.NewReader([]byte(body)))
	timestamped.Sign(r.Header, []byte(body), now)
	return r
}

// deliver sends a request to a receiver of that config.
func deliver(t *testing.T, cfg setup, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	receiver, err := cfg.receiver()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	receiver.ServeHTTP(w, r)
	return w
}

// expectStatus fails if the answer is another one.
func expectStatus(t *testing.T, w *httptest.ResponseRecorder, want int) {
	t.Helper()
	if w.Code != want {
		t.Errorf("answered %d %s, want %d", w.Code, w.Body, want)
	}
}
