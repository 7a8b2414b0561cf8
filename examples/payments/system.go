package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
)

// Config configures a [System]. Database or Items, Secret, Tokens, Provider and WebhookSecret are required.
type Config struct {
	// Database keeps the records and the tables of the system.
	Database Database
	// MySQL says that Database is MySQL or MariaDB, whose tables are declared in another way. Default: it is SQLite or
	// PostgreSQL.
	MySQL bool
	// Items keeps records and tables on a store without SQL instead. There is no outbox there, and no comparison of ledgers.
	Items Items
	// Secret keys the fingerprints: at least 16 random bytes, the same on every node and over restarts.
	Secret []byte
	// Tokens are the accounts by their bearer tokens. An account is a scope: the same key of two accounts is two
	// operations.
	Tokens map[string]string
	// Provider is the URL of the payment provider.
	Provider string
	// WebhookSecret is what the provider signs its webhooks with: at least 16 bytes.
	WebhookSecret string
	// WebhookSecrets are what the provider signs with for accounts that are customers of its own: their events come to
	// /events/{account}, and have the provider asked about records of that account alone. Default: none.
	WebhookSecrets map[string]string
	// Timing says how long things take. Default: see [Timing].
	Timing Timing
	// Since is when the books begin: charges from then on are compared with the provider's. Default: a window before
	// the first comparison.
	Since time.Time
	// InFlight is what a duplicate of a request in flight gets: conflict, wait or accepted. Default: conflict.
	InFlight string
	// Routes adds routes of one's own, which are audited like the others. Default: none.
	Routes func(mux *onceward.Mux, guard *onceward.Guard)
	// Rules say how unknown outcomes of these routes are settled, by the name of the operation. Default: none.
	Rules map[string]reconcile.Rule
	// Unprotected leaves Onceward out and runs the same handlers as most services do, to see what happens then.
	Unprotected bool
	// Monitor makes metrics and traces of what happens: package monitor makes one of OpenTelemetry. Default: none, and the
	// system has counters alone.
	Monitor Monitor
	// Observer gets what happens, after the counters and the monitor. Default: none.
	Observer onceward.Observer
	// Logger gets what an operator should know. Default: [slog.Default].
	Logger *slog.Logger
}

// Monitor makes metrics and traces of what happens in the system.
type Monitor interface {
	onceward.Observer
	onceward.Propagator
	// Handler serves the metrics, at GET /metrics.
	http.Handler
	// Exporter returns the worker that counts what is in the store, for the metrics.
	Exporter(s store.Store, guard *onceward.Guard, logger *slog.Logger) (onceward.Worker, error)
}

// minWebhookSecret is the least that keeps a signature from being guessed, in bytes.
const minWebhookSecret = 16

// check refuses what could not work. What it leaves out the parts of the system check themselves.
func (c *Config) check() error {
	_, unnamed := c.Tokens[""]
	switch {
	case (c.Database == nil) == (c.Items == nil):
		return errors.New("payments: one of Config.Database and Config.Items is needed: *storeurl.Database is a database")
	case c.Items != nil && c.Unprotected:
		return errors.New("payments: Config.Unprotected is for a database: on DynamoDB it is the guard that commits")
	case len(c.Tokens) == 0 || unnamed:
		return errors.New("payments: Config.Tokens is empty, or holds an empty token: it says whose request is whose")
	case c.Provider == "":
		return errors.New("payments: Config.Provider is missing: it is the URL of the payment provider")
	case len(c.WebhookSecret) < minWebhookSecret:
		return fmt.Errorf("payments: Config.WebhookSecret has %d bytes, want at least %d: it is what the provider signs with",
			len(c.WebhookSecret), minWebhookSecret)
	default:
		return nil
	}
}

// Timing is how long things take. What is zero has its default.
type Timing struct {
	// Lease is how long the right to execute lasts without a sign of life of its owner. Default: 30 s.
	Lease time.Duration
	// Call bounds a call to the provider. Default: 10 s.
	Call time.Duration
	// Arrival is the longest time for which a request can be on its way to the provider. Default: a minute.
	Arrival time.Duration
	// Store bounds a call to the store before and after a handler. Default: that of [onceward.Config].
	Store time.Duration
	// Look is the time between two looks of the workers in the background. Default: 5 s.
	Look time.Duration
	// Backoff is the time before something that failed is tried again, at first. Default: 1 s.
	Backoff time.Duration
	// Compare is the time between two comparisons with the provider's ledger. Default: a day.
	Compare time.Duration
	// Settle is how old a window must be to be compared. Default: an hour.
	Settle time.Duration
}

