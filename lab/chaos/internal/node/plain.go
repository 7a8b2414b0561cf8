package node

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/storeurl"
)

// Open opens the store that a URL names. Redis and DynamoDB have no tables to read. So many replicas of a Redis
// must have a write before it counts.
func Open(ctx context.Context, url string, replicas int, options ...storeurl.Option) (*storeurl.Database, error) {
	logger := slog.New(slog.DiscardHandler)
	options = append(options, storeurl.WithLogger(logger))
	if collects(url) {
		s, err := storeurl.OpenStore(ctx, url, options...)
		if err != nil {
			return nil, err
		}
		return &storeurl.Database{Store: wrap.New(s, nil)}, nil
	}
	if !strings.HasPrefix(url, "redis") {
		return storeurl.Open(ctx, url, options...)
	}
	with := []redis.Option{redis.WithLogger(logger)}
	if replicas > 0 {
		with = append(with, redis.WithReplicas(replicas, Timing.Call))
	}
	s, err := redis.Open(ctx, url, with...)
	if err != nil {
		return nil, err
	}
	return &storeurl.Database{Store: wrap.New(s, nil)}, nil
}

// collects reports whether a store commits what its handlers have collected, in the place of tables.
func collects(url string) bool { return strings.HasPrefix(url, "dynamodb:") }

// Transacts reports whether a store has the tables of an application, which transactions are about.
func Transacts(db *storeurl.Database) bool { return db.Reads() != nil }

// plain is the system on a store without tables: the harder routes alone, whose effects are in the ledger of the bank,
// entries where they can be collected, and those who settle, resume and sweep.
func (s Settings) plain(_ context.Context, p *parts) (*system, error) {
	guard, err := onceward.New(p.db.Store, onceward.Config{
		Scope: account, Secret: []byte(fingerprintSecret), Logger: p.logger,
		Defaults: []onceward.Option{onceward.Lease(Timing.Lease), onceward.Retain(24 * time.Hour)},
	})
	if err != nil {
		return nil, err
	}
	agency, err := newAgency(p.bank, s.Generation, s.noteFile)
	if err != nil {
		return nil, err
	}
	mux := onceward.NewMux()
	p.routes(mux, guard, agency)
	if collects(s.Store) {
		mux.Handle(entries, guard.HandlerFunc(appendItem, onceward.Transactional()))
	}
	if err := onceward.AuditStrict(mux.Routes()); err != nil {
		return nil, err
	}
	poller, err := reconcile.NewPoller(guard, p.db.Store, reconcile.Config{
		Rules: agency.rules(), Interval: Timing.Look, MinBackoff: Timing.Backoff, MaxBackoff: 20 * Timing.Backoff,
		MaxAttempts: 1000, Timeout: Timing.Call, Logger: p.logger,
	})
	if err != nil {
		return nil, err
	}
	cleaner, err := janitor.New(p.db.Store, janitor.Config{Interval: Timing.Look, Logger: p.logger})
	if err != nil {
		return nil, err
	}
	resumer, err := agency.resumer(p.db, p.logger)
	if err != nil {
		return nil, err
	}
	handler := http.NewServeMux()
	handler.Handle("/", mux)
	return &system{handler, []onceward.Worker{poller, cleaner, resumer}}, nil
}

// account is the scope of a request.
func account(r *http.Request) (string, error) {
	name, known := Tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !known {
		return "", onceward.Unauthenticated("Bearer")
	}
	return name, nil
}

// StayPrefix is how the names of the files begin that take the place of rows: the step and the reference follow, with a
// space between them.
const StayPrefix = "stay "

// noteFile is a local step that leaves a file. Without a transaction a step may be done twice, which the file does not
// tell.
func (s Settings) noteFile(step string) phase.Step[Trip] {
	return phase.Local(step, func(_ context.Context, t *Trip) error {
		return os.WriteFile(filepath.Join(s.Owners, StayPrefix+step+" "+t.Reference), nil, 0o644)
	})
}
