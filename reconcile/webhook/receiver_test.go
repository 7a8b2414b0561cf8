package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

func TestExternalEventIsKeptBeforeItIsApplied(t *testing.T) {
	t.Parallel()
	s, told := &keeper{}, &journal{}
	s.after = func() { told.note("stored") }
	cfg := config(s, told)
	w := deliver(t, cfg, signedRequest(`{"id":"evt_1","object":"ch_1","at":"2025-12-31T23:00:00Z"}`))
	expectStatus(t, w, http.StatusNoContent)
	if w.Body.Len() != 0 {
		t.Errorf("answered %q", w.Body)
	}
	told.expect(t, "stored", "provider: kept", "apply evt_1")
	events, err := s.ExternalEvents(t.Context(), store.ExternalEventFilter{Source: "provider", Subjects: []string{"ch_1"}})
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	got, want := events[0], store.ExternalEvent{
		Source: "provider", AnyScope: true, EventID: "evt_1", Subject: "ch_1", At: now.Add(-time.Hour),
		Body: []byte(`{"id":"evt_1","object":"ch_1","at":"2025-12-31T23:00:00Z"}`),
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("kept %+v, want %+v", got, want)
	}
}

// TestApplyIsOptional: the reconciler reads what is kept. An event without a time happened when it came.
func TestApplyIsOptional(t *testing.T) {
	t.Parallel()
	store, told := &keeper{}, &journal{}
	cfg := config(store, told)
	cfg.Apply = nil
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	told.expect(t, "provider: kept")
	if at := store.events[0].At; !at.Equal(now) {
		t.Errorf("it happened at %s", at)
	}
}

// TestDuplicateIsAppliedAgain: the id decides, not the bytes.
func TestDuplicateIsAppliedAgain(t *testing.T) {
	t.Parallel()
	store, told := &keeper{}, &journal{}
	cfg := config(store, told)
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	expectStatus(t, deliver(t, cfg, signedRequest(body+" ")), http.StatusNoContent)
	told.expect(t, "provider: kept", "apply evt_1", "provider: duplicate", "apply evt_1")
	if len(store.events) != 1 || string(store.events[0].Body) != body {
		t.Errorf("kept %+v", store.events)
	}
}

func TestDuplicatesAtTheSameTime(t *testing.T) {
	t.Parallel()
	store, told := &keeper{}, &journal{}
	receiver := must(config(store, told).receiver())
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			w := httptest.NewRecorder()
			receiver.ServeHTTP(w, signedRequest(body))
			expectStatus(t, w, http.StatusNoContent)
		})
	}
	all.Wait()
	slices.Sort(told.lines)
	want := append(slices.Repeat([]string{"apply evt_1"}, 20), slices.Repeat([]string{"provider: duplicate"}, 19)...)
	told.expect(t, append(want, "provider: kept")...)
}

// TestRestartBetweenKeepAndApply: the process dies with the external event kept and not applied, and the sender sends
// it again.
func TestRestartBetweenKeepAndApply(t *testing.T) {
	t.Parallel()
	store, told := &keeper{after: func() { panic("the process dies") }}, &journal{}
	cfg := config(store, told)
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusInternalServerError)
	told.expect(t, "provider: failed")
	store.after = nil
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	told.expect(t, "provider: duplicate", "apply evt_1")
}

// TestOutOfOrderDeliveriesEndInTheLatestState: whatever the order, with an Apply that goes by Latest.
func TestOutOfOrderDeliveriesEndInTheLatestState(t *testing.T) {
	t.Parallel()
	deliveries := []string{
		`{"id":"evt_9","object":"ch_1","at":"2026-01-01T00:00:01Z"}`,
		`{"id":"evt_5","object":"ch_1","at":"2026-01-01T00:00:02Z"}`,
		`{"id":"evt_1","object":"ch_1","at":"2026-01-01T00:00:03Z"}`,
		`{"id":"evt_x","object":"ch_2","at":"2026-01-01T00:00:04Z"}`,
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 1, 3}, {1, 2, 0, 0}, {2, 2, 1, 2}} {
		s, state := &keeper{}, map[string]string{}
		cfg := config(s, &journal{})
		cfg.Apply = func(ctx context.Context, n store.ExternalEvent) error {
			events, err := s.ExternalEvents(ctx, store.ExternalEventFilter{Source: n.Source, Subjects: []string{n.Subject}})
			latest, _ := webhook.Latest(events)
			state[n.Subject] = latest.EventID
			return err
		}
		for _, i := range order {
			expectStatus(t, deliver(t, cfg, signedRequest(deliveries[i])), http.StatusNoContent)
		}
		if state["ch_1"] != "evt_1" {
			t.Errorf("order %v: the state is that of %s", order, state["ch_1"])
		}
	}
}

func TestApplyThatFailsLosesNothing(t *testing.T) {
	t.Parallel()
	s, told := &keeper{}, &journal{}
	cfg := config(s, told)
	cfg.Apply = func(context.Context, store.ExternalEvent) error { return errors.New("the record is locked") }
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	told.expect(t, "provider: kept", "provider: failed")
	if ids := s.ids(); !slices.Equal(ids, []string{"evt_1"}) {
		t.Errorf("kept %q", ids)
	}
}

