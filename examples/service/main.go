// Command service is a skeleton for production: a shop whose orders are transactional and whose payments call a
// provider, on PostgreSQL, with all workers, start-up checks, health, counters and an orderly end. Take it as a
// beginning. docs/production.md explains each decision.
//
//	service migrate   creates or updates the tables, as their owner, and lets the service's role use them
//	service           serves, as a role that may not change tables
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	command := serve
	if len(os.Args) > 1 && os.Args[1] == "migrate" {
		command = migrate
	}
	if err := command(ctx); err != nil {
		slog.Error("the service ends", "error", err)
		os.Exit(1)
	}
}

// These times must fit together: docs/production.md has the table.
const (
	deadline = 15 * time.Second // of a handler
	calling  = 10 * time.Second // of a call to the provider, so that the handler is there to say what its end means
	// settling is how long an answer may take to be stored: Config.SettleTimeout is 15 s by default, and what became of a
	// COMMIT whose reply was lost is asked for up to 20 s.
	settling = 20 * time.Second
	// grace is for handlers to end and settle, also for the server to write their answers.
	grace = deadline + settling + 2*time.Second
)

// schema is where all tables are.
const schema = "app"

// service is what handlers and workers share.
type service struct {
	store    *postgres.Store
	guard    *onceward.Guard
	box      *outbox.Outbox
	provider *provider.Client
	monitor  *monitor
}

// serve starts everything, or says what is wrong, and ends it in order when the context ends.
func serve(ctx context.Context) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	s := &service{
		provider: &provider.Client{URL: c.provider, HTTP: &http.Client{Timeout: calling}}, monitor: newMonitor(),
	}
	// Migrations are the owner's, and a server that can lose commits is refused.
	s.store, err = postgres.Open(ctx, c.database,
		postgres.WithSchema(schema), postgres.WithManualMigration(), postgres.WithStrictDurability())
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReady, err)
	}
	err = s.run(ctx, c)
	return errors.Join(err, s.store.Close()) // last: what has ended by now could be written down
}

var errNotReady = errors.New(`the database is not ready; without tables, run "service migrate" first`)

func (s *service) run(ctx context.Context, c config) error {
	if err := s.checkTables(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotReady, err)
	}
	routes, err := s.routes(c)
	if err != nil {
		return err
	}
	workers, err := s.workers(c)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return err
	}
	admin, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.admin)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: routes, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: grace, IdleTimeout: 2 * time.Minute,
	}
	probes := &http.Server{Handler: s.monitor.handler(s.probe), ReadHeaderTimeout: 10 * time.Second}

	// They stop in the reverse of this order, each wholly before the next.
	all := []onceward.Worker{s.guard.Server(probes, admin, time.Second)} // 4. probes are answered to the end
	all = append(all, workers...)                                        // 3. what handlers left behind is done until here
	all = append(all,
		s.guard.Server(server, listener, grace), // 2. stop accepting, let handlers end and settle
		s.monitor.drain(c.drain))                // 1. not ready any more, and time for load balancers to see it
	slog.Info("serving", "address", listener.Addr().String(), "admin", admin.Addr().String())
	return onceward.Runner{StopTimeout: max(c.drain, grace) + 10*time.Second}.Run(ctx, all...)
}

// checkTables asks for what handlers will need, with the service's own rights.
func (s *service) checkTables(ctx context.Context) error {
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.store.InTx(ctx, func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `SELECT id FROM app.orders LIMIT 0`)
		return err
	})
}

// probe asks the store for a record that is not there: whether it answers, and has its tables.
func (s *service) probe(ctx context.Context) error {
	_, err := s.store.Get(ctx, store.ID{Scope: "probe", Key: "probe"})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// routes makes the guard and what it guards.
func (s *service) routes(c config) (http.Handler, error) {
	var err error
	s.guard, err = onceward.New(s.store, onceward.Config{
		Scope: c.tenant, Secret: c.secret, OldSecrets: c.oldSecrets,
		Namespace: "shop", // tells our downstream keys from those of other services at the same provider
		Observer:  s.monitor,
		Defaults:  []onceward.Option{onceward.Deadline(deadline), onceward.InFlightWait(10 * time.Second)},
	})
	if err != nil {
		return nil, err
	}
	if s.box, err = outbox.New(s.store, outbox.Config{Source: "https://shop.example", Guard: s.guard}); err != nil {
		return nil, err
	}
	mux := onceward.NewMux()
	mux.Handle("POST /orders", s.guard.HandlerFunc(s.createOrder, onceward.Transactional()))
	mux.Handle(paymentsRoute, s.guard.HandlerFunc(s.createPayment, onceward.Reserved(onceward.FailureUnknown)))
	return mux, onceward.AuditStrict(mux.Routes()) // no POST or PATCH was forgotten
}

// workers are those in the background. A phased route would add its phase.Resumer.
func (s *service) workers(c config) ([]onceward.Worker, error) {
	cleaner, err := janitor.New(s.store, janitor.Config{Observer: s.monitor})
	if err != nil {
		return nil, err
	}
	poller, err := reconcile.NewPoller(s.guard, s.store, reconcile.Config{
		Observer: s.monitor,
		Rules: map[string]reconcile.Rule{paymentsRoute: {
			Resolver: reconcile.ResolverFunc(s.resolvePayment), Deduplicates: true, Arrival: time.Minute,
		}},
	})
	if err != nil {
		return nil, err
	}
	publisher, err := httppub.New(httppub.Config{
		Endpoint: c.warehouse, Secrets: []string{c.warehouseSecret}, AllowPrivate: true, // a system of our own
	})
	if err != nil {
		return nil, err
	}
	deliveries, err := outbox.NewWorker(s.store, outbox.WorkerConfig{
		Observer: s.monitor, Routes: map[string]outbox.Route{ordersTopic: {Handler: outbox.Publish(publisher)}},
	})
	if err != nil {
		return nil, err
	}
	return []onceward.Worker{cleaner, poller, deliveries}, nil
}
