package node

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/payments/monitor"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// system is what a node serves and does in the background.
type system struct {
	handler *http.ServeMux
	workers []onceward.Worker
}

// parts are what every system is made of.
type parts struct {
	db       *storeurl.Database
	logger   *slog.Logger
	silences *silences
	bank     *bank
	lapse    *lapse
}

// routes adds the routes that every store can serve.
func (p *parts) routes(mux *onceward.Mux, guard *onceward.Guard, agency *agency) {
	p.bank.guard = guard
	agency.routes(mux, guard)
	mux.Handle(transfers, guard.HandlerFunc(p.bank.transfer, onceward.Reserved(onceward.FailureUnknown)))
	mux.Handle(sparks, guard.HandlerFunc(spark, onceward.Reserved(onceward.FailureUnknown), onceward.Retain(Retention)))
	mux.Handle(lapses, guard.HandlerFunc(p.lapse.serve,
		onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(store.LostResume), onceward.Lease(LapseLease)))
	mux.Handle(doubts, guard.HandlerFunc(p.lapse.doubt, onceward.Reserved(onceward.FailureUnknown)))
}

// tables are those of the harder routes, on every database alike. The place of an arrival is counted from one in each
// street, and each step of a phased operation appends a stay.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS entry (id VARCHAR(64) PRIMARY KEY, reference VARCHAR(255) NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS arrival (
		street VARCHAR(255) NOT NULL, reference VARCHAR(255) NOT NULL, number BIGINT NOT NULL, place BIGINT NOT NULL)`,
	`CREATE INDEX IF NOT EXISTS arrival_street ON arrival (street)`,
	`CREATE TABLE IF NOT EXISTS stay (reference VARCHAR(255) NOT NULL, step VARCHAR(64) NOT NULL)`,
}

// full is the reference payments system with the harder routes beside it, on a database that has transactions.
func (s Settings) full(ctx context.Context, p *parts) (*system, error) {
	if err := p.db.Define(ctx, tables...); err != nil {
		return nil, err
	}
	appender := appender{p.db}
	post, err := newPost(p.db, p.silences)
	if err != nil {
		return nil, err
	}
	agency, err := newAgency(p.bank, s.Generation, rowNoter(p.db))
	if err != nil {
		return nil, err
	}
	watching, err := monitor.New(monitor.Config{})
	if err != nil {
		return nil, err
	}
	paying, err := payments.New(ctx, payments.Config{
		Database: p.db, MySQL: p.db.Engine() == storeurl.MySQL, Monitor: watching,
		Secret: []byte(fingerprintSecret), Tokens: Tokens, Provider: s.Acquirer,
		WebhookSecret: WebhookSecret, WebhookSecrets: tenantSecrets(),
		Timing: Timing, Logger: p.logger, Observer: onceward.ObserverFunc(p.db.Store.(*journaled).observe),
		Routes: func(mux *onceward.Mux, guard *onceward.Guard) {
			p.routes(mux, guard, agency)
			mux.Handle(entries, guard.HandlerFunc(appender.appendEntry, onceward.Transactional()))
			mux.Handle(parcels, guard.HandlerFunc(post.ship, onceward.Transactional()))
			mux.Handle(flashes, guard.HandlerFunc(appender.appendEntry, onceward.Transactional(), onceward.Retain(Retention)))
		},
		Rules: agency.rules(),
	})
	if err != nil {
		return nil, err
	}
	worker, err := post.worker(p.logger)
	if err != nil {
		return nil, err
	}
	resumer, err := agency.resumer(p.db, p.logger)
	if err != nil {
		return nil, err
	}
	handler := http.NewServeMux()
	handler.Handle("POST "+ComparePath, &auditor{system: paying})
	handler.Handle("/", paying)
	return &system{handler, []onceward.Worker{onceward.WorkerFunc(paying.Work), worker, resumer}}, nil
}
