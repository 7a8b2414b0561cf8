// Command service is a skeleton for production: a shop whose orders are transactional and whose payments call a
// provider, on PostgreSQL, with all workers, start-up checks, health, metrics and an orderly end. Take it as a
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
	"github.com/onceward/onceward/telemetry"
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

// These times must be consistent: docs/production.md has the table.
const (
	starting = 30 * time.Second // until the database has answered, or the start fails
	reading  = 5 * time.Second  // reading a request with its body: our requests are small
	storing  = 5 * time.Second  // one store call before a handler begins
	waiting  = 5 * time.Second  // a duplicate waits for the first request with its key
	handling = 5 * time.Second  // a handler without its call to the provider; it can still report the end of the call
	settling = 20 * time.Second // until an answer is stored, or the result of its COMMIT is known
	probing  = 3 * time.Second  // answering a probe
	stopping = 15 * time.Second // a worker without a grace of its own, the store, and the server for probes
)

// deadline returns the deadline of a handler.
func (c *config) deadline() time.Duration { return c.calling + handling }

// longest returns the longest time of a request: a duplicate may wait in vain, and then execute.
func (c *config) longest() time.Duration {
	return reading + storing + waiting + storing + c.deadline() + settling
}

// schema is the schema of all tables.
const schema = "app"

// service is shared by handlers and workers.
type service struct {
	store    *postgres.Store
	guard    *onceward.Guard
	box      *outbox.Outbox
	provider *provider.Client
	monitor  *monitor
}

// serve starts everything, or returns what is wrong. It shuts down in order when the context ends.
func serve(ctx context.Context) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	s := &service{provider: &provider.Client{URL: c.provider, HTTP: &http.Client{Timeout: c.calling}}}
	if s.monitor, err = newMonitor(); err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, starting)
	defer cancel()
	workers, err := s.start(start, c)
	switch {
	case err != nil && ctx.Err() != nil:
		slog.Info("told to stop while starting", "error", err)
		return nil
	case err != nil:
		return err
	}
	return onceward.Runner{StopTimeout: c.drain + stopping}.Run(ctx, workers...)
}

var errNotReady = errors.New(`the database is not ready; without tables, run "service migrate" first`)

// start checks everything, and returns the workers to run.
func (s *service) start(ctx context.Context, c config) (_ []onceward.Worker, err error) {
	// The owner migrates the tables. A server that can lose commits is refused.
	s.store, err = postgres.Open(ctx, c.database,
		postgres.WithSchema(schema), postgres.WithManualMigration(), postgres.WithStrictDurability())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.store.Close())
		}
	}()
	if err := s.checkTables(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	routes, err := s.routes(c)
	if err != nil {
		return nil, err
	}
	background, err := s.workers(c)
	if err != nil {
		return nil, err
	}
	return s.inOrder(ctx, c, routes, background)
}

// inOrder adds the servers to the background workers. The workers
// stop in the reverse order of the result, one after the other.
func (s *service) inOrder(
	ctx context.Context, c config, routes http.Handler, background []onceward.Worker,
) ([]onceward.Worker, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return nil, err
	}
	admin, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.admin)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: routes, ReadTimeout: reading, WriteTimeout: c.longest(), IdleTimeout: 2 * time.Minute}
	// A new connection counts as busy until it has sent a request or the read timeout is over.
	probes := &http.Server{Handler: s.monitor.handler(s.probe), ReadTimeout: probing, IdleTimeout: 2 * time.Minute}
	all := []onceward.Worker{
		s.guard.Server(probes, admin, stopping), // 5. probes are answered until the end
		storeCloser{s.store},                    // 4. until here, results could be stored
	}
	all = append(all, background...) // 3. until here, the work that handlers left behind is done
	all = append(all,
		s.guard.Server(server, listener, c.longest()), // 2. stop accepting, let handlers end and settle
		s.monitor.drain(c.drain))                      // 1. report not ready, and give load balancers time to notice
	slog.Info("serving", "address", listener.Addr().String(), "admin", admin.Addr().String())
	return all, nil
}

// storeCloser is the worker that closes the store.
type storeCloser struct{ store *postgres.Store }

func (c storeCloser) Run(ctx context.Context) error {
	<-ctx.Done()
	return c.store.Close()
}

// checkTables checks what handlers need, with the service's own rights.
func (s *service) checkTables(ctx context.Context) error {
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.store.InTx(ctx, func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `SELECT id FROM app.orders LIMIT 0`)
		return err
	})
}

// probe reads a record that does not exist, to check that the store answers and has its tables.
func (s *service) probe(ctx context.Context) error {
	_, err := s.store.Get(ctx, store.ID{Scope: "probe", Key: "probe"})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// routes returns the guard's routes.
func (s *service) routes(c config) (http.Handler, error) {
	var err error
	s.guard, err = onceward.New(s.store, onceward.Config{
		Scope: c.tenant, Secret: c.secret, OldSecrets: c.oldSecrets,
		Namespace: "shop", // distinguishes our downstream keys from other services' at the same provider
		Observer:  s.monitor, Propagator: s.monitor, StoreTimeout: storing,
		Defaults: []onceward.Option{onceward.Deadline(c.deadline()), onceward.InFlightWait(waiting)},
	})
	if err != nil {
		return nil, err
	}
	s.box, err = outbox.New(s.store, outbox.Config{
		Source: "https://shop.example", Guard: s.guard, Propagator: s.monitor,
	})
	if err != nil {
		return nil, err
	}
	mux := onceward.NewMux()
	mux.Handle("POST /orders", s.guard.HandlerFunc(s.createOrder, onceward.Transactional()))
	mux.Handle(paymentsRoute, s.guard.HandlerFunc(s.createPayment, onceward.Reserved(onceward.FailureUnknown)))
	return mux, onceward.AuditStrict(mux.Routes()) // no POST or PATCH was forgotten
}

// workers returns the background workers. A phased route would add its phase.Resumer.
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
		Observer: s.monitor, Propagator: s.monitor,
		Routes: map[string]outbox.Route{ordersTopic: {Handler: outbox.Publish(publisher)}},
	})
	if err != nil {
		return nil, err
	}
	exporter, err := s.monitor.Exporter(telemetry.ExporterConfig{Store: s.store, Guard: s.guard})
	if err != nil {
		return nil, err
	}
	return []onceward.Worker{cleaner, poller, deliveries, exporter}, nil
}
