package payments_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// openRoutes need no token.
var openRoutes = []string{
	"POST /events", "POST /events/{account}", "GET /idempotency", "GET /health", "GET /counters", "GET /metrics",
}

// routes returns the routes of a system.
func (w *world) routes() []onceward.RouteInfo {
	w.Helper()
	var mux *onceward.Mux
	config := w.settings.Config
	config.Monitor = newMonitor(w)
	config.Routes = func(m *onceward.Mux, _ *onceward.Guard) { mux = m }
	_, err := payments.New(w.Context(), config)
	must(w, err)
	return mux.Routes()
}

func TestAccess(t *testing.T) {
	t.Parallel()
	stories{
		"tokens":         tokens,
		"bearer":         schemeInAnyCase,
		"forged webhook": forgedWebhook,
		"counters":       counters,
		"status":         status,
	}.onStores(t, nil)
}

// tokens: every route wants a token that is known, but for those that are open.
func tokens(w *world) {
	for _, route := range w.routes() {
		path := strings.NewReplacer("{id}", "x", "{key}", "x", "{account}", "x").Replace(route.Pattern)
		isOpen := slices.Contains(openRoutes, route.String())
		for _, header := range []string{"", "Bearer ", "Bearer wrong", alice, "Basic " + alice, "Bearer " + alice + alice} {
			request, err := http.NewRequestWithContext(w.Context(), route.Method, w.server.URL+path, strings.NewReader(`{}`))
			must(w, err)
			request.Header.Set("Idempotency-Key", "tokens")
			request.Header.Set("Authorization", header)
			r, err := w.do(request)
			must(w, err)
			if !isOpen {
				r.want(http.StatusUnauthorized, "token")
			} else if strings.Contains(r.body, "token") {
				w.Errorf("%s wants a token: %s", route, r.body)
			}
		}
	}
}

// schemeInAnyCase as RFC 9110 has it.
func schemeInAnyCase(w *world) {
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.server.URL+"/payments", nil)
	must(w, err)
	request.Header.Set("Authorization", "bearer "+bob)
	r, err := w.do(request)
	must(w, err)
	r.want(http.StatusOK, "[]")
}

// forgedWebhook: what is not signed by the provider, or was long ago, changes nothing.
func forgedWebhook(w *world) {
	body, err := json.Marshal(provider.Event{
		ID: "evt_forged", Type: provider.EventRefunded,
		Data: provider.EventData{Refund: &provider.Refund{ID: "re_1", IdempotencyKey: "k"}},
	})
	must(w, err)
	for name, signature := range map[string]string{
		"unsigned":      "",
		"another's":     provider.Sign("guessed", time.Now(), body),
		"an old one":    provider.Sign(hookSecret, time.Now().Add(-time.Hour), body),
		"of other text": provider.Sign(hookSecret, time.Now(), append(body, ' ')),
	} {
		request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.server.URL+"/events", bytes.NewReader(body))
		must(w, err)
		request.Header.Set(provider.SignatureHeader, signature)
		if r, err := w.do(request); err != nil || r.status != http.StatusUnauthorized {
			w.Errorf("%s: the answer is %d %s (%v), want 401", name, r.status, r.body, err)
		}
	}
	if kept, err := w.db.ExternalEvents(w.Context(), store.ExternalEventFilter{Source: "provider", Subjects: []string{"k"}}); err != nil || len(kept) != 0 {
		w.Errorf("kept are %v (%v), want none", kept, err)
	}
}

// counters: they count, and they are what the system says itself.
func counters(w *world) {
	before := w.system.Counters().Counts()
	w.payment(1900, "counted")
	w.post("/payments", "pay counted", order(1900, "counted")).want(http.StatusCreated, "")
	w.post("/payments", "", order(1900, "counted")).want(http.StatusBadRequest, "")
	for _, name := range []string{
		"decided execute", "decided replay", "executions", "ended completed", "delivered done", "rejected missing-key",
	} {
		w.eventually(name+" to grow", func() bool {
			return decode[map[string]int64](w.send(http.MethodGet, "/counters", "", "", "").want(http.StatusOK, ""))[name] > before[name]
		})
	}
}

// status: the account that made a request can ask what became of it, and no other.
func status(w *world) {
	w.payment(1900, "status")
	w.send(http.MethodGet, "/operations/pay-status", alice, "", "").want(http.StatusOK, "completed")
	w.send(http.MethodGet, "/operations/pay-status", bob, "", "").want(http.StatusNotFound, "")
}

func onFile(t *testing.T) *world {
	t.Helper()
	return newWorld(t, storeOf(t, "sqlite"), func(s *settings) { s.idle = true })
}

// TestRoutesAreAllProtected: no route that changes state is without a guard, but for the receivers of webhooks.
func TestRoutesAreAllProtected(t *testing.T) {
	t.Parallel()
	routes := onFile(t).routes()
	if unprotected := onceward.Audit(routes, "POST /events", "POST /events/{account}"); len(unprotected) != 0 {
		t.Errorf("unprotected: %v", unprotected)
	}
	if len(routes) != 12 || len(onceward.Audit(routes)) != 2 {
		t.Errorf("the audit saw %v", routes)
	}
}

