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

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store/sqlite"
)

// callerVariable makes the test's program a caller: it holds its settings as JSON.
const callerVariable = "ONCEWARD_TEST_CALLER"

// callerSettings say what a caller is to do.
type callerSettings struct {
	// Journal is its file, and URL that of the payments system.
	Journal, URL string
	// Payments is how many payments it makes in all, however often it is started.
	Payments int
	// Forgetful is a caller that sends first and writes down what it sent after that, which is the mistake that a journal
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

// The tables of the caller: an order for each payment, and what it was told about it.
const callerTables = `
	CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
	CREATE TABLE IF NOT EXISTS told (key TEXT PRIMARY KEY, status INTEGER NOT NULL, body TEXT NOT NULL, times INTEGER NOT NULL)`

// run is the life of a caller: it goes on where the last one was killed.
func (s callerSettings) run(ctx context.Context) error {
	journal, err := sqlite.OpenJournal(ctx, s.Journal)
	if err != nil {
		return err
	}
	err = journal.Update(ctx, func(tx *sql.Tx) error {
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
		return s.payForgetfully(ctx, journal, transport)
	}
	worker, err := client.NewWorker(journal, client.WorkerConfig{
		Transport: transport, SendTimeout: 500 * time.Millisecond, MinBackoff: 20 * time.Millisecond, MaxBackoff: 500 * time.Millisecond,
		MaxPerHost: 16, Logger: slog.New(slog.DiscardHandler),
		Prepare:   authorize,
		OnSettled: func(ctx context.Context, o client.Operation) error { return note(ctx, journal, o) },
	})
	if err != nil {
		return err
	}
	fmt.Println("working")
	failed := make(chan error, 2)
	go func() { failed <- worker.Run(ctx) }()
	go func() {
		if err := s.order(ctx, journal, worker); err != nil {
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
func (s callerSettings) order(ctx context.Context, journal *sqlite.Journal, worker *client.Worker) error {
	next, err := lastOrder(ctx, journal)
	if err != nil {
		return err
	}
	for next++; next <= s.Payments; next++ {
		request, err := s.payment(ctx, next)
		if err != nil {
			return err
		}
		err = journal.Update(ctx, func(tx *sql.Tx) error {
			key, err := client.Enqueue(ctx, journal, tx, request)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO orders (number, key) VALUES ($1, $2)`, next, key)
			return err
		})
		if err != nil {
			return err
		}
		worker.Wake()
	}
	return nil
}

func lastOrder(ctx context.Context, journal *sqlite.Journal) (last int, err error) {
	err = journal.DB().QueryRowContext(ctx, `SELECT coalesce(max(number), 0) FROM orders`).Scan(&last)
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

// note is told of a payment. It may be told again.
func note(ctx context.Context, journal *sqlite.Journal, o client.Operation) error {
	return journal.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO told (key, status, body, times) VALUES ($1, $2, $3, 1)
			ON CONFLICT (key) DO UPDATE SET times = times + 1`, o.Key, o.Answer.Status, string(o.Answer.Body))
		return err
	})
}

// payForgetfully sends each payment before anything is written down.
func (s callerSettings) payForgetfully(
	ctx context.Context, journal *sqlite.Journal, transport *client.Transport,
) error {
	next, err := lastOrder(ctx, journal)
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
		o := client.Operation{Key: client.KeyOf(response), Answer: client.Answer{Status: response.StatusCode, Body: body}}
		if err := note(ctx, journal, o); err != nil {
			return err
		}
		err = journal.Update(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO orders (number, key) VALUES ($1, $2)`, next, o.Key)
			return err
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
