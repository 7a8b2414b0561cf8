package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/webhook"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// marketStore is what tenants and their webhooks need of a store.
type marketStore interface {
	store.Store
	store.Reconciler
	store.Lister
	store.ExternalEventKeeper
}

// TestForeignWebhooks is B6: a webhook of one tenant about another's operation, signed as it should be and under the
// right name, settles nothing, neither when it is applied nor when the poller reads it (scenario 45).
func TestForeignWebhooks(t *testing.T) {
	t.Parallel()
	for kind, open := range map[string]func(t *testing.T) marketStore{
		"memory":   func(*testing.T) marketStore { return memory.New() },
		"sqlite":   func(t *testing.T) marketStore { return newWorld(t, "sqlite", false).store },
		"postgres": func(t *testing.T) marketStore { return newWorld(t, "postgres", false).store },
	} {
		for way, applied := range map[string]bool{"applied": true, "read by the poller": false} {
			t.Run(kind+", "+way, func(t *testing.T) {
				t.Parallel()
				newMarket(t, open(t), applied).isSafe()
			})
		}
	}
}

// market is a service of two tenants, each with an account of its own at the bank, which calls one endpoint for both.
type market struct {
	*testing.T
	store   marketStore
	guard   *onceward.Guard
	poller  *reconcile.Poller
	schemes map[string]*webhook.Timestamped
	mux     *http.ServeMux
}

// bankWord is an event of the bank's.
type bankWord struct{ ID, Subject, Answer string }

func newMarket(t *testing.T, store marketStore, applied bool) *market {
	t.Helper()
	m := &market{T: t, store: store, schemes: make(map[string]*webhook.Timestamped), mux: http.NewServeMux()}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	for _, tenant := range []string{"acme", "mallory"} {
		m.schemes[tenant], err = webhook.NewTimestamped(webhook.TimestampedConfig{
			Header: "Bank-Signature", Secrets: [][]byte{[]byte("the secret of " + tenant + " at the bank")},
		})
		must(t, err)
	}
	m.guard, err = onceward.New(store, onceward.Config{Secret: []byte(shopSecret), Logger: quiet})
	must(t, err)
	m.poller, err = reconcile.NewPoller(m.guard, store, reconcile.Config{Logger: quiet, Rules: map[string]reconcile.Rule{
		"charge": {Source: "bank", Steps: []string{"charge"}, Interpret: believe},
	}})
	must(t, err)
	config := webhook.Config{
		Source: "bank", Tenant: m.tenant, Logger: quiet,
		Parse: webhook.ParseJSON(func(_ http.Header, w bankWord) (webhook.Event, error) {
			return webhook.Event{ID: w.ID, Subject: w.Subject}, nil
		}),
	}
	if applied {
		config.Apply = m.poller.Apply
	}
	receiver, err := webhook.New(store, config)
	must(t, err)
	m.mux.Handle("POST /hooks/{tenant}", receiver)
	return m
}

// tenant is whose delivery a request claims to be.
func (m *market) tenant(r *http.Request) (webhook.Tenant, error) {
	name := r.PathValue("tenant")
	scheme, known := m.schemes[name]
	if !known {
		return webhook.Tenant{}, fmt.Errorf("%w: there is no tenant %q", webhook.ErrSignature, name)
	}
	return webhook.Tenant{Scope: name, Scheme: scheme}, nil
}

// believe takes the last word for the answer.
func believe(_ context.Context, _ *store.Record, events []store.ExternalEvent) (reconcile.Answer, error) {
	latest, _ := webhook.Latest(events)
	var word bankWord
	err := json.Unmarshal(latest.Body, &word)
	return reconcile.Completed(store.Response{Status: http.StatusCreated, Body: []byte(word.Answer)}, ""), err
}

// loses makes a charge of a tenant's of which the service does not hear, and returns how the bank knows it.
func (m *market) loses(tenant, key, charge string) (rec store.Record, downstream string) {
	m.Helper()
	_, err := m.guard.Do(m.Context(), onceward.Call{Scope: tenant, Key: key, Operation: "charge"}, func(ctx context.Context) ([]byte, error) {
		op := onceward.FromContext(ctx)
		downstream = op.DownstreamKey("charge")
		op.SetProviderID(charge)
		return nil, errors.New("the bank did not answer in time")
	}, onceward.Reserved(onceward.FailureUnknown))
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		m.Fatal(err)
	}
	rec, err = m.store.Get(m.Context(), store.ID{Scope: tenant, Key: key})
	must(m, err)
	return rec, downstream
}

// tells delivers an event to a tenant's hook, signed with a secret.
func (m *market) tells(hook, signer string, word bankWord) (status int) {
	m.Helper()
	body, err := json.Marshal(word)
	must(m, err)
	r := httptest.NewRequest(http.MethodPost, "/hooks/"+hook, bytes.NewReader(body))
	m.schemes[signer].Sign(r.Header, body, time.Now())
	w := httptest.NewRecorder()
	m.mux.ServeHTTP(w, r)
	return w.Code
}

// wantState has the poller look too, and checks where a record stands.
func (m *market) wantState(id store.ID, want store.State, answer string) {
	m.Helper()
	_, err := m.poller.Reconcile(m.Context(), id)
	must(m, err)
	rec, err := m.store.Get(m.Context(), id)
	if err != nil || rec.State != want || string(rec.Response.Body) != answer {
		m.Errorf("B6: the record of %s is %s with %q, %v, want %s with %q", id.Scope, rec.State, rec.Response.Body, err, want, answer)
	}
}

// isSafe lets mallory say all that it can about a charge of acme's.
func (m *market) isSafe() {
	victim, downstream := m.loses("acme", "order-1", "ch_1")
	own, ownDownstream := m.loses("mallory", "order-1", "ch_2")
	if downstream == ownDownstream {
		m.Error("B6: two tenants have the same downstream key")
	}
	for i, subject := range []string{downstream, "ch_1", downstream, "ch_1"} {
		// The last two take the ids of events that acme is going to be told of.
		if got := m.tells("mallory", "mallory", bankWord{fmt.Sprint("evt_", i), subject, "never charged"}); got != http.StatusNoContent {
			m.Errorf("a signed webhook was answered with %d", got)
		}
		m.wantState(victim.ID, store.StateUnknown, "")
		m.wantState(own.ID, store.StateUnknown, "")
	}
	for _, hook := range []string{"acme", "nobody"} {
		if got := m.tells(hook, "mallory", bankWord{"evt_9", downstream, "never charged"}); got != http.StatusUnauthorized {
			m.Errorf("B3: mallory's signature at the hook of %s was answered with %d", hook, got)
		}
		m.wantState(victim.ID, store.StateUnknown, "")
	}
	for _, word := range []bankWord{{"evt_2", downstream, "charged"}, {"evt_3", "ch_1", "charged"}} {
		m.tells("acme", "acme", word)
		m.wantState(victim.ID, store.StateCompleted, "charged")
	}
	m.wantState(own.ID, store.StateUnknown, "")
	m.tells("mallory", "mallory", bankWord{"evt_4", ownDownstream, "mine"})
	m.wantState(own.ID, store.StateCompleted, "mine")
}
