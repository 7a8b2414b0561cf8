package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// tokens are the accounts of the demo by their bearer tokens, which in a demo are the same.
var tokens = map[string]string{"alice": "alice", "bob": "bob"}

// nodeConfig is all that a process needs to know to serve. It goes through JSON to a child process.
type nodeConfig struct {
	Store string
	// Items is the table of items on a store without SQL. Default: the store is a database.
	Items         string
	Addr          string
	Secret        []byte
	Provider      string
	WebhookSecret string
	Timing        payments.Timing
	InFlight      string
	Unprotected   bool
	// Log is the file that warnings are appended to. Default: the standard error.
	Log string
}

// node is the payments system on a port, in this process.
type node struct {
	url    string
	server *http.Server
	store  interface {
		storeurl.Closer
		store.Lister
	}
	system *payments.System
	log    *os.File
	// stopWork ends the work in the background, and worked tells that it has ended.
	stopWork context.CancelFunc
	worked   chan error
	broken   chan error
}

// startNode opens the store and serves. The context is for the start alone: the caller closes the node.
func startNode(ctx context.Context, c nodeConfig) (*node, error) {
	n := &node{worked: make(chan error, 1), broken: make(chan error, 2)}
	if err := n.start(ctx, c); err != nil {
		return nil, errors.Join(err, n.closeFiles())
	}
	return n, nil
}

func (n *node) start(ctx context.Context, c nodeConfig) error {
	logger, err := n.openLog(c.Log)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("%w: choose another address with --addr, for example --addr 127.0.0.1:0", err)
	}
	if err := n.openSystem(ctx, c, logger); err != nil {
		return errors.Join(err, listener.Close())
	}
	n.serve(listener, logger)
	return nil
}

func (n *node) openLog(path string) (*slog.Logger, error) {
	out := os.Stderr
	if path != "" {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		n.log, out = file, file
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})), nil
}

func (n *node) openSystem(ctx context.Context, c nodeConfig, logger *slog.Logger) error {
	config := payments.Config{
		Secret: c.Secret, Tokens: tokens, Provider: c.Provider, WebhookSecret: c.WebhookSecret,
		Timing: c.Timing, InFlight: c.InFlight, Unprotected: c.Unprotected, Logger: logger,
	}
	if err := n.openStore(ctx, c, &config); err != nil {
		return fmt.Errorf("the store of --store cannot be opened: %s", oneLine(err))
	}
	var err error
	n.system, err = payments.New(ctx, config)
	return err
}

// openStore opens a database, or the tables of items.
func (n *node) openStore(ctx context.Context, c nodeConfig, config *payments.Config) error {
	if c.Items != "" {
		items, err := openItems(ctx, c.Store, c.Items, config.Logger)
		if err != nil {
			return err
		}
		n.store, config.Items = items.Store, items
		return nil
	}
	db, err := storeurl.Open(ctx, c.Store, storeurl.WithLogger(config.Logger))
	if err != nil {
		return err
	}
	n.store, config.Database = db, db
	return nil
}

// serve starts what goes on until the node is closed.
func (n *node) serve(listener net.Listener, logger *slog.Logger) {
	n.url = "http://" + listener.Addr().String()
	n.server = &http.Server{
		Handler: n.withOpenWork(n.system), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	background, stop := context.WithCancel(context.Background())
	n.stopWork = stop
	go func() {
		err := n.system.Work(background)
		if background.Err() == nil {
			n.broken <- fmt.Errorf("the work in the background has ended: %w", err)
		}
		n.worked <- err
	}()
	go func() {
		if err := n.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			n.broken <- err
		}
	}()
}

func (n *node) address() string { return n.url }

// failed tells if the node has ended by itself.
func (n *node) failed() <-chan error { return n.broken }

// endWithin is how long requests under way, and then a whole process, have to end in order.
const endWithin = 5 * time.Second

// close lets the requests under way end, then the work in the background, then the store. The requests are cut off when
// the context ends.
func (n *node) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	if err := n.server.Shutdown(ctx); err != nil {
		_ = n.server.Close() // requests that do not end are cut off: their clients, if any, retry
	}
	n.stopWork()
	return errors.Join(<-n.worked, n.closeFiles())
}

func (n *node) closeFiles() error {
	var errs []error
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	return errors.Join(errs...)
}
