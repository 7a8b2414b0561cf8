package node

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// Caller says what a process does that is a caller: it writes what it wants to be done into its outbox, and a worker
// sends it to the servers until it is answered.
type Caller struct {
	// Store is the file of its store, or the URL of the PostgreSQL that has it.
	Store string
	// Heard is the file in which it writes down the key of each operation that it was told of.
	Heard string
	// Fronts are the URLs of the servers.
	Fronts []string
	// Window is what its keys and references begin with.
	Window string
	// Orders says that it goes on to order, and not only to finish what it has ordered.
	Orders bool
	// Plain leaves out what only nodes on a store with transactions serve.
	Plain bool
}

// The times of a caller. What it was at when it was killed is taken up again when the lease is over, which is as long as
// a call may take.
const (
	callTimeout = 2 * time.Second
	orderPause  = 80 * time.Millisecond
)

// CallerTopic is the topic of the operations of callers.
const CallerTopic = "calls"

// CallerStore is the store of a caller, whose outbox has its operations.
type CallerStore struct {
	outbox.Store
	box   *outbox.Outbox
	calls *httpcall.Calls
	// enqueue commits one operation.
	enqueue func(ctx context.Context, request *http.Request) error
	Close   func() error
}

// OpenCallerStore opens the store that a file has, or the tables of a prefix in PostgreSQL. The configuration is that of
// the caller's operations.
func OpenCallerStore(ctx context.Context, url, prefix string, config httpcall.Config) (*CallerStore, error) {
	config.Topic = CallerTopic
	if strings.HasPrefix(url, "postgres") {
		return openPostgresCaller(ctx, url, prefix, config)
	}
	s, err := sqlite.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	opened := &CallerStore{Store: s, Close: s.Close}
	if err := opened.configure(config); err != nil {
		return nil, err
	}
	opened.enqueue = func(ctx context.Context, request *http.Request) error {
		return s.Update(ctx, func(tx *sql.Tx) error {
			_, err := opened.calls.Enqueue(ctx, tx, request)
			return err
		})
	}
	return opened, nil
}

func openPostgresCaller(ctx context.Context, url, prefix string, config httpcall.Config) (*CallerStore, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(ctx, pool, postgres.WithTablePrefix(prefix))
	if err != nil {
		pool.Close()
		return nil, err
	}
	opened := &CallerStore{Store: s, Close: func() error {
		defer pool.Close()
		return s.Close()
	}}
	if err := opened.configure(config); err != nil {
		return nil, err
	}
	opened.enqueue = func(ctx context.Context, request *http.Request) error {
		m, err := opened.calls.Message(request)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := postgres.AddMessage(ctx, opened.box, tx, m)
			return err
		})
	}
	return opened, nil
}

// configure makes the operations of the caller. If it fails the store is closed.
func (s *CallerStore) configure(config httpcall.Config) (err error) {
	if s.box, err = outbox.New(s.Store, outbox.Config{}); err == nil {
		config.Outbox = s.box
		s.calls, err = httpcall.New(config)
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// call is the life of a caller.
func (s Settings) call(ctx context.Context, url string) error {
	heard, err := os.OpenFile(s.Caller.Heard, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	transport, err := client.New(client.Config{
		Base:       &http.Transport{DisableKeepAlives: true},
		MinBackoff: 20 * time.Millisecond, MaxBackoff: 300 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	own, err := OpenCallerStore(ctx, s.Caller.Store, CallerPrefix(s.Name), httpcall.Config{
		Transport: transport, Prepare: authorize,
		OnSettled: func(_ context.Context, o httpcall.Operation) error {
			_, err := io.WriteString(heard, o.Key+"\n")
			return err
		},
	})
	if err != nil {
		return err
	}
	route := own.calls.Route()
	route.Timeout, route.MinBackoff, route.MaxBackoff = callTimeout, 50*time.Millisecond, time.Second
	worker, err := outbox.NewWorker(own, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{CallerTopic: route}, Lease: callTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	fmt.Println(url)
	if s.Caller.Orders {
		go s.order(ctx, own)
	}
	return worker.Run(ctx)
}

// CallerPrefix is what the names of a caller's tables begin with, in all its lives.
func CallerPrefix(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return strings.ReplaceAll(name, "-", "_") + "_"
}

// accountHeader says for which account an operation is; its token is not in the outbox.
const accountHeader = "Caller-Account"

// authorize adds the token of the account.
func authorize(r *http.Request) error {
	account := r.Header.Get(accountHeader)
	for token, of := range Tokens {
		if of == account {
			r.Header.Set("Authorization", "Bearer "+token)
			return nil
		}
	}
	return fmt.Errorf("no token is that of %q", account)
}

// order orders until the caller ends. What could not be written down is not ordered.
func (s Settings) order(ctx context.Context, own *CallerStore) {
	for n := 0; ctx.Err() == nil; n++ {
		if request, err := s.draw(n); err == nil {
			_ = own.enqueue(ctx, request)
		}
		time.Sleep(orderPause/2 + rand.N(orderPause))
	}
}

// draw makes up the next operation of this life.
func (s Settings) draw(n int) (*http.Request, error) {
	c := s.Caller
	call := Call{
		Kind: "transfer", Account: Tokens["token-of-anna"], Amount: 100 + rand.Int64N(500),
		Reference: fmt.Sprintf("%scall-%s-%d-a", c.Window, s.Name, n),
	}
	if n%2 == 0 {
		call.Account = Tokens["token-of-ben"]
	}
	var asked any = Transfer{Reference: call.Reference, Amount: call.Amount}
	path := "/transfers"
	switch rand.IntN(3) {
	case 0:
		if !c.Plain {
			call.Kind, path = "payment", "/payments"
			asked = map[string]any{"customer": "c1", "amount": call.Amount, "currency": "EUR", "reference": call.Reference}
		}
	case 1:
		if !c.Plain {
			call.Kind, path, call.Amount = "entry", "/entries", 0
			asked = Entry{Reference: call.Reference}
		}
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	front := c.Fronts[rand.IntN(len(c.Fronts))]
	request, err := http.NewRequest(http.MethodPost, front+path, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", c.Window+"call-"+client.NewKey())
	return request, call.mark(request.Header)
}

// Call is what an operation of a caller is about, which goes with it in its header.
type Call struct {
	Kind, Account, Reference string
	Amount                   int64
}

const callHeader = "Caller-Call"

func (c Call) mark(header http.Header) error {
	text, err := json.Marshal(c)
	header.Set(callHeader, string(text))
	header.Set(accountHeader, c.Account)
	return err
}

// CallOf is what an operation of a caller is about.
func CallOf(o *httpcall.Operation) (c Call, err error) {
	err = json.Unmarshal([]byte(o.Header.Get(callHeader)), &c)
	return c, err
}
