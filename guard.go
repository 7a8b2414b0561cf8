package onceward

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/problembase"
	"github.com/onceward/onceward/store"
)

// Guard is the engine: it reserves, executes, keeps the lease and settles. It holds no state that another node would
// need; the store decides. Make one for each store and share it.
type Guard struct {
	store           store.Store
	transactor      store.Transactor
	waiter          store.Waiter
	lateCompletions store.LateCompletionKeeper
	executions      store.ExecutionAuditor
	config          Config
	secrets         []secretKey
	downstream      downstreamRing
	handling        atomic.Int64 // requests in progress, see Wait
	keeper          keeper
	orphans         orphans
	waiting         atomic.Int64
	logged          loggedMistakes
	names           operationNames
	shared          sync.Once // guards the warning about a shared provider
}

// New returns a guard over a store, or an error that describes what is wrong in the configuration.
func New(s store.Store, config Config) (*Guard, error) {
	if s == nil {
		return nil, errors.New("onceward: the store is nil")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	secrets, err := newSecretKeys(append([][]byte{config.Secret}, config.OldSecrets...))
	if err != nil {
		return nil, err
	}
	downstream, err := newDownstreamRing(&config)
	if err != nil {
		return nil, err
	}
	g := &Guard{store: s, config: config, secrets: secrets, downstream: downstream}
	g.keeper.guard, g.orphans.guard = g, g
	g.names.add(config.Operations...)
	g.transactor, _ = store.As[store.Transactor](s)
	g.waiter, _ = store.As[store.Waiter](s)
	g.lateCompletions, _ = store.As[store.LateCompletionKeeper](s)
	g.executions, _ = store.As[store.ExecutionAuditor](s)
	return g, nil
}

// settings builds a route's settings, and refuses settings that the store cannot support.
func (g *Guard) settings(options []Option) (*settings, error) {
	s, err := newSettings(g.config.Defaults, options)
	if err != nil {
		return nil, err
	}
	s.headers.replayed = g.config.ReplayedHeader
	if s.mode == modeTransactional {
		if g.transactor == nil {
			return nil, errors.New("onceward: Transactional() needs a store that shares its transactions, " +
				"such as PostgreSQL or SQLite: this one does not; use Reserved(…)")
		}
		if longest := g.transactor.LongestWork(s.lease); longest > 0 {
			s.deadline = min(s.deadline, longest)
		}
	}
	if s.isolation != sql.LevelDefault && s.mode != modeTransactional {
		return nil, errors.New("onceward: Isolation(…) is the level of a transaction: it needs Transactional()")
	}
	if s.audits && g.executions == nil {
		return nil, errors.New("onceward: AuditExecutions(…) needs a store that keeps an audit of executions, a " +
			"store.ExecutionAuditor: this one does not")
	}
	return s, nil
}

// observe sends an event to the observer and logs a panic of the observer: the reported work must continue, and in some
// goroutines a panic would end the process.
func (g *Guard) observe(ctx context.Context, e ObserverEvent) {
	if g.config.Observer == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			g.config.Logger.ErrorContext(ctx, "onceward: the observer panicked", "event", fmt.Sprintf("%T", e), "panic", p)
		}
	}()
	g.config.Observer.Observe(ctx, e)
}

// storeFailed logs and reports a failed store call. Calls the circuit breaker rejected are logged at debug level: the
// failure of the store was already reported.
func (g *Guard) storeFailed(ctx context.Context, operation, call string, err error) {
	level := slog.LevelWarn
	if errors.Is(err, store.ErrNotSent) {
		level = slog.LevelDebug
	}
	g.config.Logger.Log(ctx, level, "onceward: store failed", "call", call, "operation", operation, "error", err)
	g.observe(ctx, StoreFailedEvent{Operation: operation, Call: call, Err: err})
}

// ActiveLeases returns how many attempts of this guard hold a lease now, for a gauge. Attempts in a transaction hold
// none.
func (g *Guard) ActiveLeases() int { return int(g.keeper.active.Load()) }

// noteFenced logs and reports a refused write. It ignores other errors.
func (g *Guard) noteFenced(ctx context.Context, id store.ID, operation string, err error) {
	var fenced *store.FencedError
	if !errors.As(err, &fenced) {
		return
	}
	g.config.Logger.WarnContext(ctx, "onceward: write refused", "operation", operation, "error", err)
	g.observe(ctx, FencedEvent{ID: id, Operation: operation, Err: fenced})
}

// ScopeFunc returns the security boundary of a request's key, from authentication: a tenant, an account, a token. It
// must not read the body. An error that wraps [ErrUnauthenticated], or an empty scope, is answered with 401, any other
// error with 503; nothing is executed. Return [Unauthenticated] to send a challenge.
type ScopeFunc func(r *http.Request) (string, error)

// SingleScope returns a [ScopeFunc] that returns the same scope for every request, for a service with one caller.
func SingleScope(scope string) ScopeFunc {
	return func(*http.Request) (string, error) { return scope, nil }
}

// Profile chooses the status codes of Onceward's own answers.
type Profile uint8

const (
	// ProfileIETF answers a mismatch with 422, as the IETF draft does. This is the default.
	ProfileIETF Profile = iota
	// ProfileStripe answers a mismatch with 400. Stripe stores no result of a request that fails its validation: a
	// handler does the same with [Operation.Reject], in either profile.
	ProfileStripe
)

