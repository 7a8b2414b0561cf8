package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/onceward/onceward/examples/payments"
)

// tokens are the demo's accounts by their bearer tokens, which in a demo are the same.
var tokens = map[string]string{"alice": "alice", "bob": "bob"}

// nodeConfig is the configuration of a process that serves. It is sent to a child process as JSON.
type nodeConfig struct {
	// File is the path of an SQLite file. Default: none, and the store is at Place.
	File          string
	Place         Place
	Addr          string
	Secret        []byte
	Provider      string
	WebhookSecret string
	Timing        payments.Timing
	InFlight      string
	Unprotected   bool
	// Log is the file for warnings. Default: the standard error.
	Log string
}

// node is the payments system on a port, in this process.
type node struct {
	program Program
	url     string
	server  *http.Server
	// opened closes the store, and store queries it.
	opened io.Closer
	store  payments.Store
	system *payments.System
	log    *os.File
	// stopWork ends the work in the background, and worked receives its result.
	stopWork context.CancelFunc
	worked   chan error
	broken   chan error
}

// startNode opens the store and serves. The context only limits the start: the caller closes the node.
func startNode(ctx context.Context, program Program, c nodeConfig) (*node, error) {
	n := &node{program: program, worked: make(chan error, 1), broken: make(chan error, 2)}
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
	var err error
	if n.opened, err = n.openStore(ctx, c, &config); err != nil {
		return fmt.Errorf("the store%s cannot be opened: %s", ofFlag(c), oneLine(err))
	}
	n.store = config.Database
	if config.Items != nil {
		n.store = config.Items.Records()
	}
	if n.program.Monitor != nil {
		if config.Monitor, err = n.program.Monitor(); err != nil {
			return err
		}
	}
	n.system, err = payments.New(ctx, config)
	return err
}

// ofFlag returns the name of the flag that selected the store; empty if none did.
func ofFlag(c nodeConfig) string {
	if c.File != "" {
		return ""
	}
	return " of --store"
}

// serve starts the server and the work in the background, which run until the node is closed.
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

// failed returns the channel that receives an error if the node ends unexpectedly.
func (n *node) failed() <-chan error { return n.broken }

// endWithin is the time in which requests in progress, and then the whole process, must end in order.
const endWithin = 5 * time.Second

// close waits for the requests in progress, then ends the work in the background,
// then closes the store. When the context ends, the requests are cut off.
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
	if n.opened != nil {
		errs = append(errs, n.opened.Close())
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	return errors.Join(errs...)
}
