package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
)

// TestScopeIsRequired: a receiver without a setting for whose records its sender may settle is not built, nor one with
// two.
func TestScopeIsRequired(t *testing.T) {
	t.Parallel()
	tenant := func(*http.Request) (webhook.Tenant, error) { return webhook.Tenant{}, nil }
	for name, change := range map[string]func(*setup){
		"no scope":            func(c *setup) { c.Scope = webhook.Scope{} },
		"an empty scope":      func(c *setup) { c.Scope = webhook.OneScope("") },
		"a tenant and both":   func(c *setup) { c.Tenant = tenant },
		"a tenant, a scope":   func(c *setup) { c.Tenant, c.Scheme = tenant, nil },
		"a tenant, a scheme":  func(c *setup) { c.Tenant, c.Scope = tenant, webhook.Scope{} },
		"neither of them all": func(c *setup) { c.Scheme, c.Scope = nil, webhook.Scope{} },
	} {
		cfg := config(&keeper{}, &journal{})
		change(&cfg)
		if _, err := cfg.receiver(); err == nil {
			t.Errorf("B6: %s is taken", name)
		}
	}
	cfg := config(&keeper{}, &journal{})
	cfg.Tenant, cfg.Scheme, cfg.Scope = tenant, nil, webhook.Scope{}
	if _, err := cfg.receiver(); err != nil {
		t.Error(err)
	}
}

// TestWhatAnExternalEventIsBoundTo: to the receiver's scope, and to the event's if it may narrow it.
func TestWhatAnExternalEventIsBoundTo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scope  webhook.Scope
		event  string
		status int
		want   store.ExternalEvent
	}{
		"one scope":             {webhook.OneScope("acme"), "", 204, store.ExternalEvent{Scope: "acme"}},
		"one scope, the same":   {webhook.OneScope("acme"), "acme", 204, store.ExternalEvent{Scope: "acme"}},
		"one scope, another":    {webhook.OneScope("acme"), "mallory", 400, store.ExternalEvent{}},
		"that of the event":     {webhook.ScopeOfEvent(), "acme", 204, store.ExternalEvent{Scope: "acme"}},
		"an event without":      {webhook.ScopeOfEvent(), "", 400, store.ExternalEvent{}},
		"all scopes":            {webhook.AllScopes(), "", 204, store.ExternalEvent{AnyScope: true}},
		"all scopes, but named": {webhook.AllScopes(), "acme", 204, store.ExternalEvent{Scope: "acme"}},
	} {
		store, told := &keeper{}, &journal{}
		cfg := config(store, told)
		cfg.Scope = c.scope
		cfg.Parse = func(http.Header, []byte) (webhook.Event, error) {
			return webhook.Event{ID: "evt_1", Subject: "ch_1", Scope: c.event}, nil
		}
		expectStatus(t, deliver(t, cfg, signedRequest(body)), c.status)
		switch {
		case c.status != http.StatusNoContent:
			told.expect(t, "provider: refused")
		case len(store.events) != 1 || store.events[0].Scope != c.want.Scope || store.events[0].AnyScope != c.want.AnyScope:
			t.Errorf("B6: %s: kept %+v", name, store.events)
		}
	}
}

// TestTenants: a delivery counts for the tenant that has signed it, whichever it claims to be.
func TestTenants(t *testing.T) {
	t.Parallel()
	other := must(webhook.NewTimestamped(webhook.TimestampedConfig{
		Header:  "Provider-Signature",
		Secrets: [][]byte{[]byte(otherSecretText)},
	}))
	schemes := map[string]*webhook.Timestamped{"acme": timestamped, "mallory": other}
	s, told := &keeper{}, &journal{}
	cfg := config(s, told)
	cfg.Scheme, cfg.Scope = nil, webhook.Scope{}
	cfg.Tenant = func(r *http.Request) (webhook.Tenant, error) {
		name := r.PathValue("tenant")
		switch scheme, known := schemes[name]; {
		case known:
			return webhook.Tenant{Scope: name, Scheme: scheme}, nil
		case name == "down":
			return webhook.Tenant{}, errors.New("the tenants cannot be looked up")
		case name == "empty":
			return webhook.Tenant{}, nil
		default:
			return webhook.Tenant{}, fmt.Errorf("%w: no such tenant", webhook.ErrSignature)
		}
	}
	receiver := must(cfg.receiver())
	mux := http.NewServeMux()
	mux.Handle("POST /hooks/{tenant}", receiver)
	for _, c := range []struct {
		hook   string
		signer *webhook.Timestamped
		status int
	}{
		{"acme", timestamped, 204},
		{"mallory", other, 204},
		{"acme", other, 401},
		{"mallory", timestamped, 401},
		{"nobody", timestamped, 401},
		{"down", timestamped, 503},
		{"empty", timestamped, 503},
	} {
		r := httptest.NewRequest(http.MethodPost, "/hooks/"+c.hook, strings.NewReader(body))
		c.signer.Sign(r.Header, []byte(body), now)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("B6: at the hook of %s: %d, want %d", c.hook, w.Code, c.status)
		}
	}
	told.expect(t, "provider: kept", "apply evt_1", "provider: kept", "apply evt_1", "provider: refused",
		"provider: refused",
		"provider: refused", "provider: failed", "provider: failed")
	for _, scope := range []string{"acme", "mallory"} {
		found, err := s.ExternalEvents(context.Background(), store.ExternalEventFilter{
			Source: "provider", Scope: scope,
			Subjects: []string{"ch_1"},
		})
		if err != nil || len(found) != 1 || found[0].Scope != scope {
			t.Errorf("B6: for %s there are %+v, %v", scope, found, err)
		}
	}
}