// Config configures a [Guard].
type Config struct {
	// Scope returns the scope of a request. It is required for handlers, and has no default; [Guard.Do] uses the scope
	// of its [Call].
	Scope ScopeFunc
	// Secret keys the fingerprints: at least 16 random bytes, the same on every node and over restarts. It is required,
	// and has no default.
	Secret []byte
	// OldSecrets are earlier secrets that records may still depend on. Keep each for the longest retention, and until
	// no operation that used it is in progress or unknown. Default: none.
	OldSecrets [][]byte
	// DownstreamSecret keys the idempotency keys that are sent to other systems, see [Operation.DownstreamKey], so that
	// no outsider can compute them: at least 16 random bytes, the same on every node and over restarts. A record keeps
	// the id of its secret, so that its keys stay the same over a rotation. With its own secret, which can be rotated
	// less often than Secret, downstream keys stay the same for longer than the records live. Default: a secret derived
	// from Secret.
	DownstreamSecret []byte
	// OldDownstreamSecrets are earlier downstream secrets that records may still depend on; keep each for as long as
	// OldSecrets. Secrets derived from Secret and OldSecrets are included automatically. Default: none.
	OldDownstreamSecrets [][]byte
	// Namespace separates the downstream keys of this service from the keys of other services that share an account at
	// a provider, and perhaps scopes, keys and secrets too, such as production and staging: without it the second
	// service would get the effect of the first. It is part of the identity of a record's secret: choose it before the
	// first operation. Default: empty, and a sign that a provider is shared is logged; see [Guard.WarnSharedProvider].
	Namespace string
	// Operations are names of operations in the store that are not routes of this guard: operations of [Guard.Do],
	// operations that other processes serve, and operations whose routes were renamed. Pollers and resumers check the
	// operations in their own configuration against these names and the routes: see [Guard.CheckOperations]. Default:
	// none.
	Operations []string
	// ProblemBase comes before the code in the type of Onceward's own answers, and should lead to their documentation:
	// a URI such as "https://api.example.com/problems#", which ends in one of / # = : ? because the code follows
	// directly. Default: [DefaultProblemBase].
	ProblemBase string
	// ProblemCode renames the codes of Onceward's own answers, for clients that expect other codes: see [DraftCode].
	// The type, observers and logs keep Onceward's codes. Default: no renaming.
	ProblemCode func(code string) string
	// Profile chooses the status codes of Onceward's own answers. Default: [ProfileIETF].
	Profile Profile
	// Keys sets which keys are accepted. Default: as the fields of [KeyRules] document.
	Keys KeyRules
	// ReplayedHeader is the name of the header that marks a replay. Default: Idempotent-Replayed.
	ReplayedHeader string
	// Defaults are options for every route, which the route's own options override. Default: none.
	Defaults []Option
	// MaxWaiters is how many requests may wait for an operation in flight at the same time; further requests are
	// answered with 409 immediately. Default: 1024.
	MaxWaiters int
	// StoreTimeout bounds each call to the store. Less than 1 ms is refused. Default: 5 s.
	StoreTimeout time.Duration
	// SettleTimeout bounds how long storing an answer is retried before the outcome becomes unknown. Default: 15 s.
	SettleTimeout time.Duration
	// TraceID returns the id of the trace that a context belongs to; it is kept with the record. Default: the TraceID
	// method of Propagator.
	TraceID func(ctx context.Context) string
	// Propagator lets an attempt that runs without its caller belong to the trace of the first execution. Default:
	// none.
	Propagator Propagator
	// Limiter bounds the requests of one scope: new keys, look-ups, mismatches. Package limit has one. Default: none.
	Limiter Limiter
	// Observer receives the guard's events. Default: none.
	Observer Observer
	// Logger logs what an operator should know: outcomes that became unknown, refused writes. Default: [slog.Default].
	Logger *slog.Logger
}

// These are the defaults of Config.
const (
	defaultReplayedHeader = "Idempotent-Replayed"
	defaultMaxWaiters     = 1024
	defaultStoreTimeout   = 5 * time.Second
	leastStoreTimeout     = time.Millisecond
	defaultSettleTimeout  = 15 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	keys, err := c.Keys.withDefaults()
	if err != nil {
		return c, err
	}
	c.Keys = keys
	if len(c.Secret) == 0 {
		return c, errors.New("onceward: Config.Secret is missing: give it 16 random bytes or more, " +
			"the same on every node and over restarts")
	}
	if c.Profile > ProfileStripe {
		return c, fmt.Errorf("onceward: profile %d does not exist: use onceward.ProfileIETF or onceward.ProfileStripe",
			c.Profile)
	}
	if c.MaxWaiters < 0 || c.StoreTimeout < 0 || c.SettleTimeout < 0 {
		return c, errors.New("onceward: MaxWaiters, StoreTimeout and SettleTimeout cannot be negative")
	}
	if c.ProblemBase == "" {
		c.ProblemBase = DefaultProblemBase
	}
	if err := problembase.Check(c.ProblemBase); err != nil {
		return c, fmt.Errorf("onceward: Config.ProblemBase: %w", err)
	}
	if c.ProblemCode == nil {
		c.ProblemCode = func(code string) string { return code }
	}
	if c.ReplayedHeader == "" {
		c.ReplayedHeader = defaultReplayedHeader
	}
	c.ReplayedHeader = http.CanonicalHeaderKey(c.ReplayedHeader)
	if c.MaxWaiters == 0 {
		c.MaxWaiters = defaultMaxWaiters
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = defaultStoreTimeout
	}
	if c.StoreTimeout < leastStoreTimeout {
		return c, fmt.Errorf("onceward: no store answers within a StoreTimeout of %s; the least is %s",
			c.StoreTimeout, leastStoreTimeout)
	}
	if c.SettleTimeout == 0 {
		c.SettleTimeout = defaultSettleTimeout
	}
	if c.TraceID == nil && c.Propagator != nil {
		c.TraceID = c.Propagator.TraceID
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}
