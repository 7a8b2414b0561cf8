// Package payments is a small payments API with Onceward in front of it: what a service that handles money looks like. It
// keeps its own tables in the same SQLite file as the records, so that a payment and its stored answer are one
// transaction.
package payments

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/sqlite"
)

// Config configures an [API].
type Config struct {
	// Secret keys the fingerprints; it must stay the same over restarts.
	Secret []byte
	// InFlight is what a duplicate of a request in flight gets: conflict, wait or accepted. Default: conflict.
	InFlight string
	// Observer is told what happens. Default: nobody.
	Observer onceward.Observer
}

// API is the payments API.
type API struct {
	store *sqlite.Store
	guard *onceward.Guard
	mux   *onceward.Mux
}

const schema = `
	CREATE TABLE IF NOT EXISTS payment (
		id         TEXT PRIMARY KEY,
		account    TEXT NOT NULL,
		customer   TEXT NOT NULL,
		amount     TEXT NOT NULL,
		currency   TEXT NOT NULL,
		created_at TEXT NOT NULL
	) STRICT;
	CREATE INDEX IF NOT EXISTS payment_account ON payment (account);
	CREATE TABLE IF NOT EXISTS slow_execution (account TEXT NOT NULL, started_at TEXT NOT NULL) STRICT;
`

// The limits of the slow route: its lease is short, so that what a crash leaves behind is soon seen to be unknown.
const (
	slowLease   = 5 * time.Second
	slowLongest = 10 * time.Minute
	waitLongest = time.Minute
	statusPath  = "/operations/"
)

// New creates the tables and returns the API.
func New(ctx context.Context, store *sqlite.Store, config Config) (*API, error) {
	inFlight, err := inFlightOption(config.InFlight)
	if err != nil {
		return nil, err
	}
	err = store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, schema)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create the tables: %w", err)
	}
	guard, err := onceward.New(store, onceward.Config{
		Scope: account, Secret: config.Secret, Observer: config.Observer, Defaults: []onceward.Option{inFlight},
	})
	if err != nil {
		return nil, err
	}
	api := &API{store: store, guard: guard, mux: onceward.NewMux()}
	api.routes()
	return api, onceward.AuditStrict(api.mux.Routes())
}

func inFlightOption(policy string) (onceward.Option, error) {
	switch policy {
	case "", "conflict":
		return onceward.Conflict(), nil
	case "wait":
		return onceward.Wait(waitLongest), nil
	case "accepted":
		return onceward.Accepted(statusPath), nil
	default:
		return nil, fmt.Errorf("in-flight policy %q: use conflict, wait or accepted", policy)
	}
}

func (a *API) routes() {
	a.mux.Handle("POST /payments", a.guard.HandlerFunc(a.createPayment, onceward.Transactional()))
	a.mux.HandleFunc("GET /payments", a.listPayments)
	a.mux.HandleFunc("GET /payments/{id}", a.showPayment)
	a.mux.Handle("POST /slow", a.guard.HandlerFunc(a.beSlow,
		onceward.Reserved(onceward.FailureUnknown), onceward.Lease(slowLease), onceward.Deadline(slowLongest)))
	a.mux.HandleFunc("GET /slow", a.countSlow)
	a.mux.Handle("GET "+statusPath+"{key}", a.guard.StatusHandler())
}

// ServeHTTP implements [http.Handler]. Nobody gets past it without a known token.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := account(r); err != nil {
		w.Header().Set("WWW-Authenticate", `Bearer realm="onceward demo"`)
		fail(w, http.StatusUnauthorized, "send Authorization: Bearer alice, or bob")
		return
	}
	a.mux.ServeHTTP(w, r)
}

// account is whose request it is. Each account is a scope of its own: the same key of two accounts is two operations.
func account(r *http.Request) (string, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if ok && (token == "alice" || token == "bob") {
		return token, nil
	}
	return "", onceward.ErrUnauthenticated
}