func (t *Timing) setDefaults() {
	t.Lease = cmp.Or(t.Lease, 30*time.Second)
	t.Call = cmp.Or(t.Call, 10*time.Second)
	t.Arrival = cmp.Or(t.Arrival, time.Minute)
	t.Look = cmp.Or(t.Look, 5*time.Second)
	t.Backoff = cmp.Or(t.Backoff, time.Second)
	t.Compare = cmp.Or(t.Compare, ledger.DefaultInterval)
	t.Settle = cmp.Or(t.Settle, ledger.DefaultSettle)
}

// System is the whole of it: an [http.Handler], and the work in the background.
type System struct {
	config   Config
	store    Store
	storage  Storage
	db       Database
	provider *provider.Client
	guard    *onceward.Guard
	mux      *onceward.Mux
	counters *Counters
	exporter onceward.Worker // nil without a monitor

	bookings *phase.Operation[Booking]
	poller   *reconcile.Poller
	worker   onceward.Worker
	resumer  *phase.Resumer
	compares []*ledger.Comparer
	janitor  *janitor.Janitor
}

// New creates the tables and puts the system together. It refuses to start with a route that changes state and is not
// protected.
func New(ctx context.Context, config Config) (*System, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	config.Timing.setDefaults()
	config.Logger = cmp.Or(config.Logger, slog.Default())
	s := &System{
		config: config, db: config.Database, mux: onceward.NewMux(),
		provider: &provider.Client{URL: config.Provider, HTTP: &http.Client{Transport: newTransport()}},
	}
	if config.Items != nil {
		s.store = config.Items.Records()
	} else {
		s.store = s.db
	}
	s.counters = newCounters(config.Monitor, config.Observer)
	inFlight, err := inFlightOption(config.InFlight)
	if err != nil {
		return nil, err
	}
	s.guard, err = onceward.New(s.store, onceward.Config{
		Scope: s.account, Secret: config.Secret, Observer: s.counters, Propagator: config.Monitor, Logger: config.Logger,
		StoreTimeout: config.Timing.Store,
		Defaults:     []onceward.Option{inFlight, onceward.Lease(config.Timing.Lease), onceward.Retain(retention)},
	})
	if err != nil {
		return nil, err
	}
	if err := s.openStorage(); err != nil {
		return nil, err
	}
	if err := s.storage.Create(ctx); err != nil {
		return nil, err
	}
	if err := s.assemble(); err != nil {
		return nil, err
	}
	if config.Unprotected {
		return s, nil
	}
	if err := onceward.AuditStrict(s.mux.Routes(), exempt...); err != nil {
		return nil, err
	}
	return s, nil
}

// newTransport keeps enough connections to the provider for all that run at one time.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	return t
}

// exempt are the routes that change state and need no key: the receiver recognises a webhook by the id of its event.
var exempt = []string{"POST /events", "POST /events/{account}"}

// openStorage chooses where things are written down, and who charges what was ordered there.
func (s *System) openStorage() error {
	if s.config.Items != nil {
		s.storage, s.worker = s.config.Items, s.config.Items.Charger(s.charging())
		return nil
	}
	box, err := outbox.New(s.db, outbox.Config{
		Source: "https://payments.example", Guard: s.guard, Propagator: s.config.Monitor,
	})
	if err != nil {
		return err
	}
	rows := &sqlStorage{s.db, box, s.config.MySQL}
	s.storage = rows
	if s.worker, err = s.newWorker(rows); err != nil {
		return err
	}
	s.compares, err = s.Comparers("", s.config.Since, s.config.Timing.Compare)
	return err
}

