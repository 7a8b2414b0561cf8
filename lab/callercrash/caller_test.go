package callercrash

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
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/store/sqlite"
)

// callerVariable makes the test's program a caller: it holds its settings as JSON.
const callerVariable = "ONCEWARD_TEST_CALLER"

// callerSettings say what a caller is to do.
type callerSettings struct {
	// Store is its file, and URL that of the payments system.
	Store, URL string
	// Payments is how many payments it makes in all, however often it is started.
	Payments int
	// Forgetful is a caller that sends first and writes down what it sent after that, which is the mistake that an outbox
	// is there to avoid.
	Forgetful bool
}

func TestMain(m *testing.M) {
	if encoded := os.Getenv(callerVariable); encoded != "" {
		var s callerSettings
		err := json.Unmarshal([]byte(encoded), &s)
		if err == nil {
			err = s.run(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

// program is the command, built once for all tests.
var program string

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "onceward-callercrash-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "onceward")
	build := exec.Command("go", "build", "-race=false", "-ldflags=-s -w", "-o", program, "../../cmd/onceward")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the program does not build: %v\n%s", err, out)
		return 1
	}
	return servers.Main(watchdog.Over(m))
}

// The tables of the caller: an order for each payment, and what was reported of it.
const callerTables = `
	CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, payment TEXT NOT NULL UNIQUE);
	CREATE TABLE IF NOT EXISTS report (payment TEXT PRIMARY KEY, key TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL, times INTEGER NOT NULL)`

// topic is the topic of the payments.
const topic = "payments"

// run is the life of a caller: it continues where the last one was killed.
func (s callerSettings) run(ctx context.Context) error {
	own, err := sqlite.Open(ctx, s.Store)
	if err != nil {
		return err
	}
	err = own.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, callerTables)
		return err
	})
	if err != nil {
		return err
	}
	transport, err := client.New(client.Config{
		Base: &lossy{base: http.DefaultTransport}, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if s.Forgetful {
		fmt.Println("working")
		return s.payForgetfully(ctx, own, transport)
	}
	box, err := outbox.New(own, outbox.Config{})
	if err != nil {
		return err
	}
	calls, err := httpcall.New(httpcall.Config{
		Outbox: box, Topic: topic, Transport: transport, Prepare: authorize,
		OnSettled: func(ctx context.Context, o httpcall.Operation) error { return note(ctx, onceward.Tx(ctx), o) },
	})
	if err != nil {
		return err
	}
	route := calls.Route()
	route.Timeout, route.MinBackoff, route.MaxBackoff = 500*time.Millisecond, 20*time.Millisecond, 500*time.Millisecond
	route.Concurrency = 16
	worker, err := outbox.NewWorker(own, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{topic: route}, Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	fmt.Println("working")
	failed := make(chan error, 2)
	go func() { failed <- worker.Run(ctx) }()
	go func() {
		if err := s.order(ctx, own, calls); err != nil {
			failed <- err
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
		os.Exit(0)
	}()
	return <-failed
}

func authorize(r *http.Request) error {
	r.Header.Set("Authorization", "Bearer alice")
	return nil
}

// order writes an order and its payment down in one transaction, until all are there.
func (s callerSettings) order(ctx context.Context, own *sqlite.Store, calls *httpcall.Calls) error {
	next, err := lastOrder(ctx, own)
	if err != nil {
		return err
	}
	for next++; next <= s.Payments; next++ {
		request, err := s.payment(ctx, next)
		if err != nil {
			return err
		}
		err = own.Update(ctx, func(tx *sql.Tx) error {
			id, err := calls.Enqueue(ctx, tx, request)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO orders (number, payment) VALUES ($1, $2)`, next, id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func lastOrder(ctx context.Context, own *sqlite.Store) (last int, err error) {
	err = own.DB().QueryRowContext(ctx, `SELECT coalesce(max(number), 0) FROM orders`).Scan(&last)
	return last, err
}

// payment is the request of an order, with its number as its reference in the ledger.
func (s callerSettings) payment(ctx context.Context, number int) (*http.Request, error) {
	body := fmt.Sprintf(`{"customer":"c1","amount":100,"currency":"EUR","reference":"order-%d"}`, number)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/payments", strings.NewReader(body))
	if err == nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return request, err
}

// note writes down the answer to a payment.
func note(ctx context.Context, tx *sql.Tx, o httpcall.Operation) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO report (payment, key, status, body, times) VALUES ($1, $2, $3, $4, 1)
		ON CONFLICT (payment) DO UPDATE SET times = times + 1`, o.ID, o.Key, o.Answer.Status, string(o.Answer.Body))
	return err
}

// payForgetfully sends each payment before anything is written down.
func (s callerSettings) payForgetfully(
	ctx context.Context, own *sqlite.Store, transport *client.Transport,
) error {
	next, err := lastOrder(ctx, own)
	if err != nil {
		return err
	}
	for next++; next <= s.Payments; next++ {
		request, err := s.payment(client.WithKey(ctx, client.NewKey()), next)
		if err != nil {
			return err
		}
		_ = authorize(request)
		response, err := transport.RoundTrip(request)
		if client.Classify(response, err) != client.OutcomeAnswered {
			next--
			continue
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		o := httpcall.Operation{
			ID: client.KeyOf(response), Key: client.KeyOf(response),
			Answer: httpcall.Answer{Status: response.StatusCode, Body: body},
		}
		err = own.Update(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO orders (number, payment) VALUES ($1, $2)`, next, o.ID)
			return errors.Join(err, note(ctx, tx, o))
		})
		if err != nil {
			return err
		}
	}
	select {} // until it is killed
}

// lossy is a network that loses some replies, and delivers some requests twice.
type lossy struct{ base http.RoundTripper }

var errLost = errors.New("the reply was lost")

// RoundTrip implements [http.RoundTripper].
func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	if rand.IntN(20) == 0 && r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			twin := r.Clone(r.Context())
			twin.Body = body
			go func() {
				if response, err := l.base.RoundTrip(twin); err == nil {
					_ = response.Body.Close()
				}
			}()
		}
	}
	response, err := l.base.RoundTrip(r)
	if err == nil && rand.IntN(10) == 0 {
		_ = response.Body.Close()
		return nil, errLost
	}
	return response, err
}
