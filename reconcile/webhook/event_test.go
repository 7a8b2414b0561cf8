package webhook_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

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