// TestUnprotectedRouteStopsTheStart: a route that was left unprotected is named, and nothing is served.
func TestUnprotectedRouteStopsTheStart(t *testing.T) {
	t.Parallel()
	config := onFile(t).settings.Config
	config.Monitor = nil
	config.Routes = func(mux *onceward.Mux, guard *onceward.Guard) {
		nothing := func(http.ResponseWriter, *http.Request) {}
		mux.HandleFunc("POST /forgotten", nothing)
		mux.Handle("POST /remembered", guard.HandlerFunc(nothing, onceward.Transactional()))
	}
	system, err := payments.New(t.Context(), config)
	if err == nil || !strings.Contains(err.Error(), "POST /forgotten") || strings.Contains(err.Error(), "remembered") {
		t.Errorf("the error is %v, want one that names the route", err)
	}
	if system != nil {
		t.Error("there is a system all the same")
	}
}

// TestConfigIsChecked: what is missing is named, and nothing begins without it.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := onFile(t).settings.Config
	good.Monitor = nil
	for _, policy := range []string{"conflict", "wait", "accepted"} {
		config := good
		config.InFlight = policy
		if _, err := payments.New(t.Context(), config); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
	for want, spoil := range map[string]func(*payments.Config){
		"Config.Database":         func(c *payments.Config) { c.Database = nil },
		"Config.Tokens is empty":  func(c *payments.Config) { c.Tokens = nil },
		"holds an empty token":    func(c *payments.Config) { c.Tokens = map[string]string{"": "everybody"} },
		"Config.Provider":         func(c *payments.Config) { c.Provider = "" },
		"ecret":                   func(c *payments.Config) { c.Secret = []byte("short") },
		"Config.WebhookSecret":    func(c *payments.Config) { c.WebhookSecret = "" },
		"has 15 bytes":            func(c *payments.Config) { c.WebhookSecret = hookSecret[:15] },
		`in-flight policy "hope"`: func(c *payments.Config) { c.InFlight = "hope" },
	} {
		bad := good
		spoil(&bad)
		if system, err := payments.New(t.Context(), bad); err == nil || !strings.Contains(err.Error(), want) || system != nil {
			t.Errorf("the error is %v, want one about %s", err, want)
		}
	}
}

// TestStoreIsClosed: health says so, and a payment that cannot be written is refused, not lost.
func TestStoreIsClosed(t *testing.T) {
	t.Parallel()
	onStores(t, func(s *settings) { s.idle = true }, func(t *testing.T, w *world) {
		must(t, w.db.Close())
		w.wantUnavailable()
	})
}

// TestStoreIsUnreachable: as soon as it can be reached again, all is well.
func TestStoreIsUnreachable(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, storeOf(t, "postgres"))
	w := newWorld(t, proxy.URL(), func(s *settings) { s.idle = true })
	w.post("/payments", "k", order(1900, "r")).want(http.StatusCreated, "")
	proxy.Refuse(true)
	proxy.DropAll()
	w.wantUnavailable()
	proxy.Refuse(false)
	w.eventually("the store to be reached", func() bool {
		return w.send(http.MethodGet, "/health", "", "", "").status == http.StatusOK
	})
	w.post("/payments", "k", order(1900, "r")).want(http.StatusCreated, "")
	if n := w.number(`SELECT count(*) FROM payment`); n != 1 {
		t.Errorf("there are %d payments, want one", n)
	}
}

func (w *world) wantUnavailable() {
	w.Helper()
	w.send(http.MethodGet, "/health", "", "", "").want(http.StatusServiceUnavailable, "could not ask the store")
	w.send(http.MethodGet, "/payments", alice, "", "").want(http.StatusServiceUnavailable, "could not read the payments")
	w.send(http.MethodGet, "/payments/x", alice, "", "").want(http.StatusServiceUnavailable, "could not read the payment")
	w.post("/payments", "away", order(1900, "away")).want(http.StatusServiceUnavailable, "")
	w.post("/payments/x/refund", "away", `{"amount":1}`).want(http.StatusServiceUnavailable, "")
	w.post("/bookings", "away", place("concert", 1, "away")).want(http.StatusServiceUnavailable, "")
}

// TestWithoutMonitor: a system without a monitor works, and has no page of metrics.
func TestWithoutMonitor(t *testing.T) {
	t.Parallel()
	w := onFile(t)
	w.settings.Monitor = nil
	system, err := payments.New(t.Context(), w.settings.Config)
	must(t, err)
	w.server.Config.Handler = system
	w.post("/payments", "k", order(1900, "r")).want(http.StatusCreated, "")
	w.send(http.MethodGet, "/metrics", "", "", "").want(http.StatusNotFound, "")
	w.send(http.MethodGet, "/counters", "", "", "").want(http.StatusOK, "executions")
}