func (s *System) assemble() (err error) {
	if s.config.Monitor != nil {
		if s.exporter, err = s.config.Monitor.Exporter(s.store, s.guard, s.config.Logger); err != nil {
			return err
		}
	}
	s.bookings = s.defineBookings()
	if s.poller, err = s.newPoller(); err != nil {
		return err
	}
	s.resumer, err = phase.NewResumer(s.guard, s.store, phase.ResumerConfig{
		Operations: []phase.Resumable{s.bookings}, Others: Comparisons,
		Interval: s.config.Timing.Look, Observer: s.counters, Logger: s.config.Logger,
	})
	if err != nil {
		return err
	}
	cleaning := janitor.Config{Interval: s.config.Timing.Look, Observer: s.counters, Logger: s.config.Logger}
	if s.janitor, err = janitor.New(s.store, cleaning); err != nil {
		return err
	}
	return s.routes()
}

func (s *System) routes() error {
	receiver, err := s.newReceiver()
	if err != nil {
		return err
	}
	tenants, err := s.newTenants()
	if err != nil {
		return err
	}
	s.mux.Handle("POST /payments", s.transactional(s.createPayment))
	s.mux.HandleFunc("GET /payments", s.listPayments)
	s.mux.HandleFunc("GET /payments/{id}", s.showPayment)
	s.mux.Handle("POST /payments/{id}/refund", s.reserved(s.refundPayment))
	s.mux.Handle("POST /bookings", s.bookingHandler())
	s.mux.Handle("GET "+statusPath+"{key}", s.guard.StatusHandler())
	s.mux.Handle("POST /events", receiver)
	s.mux.Handle("POST /events/{account}", tenants)
	s.mux.HandleFunc("GET "+policyPath, showPolicy)
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.Handle("GET /counters", s.counters)
	if s.config.Monitor != nil {
		s.mux.Handle("GET /metrics", s.config.Monitor)
	}
	if s.config.Routes != nil {
		s.config.Routes(s.mux, s.guard)
	}
	return nil
}

// transactional puts the guard in front of a handler that works in the database alone.
func (s *System) transactional(h http.HandlerFunc) http.Handler {
	if s.config.Unprotected {
		return s.inTransaction(h)
	}
	return s.guard.HandlerFunc(h, onceward.Transactional())
}

// reserved puts the guard in front of a handler that calls another system. What a failure means is said aloud: the
// outcome is unknown.
func (s *System) reserved(h http.HandlerFunc) http.Handler {
	if s.config.Unprotected {
		return withoutGuard(h)
	}
	return s.guard.HandlerFunc(h, onceward.Reserved(onceward.FailureUnknown))
}

const (
	waitLongest = time.Minute
	statusPath  = "/operations/"
)

func inFlightOption(policy string) (onceward.Option, error) {
	switch policy {
	case "", "conflict":
		return onceward.InFlightConflict(), nil
	case "wait":
		return onceward.InFlightWait(waitLongest), nil
	case "accepted":
		return onceward.InFlightAccepted(statusPath), nil
	default:
		return nil, fmt.Errorf("in-flight policy %q: use conflict, wait or accepted", policy)
	}
}

// ServeHTTP implements [http.Handler].
func (s *System) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	linkPolicy(w)
	s.authenticate(s.mux).ServeHTTP(w, r)
}

// Waiting counts the charges that were ordered and are not made yet.
func (s *System) Waiting(ctx context.Context) (int, error) {
	found, err := s.storage.Messages(ctx)
	return found.Waiting, err
}

// Counters are what has happened in this process.
func (s *System) Counters() *Counters { return s.counters }

// Work does what goes on in the background until the context ends, and then returns nil: it charges, settles, resumes,
// compares, sweeps, reaps and counts. Any number of processes may do it at one time. What fails is logged and tried
// again; an error says that a worker can never work, or has not stopped.
func (s *System) Work(ctx context.Context) error {
	runner := onceward.Runner{Logger: s.config.Logger}
	if s.config.Unprotected {
		return runner.Run(ctx, s.worker)
	}
	workers := []onceward.Worker{s.janitor}
	if s.exporter != nil {
		workers = append(workers, s.exporter)
	}
	for _, comparer := range s.compares {
		workers = append(workers, comparer)
	}
	return runner.Run(ctx, append(workers, s.resumer, s.poller, s.worker)...)
}
