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
	// Database is the store of the records and of the system's tables.
	Database Database
	// MySQL means that Database is MySQL or MariaDB, whose tables
	// are declared differently. Default: it is SQLite or PostgreSQL.
	MySQL bool
	// Items replaces Database by a store without SQL, which has no outbox and no comparison of ledgers.
	Items Items
	// Secret is the key of the fingerprints: at least 16 random bytes, the same on every node and after restarts.
	Secret []byte
	// Tokens are the accounts by their bearer tokens. An account is
	// a scope: the same key in two accounts means two operations.
	Tokens map[string]string
	// Provider is the URL of the payment provider.
	Provider string
	// WebhookSecret is the key with which the provider signs its webhooks: at least 16 bytes.
	WebhookSecret string
	// WebhookSecrets are the provider's signing keys for accounts that are customers of its own. Their events arrive
	// at /events/{account}, and cause look-ups at the provider, only for records of that account. Default: none.
	WebhookSecrets map[string]string
	// Timing is the system's timeouts and intervals. Default: see [Timing].
	Timing Timing
	// Since is the start of the books: charges from this time on are compared
	// with the provider's. Default: a window before the first comparison.
	Since time.Time
	// InFlight is the answer to a duplicate of a request in flight: conflict, wait or accepted. Default: conflict.
	InFlight string
	// Routes adds further routes, which are audited like the others. Default: none.
	Routes func(mux *onceward.Mux, guard *onceward.Guard)
	// Rules are the ways to settle unknown outcomes of these routes, by the name of the operation. Default: none.
	Rules map[string]reconcile.Rule
	// Unprotected means that the same handlers run without Onceward, as in most services, to show what happens then.
	Unprotected bool
	// Monitor makes metrics and traces: package monitor does it with
	// OpenTelemetry. Default: none, and the system has only counters.
	Monitor Monitor
	// Observer observes events after the counters and the monitor. Default: none.
	Observer onceward.Observer
	// Logger is the logger for operators. Default: [slog.Default].
	Logger *slog.Logger
}

// Monitor makes metrics and traces of the system.
type Monitor interface {
	onceward.Observer
	onceward.Propagator
	// Handler serves the metrics, at GET /metrics.
	http.Handler
	// Exporter returns the worker that counts the store's contents, for the metrics.
	Exporter(s store.Store, guard *onceward.Guard, logger *slog.Logger) (onceward.Worker, error)
}

// minWebhookSecret is the shortest secret, in bytes, with which a signature cannot be guessed.
const minWebhookSecret = 16

// check refuses configurations that cannot work. The parts of the system check the remaining fields.
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

// Timing is the system's timeouts and intervals. Fields that are zero get their defaults.
type Timing struct {
	// Lease is how long the right to execute lasts after the last heartbeat of its owner. Default: 30 s.
	Lease time.Duration
	// Call limits the time of a call to the provider. Default: 10 s.
	Call time.Duration
	// Arrival is the longest time for which a request can be on its way to the provider. Default: a minute.
	Arrival time.Duration
	// Store limits the time of a store call before and after a handler. Default: the default of [onceward.Config].
	Store time.Duration
	// Look is the interval of the workers in the background. Default: 5 s.
	Look time.Duration
	// Backoff is the first pause before a retry of a failure. Default: 1 s.
	Backoff time.Duration
	// Compare is the time between two comparisons with the provider's ledger. Default: a day.
	Compare time.Duration
	// Settle is the age at which a window is compared. Default: an hour.
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

// System is the complete system: an [http.Handler], and the work in the background.
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

// New creates the tables and assembles the system. It refuses to start if a route changes state and is not protected.
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

// newTransport returns a transport that keeps enough connections to the provider for all concurrent calls.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	return t
}

// exempt are the routes that change state but need no key: the receiver recognises a webhook by the id of its event.
var exempt = []string{"POST /events", "POST /events/{account}"}

// openStorage sets the storage, and the worker that makes ordered charges.
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

// transactional protects a handler that uses only the database.
func (s *System) transactional(h http.HandlerFunc) http.Handler {
	if s.config.Unprotected {
		return s.inTransaction(h)
	}
	return s.guard.HandlerFunc(h, onceward.Transactional())
}

// reserved protects a handler that calls another system. It declares what a failure means: the outcome is unknown.
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

// Counters returns the counters of this process.
func (s *System) Counters() *Counters { return s.counters }

// Work does the work in the background until the context ends, and then returns nil: it charges, settles,
// resumes, compares, sweeps, reaps and counts. Any number of processes may run it at the same time.
// Failures are logged and retried; an error means that a worker can never work, or has not stopped.
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