func TestPanicsAreAnswered(t *testing.T) {
	t.Parallel()
	s, told := &keeper{}, &journal{}
	cfg := config(s, told)
	cfg.Apply = func(context.Context, store.ExternalEvent) error { panic("the fault of Apply") }
	w := deliver(t, cfg, signedRequest(body))
	expectStatus(t, w, http.StatusInternalServerError)
	if strings.Contains(w.Body.String(), "Apply") {
		t.Errorf("the answer tells too much: %s", w.Body)
	}
	told.expect(t, "provider: kept", "provider: failed")
	expectStatus(t, deliver(t, cfg, signedRequest(`{"id":"evt_2","object":"ch_1","kind":"panic"}`)),
		http.StatusInternalServerError)
	told.expect(t, "provider: failed")
	if ids := s.ids(); !slices.Equal(ids, []string{"evt_1"}) {
		t.Errorf("kept %q", ids)
	}
}

func TestIgnoredEventIsNotKept(t *testing.T) {
	t.Parallel()
	store, told := &keeper{}, &journal{}
	w := deliver(t, config(store, told), signedRequest(`{"id":"evt_1","object":"ch_1","kind":"ignored"}`))
	expectStatus(t, w, http.StatusNoContent)
	told.expect(t)
	if ids := store.ids(); len(ids) != 0 {
		t.Errorf("kept %q", ids)
	}
}

func TestStoreThatIsDown(t *testing.T) {
	t.Parallel()
	down := fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)
	store, told := &keeper{before: func(context.Context) error { return down }}, &journal{}
	cfg := config(store, told)
	w := deliver(t, cfg, signedRequest(body))
	expectStatus(t, w, http.StatusServiceUnavailable)
	if w.Header().Get("Retry-After") != "1" || strings.Contains(w.Body.String(), "plug") {
		t.Errorf("answered %v %s", w.Header(), w.Body)
	}
	told.expect(t, "provider: failed")
	store.before = nil
	expectStatus(t, deliver(t, cfg, signedRequest(body)), http.StatusNoContent)
	told.expect(t, "provider: kept", "apply evt_1")
}

func TestConfigMustMakeSense(t *testing.T) {
	t.Parallel()
	_, err := webhook.New(nil, webhook.Config{MaxBody: -1})
	for _, want := range []string{"Source", "Scheme", "Scope", "a store", "Parse", "MaxBody"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	for _, change := range []func(*setup){
		func(c *setup) { c.StoreTimeout = -1 }, func(c *setup) { c.ApplyTimeout = -1 },
		func(c *setup) { c.ProblemBase = "problems#" },
		func(c *setup) { c.ProblemBase = "https://api.example.com/problems" },
		func(c *setup) { c.ProblemBase = "https://exa mple.com/" },
	} {
		cfg := config(&keeper{}, &journal{})
		change(&cfg)
		if _, err := cfg.receiver(); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

func TestLatest(t *testing.T) {
	t.Parallel()
	at := func(id string, seconds int) store.ExternalEvent {
		return store.ExternalEvent{EventID: id, At: now.Add(time.Duration(seconds) * time.Second)}
	}
	for _, test := range []struct {
		externals []store.ExternalEvent
		want      string
	}{
		{nil, ""},
		{[]store.ExternalEvent{at("a", 0)}, "a"},
		{[]store.ExternalEvent{at("a", 0), at("b", 1)}, "b"},
		{[]store.ExternalEvent{at("b", 1), at("a", 0)}, "b"},
		{[]store.ExternalEvent{at("b", 0), at("a", 1), at("c", 0)}, "a"},
		{[]store.ExternalEvent{at("a", 0), at("b", 0)}, "b"},
		{[]store.ExternalEvent{at("b", 0), at("a", 0)}, "b"},
		{[]store.ExternalEvent{{EventID: "a"}, at("b", -100)}, "b"},
	} {
		got, ok := webhook.Latest(test.externals)
		if got.EventID != test.want || ok != (test.want != "") {
			t.Errorf("%v: %q, %t; want %q", test.externals, got.EventID, ok, test.want)
		}
	}
}

// TestLatestComparesInstants: the sender's time zone does not matter.
func TestLatestComparesInstants(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("east", 5*3600)
	got, _ := webhook.Latest([]store.ExternalEvent{
		{EventID: "a", At: now.Add(time.Second)},
		{EventID: "b", At: now.In(east)},
	})
	if got.EventID != "a" {
		t.Error(got)
	}
}

func TestParseJSON(t *testing.T) {
	t.Parallel()
	parse := webhook.ParseJSON(func(header http.Header, p payload) (webhook.Event, error) {
		if p.Kind == "test" {
			return webhook.Event{}, webhook.ErrIgnored
		}
		return webhook.Event{ID: header.Get(webhook.HeaderID), Subject: p.Object, At: p.At}, nil
	})
	header := http.Header{"Webhook-Id": {"msg_1"}}
	event, err := parse(header, []byte(`{"object":"ch_1","at":"2026-01-01T00:00:00Z","more":1}`))
	if want := (webhook.Event{ID: "msg_1", Subject: "ch_1", At: now}); event != want || err != nil {
		t.Errorf("%+v, %v; want %+v", event, err, want)
	}
	if _, err := parse(header, []byte(`{"kind":"test"}`)); !errors.Is(err, webhook.ErrIgnored) {
		t.Error(err)
	}
	for _, body := range []string{"", "{", `{}{}`, `[]`, `{"object":1}`} {
		if _, err := parse(header, []byte(body)); err == nil || errors.Is(err, webhook.ErrIgnored) {
			t.Errorf("%q: %v", body, err)
		}
	}
}
