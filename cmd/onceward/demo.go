package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store/sqlite"
)

// demo serves the payments API of examples/payments.
type demo struct {
	Addr     string `default:"127.0.0.1:8080" help:"Address to listen on; port 0 takes a free one."`
	Dir      string `type:"path" help:"Directory for the data, kept over a restart. Default: a new temporary directory."`
	InFlight string `default:"conflict" enum:"conflict,wait,accepted" help:"What a duplicate of a request in flight gets: ${enum}."`
	NoLoad   bool   `help:"Only serve, which is all there is yet: a load of its own comes with the reference system."`
}

// Run serves until the context ends.
func (d *demo) Run(ctx context.Context, out io.Writer) error {
	dir, err := d.directory()
	if err != nil {
		return err
	}
	store, err := sqlite.Open(ctx, filepath.Join(dir, "payments.db"))
	if err != nil {
		return err
	}
	return errors.Join(d.serve(ctx, out, dir, store), store.Close())
}

func (d *demo) directory() (string, error) {
	if d.Dir == "" {
		return os.MkdirTemp("", "onceward-demo-")
	}
	return d.Dir, os.MkdirAll(d.Dir, 0o700)
}

func (d *demo) serve(ctx context.Context, out io.Writer, dir string, store *sqlite.Store) error {
	secret, err := loadSecret(filepath.Join(dir, "secret"))
	if err != nil {
		return err
	}
	api, err := payments.New(ctx, store, payments.Config{Secret: secret, InFlight: d.InFlight})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", d.Addr)
	if err != nil {
		return fmt.Errorf("%w: choose another address with --addr, for example --addr 127.0.0.1:0", err)
	}
	server := &http.Server{Handler: api, ReadHeaderTimeout: 10 * time.Second}
	background, stop := context.WithCancel(ctx)
	defer stop()
	swept := make(chan error, 1)
	go func() { swept <- janitor.Run(background, store, janitor.Config{Interval: time.Second}) }()
	greet(out, listener.Addr().String(), dir)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = shutDown(server)
	}
	stop()
	return errors.Join(err, <-swept)
}

// shutDown lets the requests under way end.
func shutDown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// loadSecret reads the secret that keys the fingerprints, or makes one on the first start: with another one after a restart
// no stored answer could be recognised.
func loadSecret(path string) ([]byte, error) {
	secret, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return secret, err
	}
	secret = []byte(rand.Text() + rand.Text())
	return secret, os.WriteFile(path, secret, 0o600)
}

// greet says where the demo is and what to try.
func greet(out io.Writer, addr, dir string) {
	key := strings.ToLower(rand.Text())
	curl := func(amount string) string {
		return fmt.Sprintf(`curl -i http://%s/payments -H 'Authorization: Bearer alice' -H 'Idempotency-Key: %s' -H 'Content-Type: application/json' -d '{"customer":"c1","amount":%s,"currency":"EUR"}'`,
			addr, key, amount)
	}
	fmt.Fprintf(out, `Onceward demo: a payments API that executes each request once.
Listening on http://%s
Data in %s

Try it in another terminal:

1. A payment. Expect 201 Created.
   %s

2. The same request again. Expect the same 201, byte for byte, with Idempotent-Replayed: true.
   %s

3. The same key with another amount. Expect 422 Unprocessable Entity.
   %s

GET /payments, with the same Authorization, lists what was really executed.

To see a crash in the middle, start with --dir, send POST /slow?ms=10000 with a key of its own, and while it runs: kill -9 %d
Start again with the same --dir and repeat the request. Expect 409, and one execution in GET /slow: nobody knows what it did,
so it is not done again.

Bearer bob is another account, with keys of its own. Ctrl-C ends the demo.
`, addr, dir, curl("1999"), curl("1999"), curl("2999"), os.Getpid())
}
