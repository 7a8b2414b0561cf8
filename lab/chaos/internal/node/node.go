// Package node is the system under test of a chaos run, as processes of their own: nodes that run the reference
// payments system with two harder routes beside it, and the providers that they call.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/store"

	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/tiered"
	"github.com/onceward/onceward/storeurl"
)

// Variable is the environment variable that makes the program a child: it holds its [Settings] as JSON.
const Variable = "ONCEWARD_CHAOS_CHILD"

// Settings say what a child process is, and how it behaves.
type Settings struct {
	// Name is that of the process in the history.
	Name string
	// Addr is where it listens. A port of 0 takes a free one.
	Addr string
	// Clock is a file that holds how far the machine's clock is off. Empty if the store has a clock of its own.
	Clock string
	// Provider is set for a process that is a provider, and says how it behaves. The other fields are for nodes.
	Provider *provider.Config

	// Caller is set for a process that is a caller, and says what it does. The other fields are for nodes.
	Caller *Caller

	// Store is the URL of the store, and Front that of a Redis in front of it; empty for none.
	Store, Front string
	// Replicas is how many replicas must have a write before a Redis store counts it as written.
	Replicas int
	// Serve and Work say what the node does: take requests, or do the work in the background.
	Serve, Work bool
	// Acquirer and Bank are the URLs of the two providers: the first recognises repeated keys, the second does not.
	Acquirer, Bank string
	// Journal is the file in which the node writes down its calls to the store.
	Journal string
	// Owners is a directory in which nodes show which calls they are still at.
	Owners string
	// Generation is that of the program: the second one has a step more.
	Generation int
	// Log is a file for what an operator should know; empty for none.
	Log string
}

// Timing is how long things take in a chaos run: short, so that much happens, but long enough for a busy machine. A
// request is on its way for as long as wires hold it back and providers delay it. The windows of comparisons are
// longer, because the store's clock leaps by hours, and each of them is compared.
var Timing = payments.Timing{
	Lease: 3 * time.Second, Call: 700 * time.Millisecond, Arrival: 5 * time.Second, Look: 300 * time.Millisecond,
	Backoff: 100 * time.Millisecond, Compare: 20 * time.Second, Settle: time.Second,
}

// Retention is how long the routes keep their answers that the store's clock leaps past.
const Retention = time.Hour

// ByHand are the operations that only an operator settles: no machine can learn what became of them, and nothing did.
var ByHand = []string{lapses, doubts, sparks}

// What nodes and clients of a run have in common.
const (
	fingerprintSecret = "the fingerprints of a chaos run"
	// WebhookSecret is what the acquirer signs with.
	WebhookSecret = "the webhooks of a chaos run"
)

// TenantSecret is what is signed with for an account that is a customer of the acquirer itself.
func TenantSecret(account string) string { return "the webhooks of " + account + " alone" }

// tenantSecrets are those of all accounts.
func tenantSecrets() map[string]string {
	secrets := make(map[string]string)
	for _, account := range Tokens {
		secrets[account] = TenantSecret(account)
	}
	return secrets
}

// Tokens are the accounts of a run by their bearer tokens.
var Tokens = map[string]string{"token-of-anna": "anna", "token-of-ben": "ben"}

// Main runs the child that the environment describes, until its standard input ends. It reports false if there is none.
func Main() (ran bool, err error) {
	encoded := os.Getenv(Variable)
	if encoded == "" {
		return false, nil
	}
	var s Settings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		return true, err
	}
	listener, err := net.Listen("tcp4", s.Addr)
	if err != nil {
		return true, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
		cancel()
	}()
	if s.Provider != nil {
		if s.Provider.Now, err = openClock(s.Clock); err != nil {
			return true, err
		}
		fmt.Printf("http://%s\n", listener.Addr())
		return true, provider.Serve(ctx, *s.Provider, listener)
	}
	if s.Caller != nil {
		return true, s.call(ctx, "http://"+listener.Addr().String())
	}
	return true, s.run(ctx, listener)
}

// run is the life of a node.
func (s Settings) run(ctx context.Context, listener net.Listener) error {
	db, err := s.open(ctx)
	if err != nil {
		return err
	}
	logger, err := s.logger()
	if err != nil {
		return err
	}
	silences := newSilences()
	db.Store.(*journaled).silences = silences
	bank := &bank{owners: s.Owners, client: &provider.Client{URL: s.Bank}, silences: silences}
	build := s.plain
	if Transacts(db) {
		build = s.full
	}
	system, err := build(ctx, &parts{
		db: db, logger: logger, silences: silences, bank: bank,
		lapse: &lapse{db: db, silences: silences, counts: s.Owners},
	})
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	if s.Serve {
		operator, err := newOperator(bank.guard, db.Store.(*journaled))
		if err != nil {
			return err
		}
		system.handler.Handle("POST "+OperatorPath, operator)
		server := &http.Server{
			Handler: system.handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		}
		go func() { _ = server.Serve(listener) }() // it ends with the process
		defer server.Close()
	}
	if s.Work {
		return errors.Join(onceward.Runner{Logger: logger}.Run(ctx, system.workers...), db.Close())
	}
	<-ctx.Done()
	return db.Close()
}

// open opens the store, with the journal around it.
func (s Settings) open(ctx context.Context) (*storeurl.Database, error) {
	var options []storeurl.Option
	if s.Clock != "" {
		clock, err := openClock(s.Clock)
		if err != nil {
			return nil, err
		}
		options = append(options, storeurl.WithClock(clock))
	}
	db, err := Open(ctx, s.Store, s.Replicas, options...)
	if err != nil {
		return nil, err
	}
	journal, err := history.OpenJournal(s.Journal, s.Name)
	if err != nil {
		return nil, err
	}
	outermost := &journaled{Store: wrap.New(db.Store, nil), journal: journal}
	if s.Front != "" {
		front, err := putBefore(ctx, db.Store, s.Front, outermost)
		if err != nil {
			return nil, err
		}
		outermost.past = &journaled{Store: outermost.Store, journal: journal, stale: true}
		outermost.Store = wrap.New(front, nil)
	}
	db.Store = outermost
	return db, nil
}

// frontTimeout is how long a look-up in the front may take. With less, a busy machine would leave the front alone for
// most of a run; with more, no slow wire would be too slow.
const frontTimeout = 300 * time.Millisecond

// putBefore puts a front before a durable store.
func putBefore(ctx context.Context, durable store.Store, url string, journal *journaled) (*tiered.Store, error) {
	front, err := redis.OpenFront(ctx, url)
	if err != nil {
		return nil, err
	}
	return tiered.New(durable, front, tiered.Config{
		MaxAge: history.FrontAge, FrontTimeout: frontTimeout, Logger: slog.New(slog.DiscardHandler),
		Observer: onceward.ObserverFunc(journal.observe),
	})
}

func (s Settings) logger() (*slog.Logger, error) {
	if s.Log == "" {
		return slog.New(slog.DiscardHandler), nil
	}
	file, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return slog.New(slog.NewTextHandler(file, nil)).With("node", s.Name), nil
}
