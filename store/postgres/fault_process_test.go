package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/store/postgres"
)

// tellerVariable makes the test binary a server on the tables of the URL that it holds, instead of running tests.
const tellerVariable = "ONCEWARD_POSTGRES_TEST_TELLER"

func init() {
	url := os.Getenv(tellerVariable)
	if url == "" {
		return
	}
	if err := runTeller(url); err != nil {
		fmt.Fprintln(os.Stderr, "teller:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// leaseVariable holds the lease of a teller.
const leaseVariable = "ONCEWARD_POSTGRES_TEST_LEASE"

// holdHeader makes a teller's handler say that it is there, and wait for a line of its input: before or after the
// effect.
const holdHeader = "X-Hold"

// teller is a process that takes payments over HTTP, in both modes. It ends with its input.
type teller struct {
	pool  *pgxpool.Pool
	lines chan struct{}
}

func runTeller(url string) error {
	lease, err := time.ParseDuration(os.Getenv(leaseVariable))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	store, err := postgres.New(context.Background(), pool, quiet)
	if err != nil {
		return err
	}
	guard, err := onceward.New(store, testConfig())
	if err != nil {
		return err
	}
	tell := &teller{pool: pool, lines: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("POST /transactional",
		guard.HandlerFunc(tell.pay(insertReturning), onceward.Transactional(), onceward.Lease(lease)))
	mux.Handle("POST /reserved", guard.HandlerFunc(tell.pay(tell.insertOutside),
		onceward.Reserved(onceward.FailureUnknown), onceward.Lease(lease)))
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, mux) }()
	fmt.Printf("http://%s\n", listener.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		tell.lines <- struct{}{}
	}
	return nil
}

// effect adds a row and returns its number.
type effect func(ctx context.Context, value string) (number int64, err error)

// insertReturning adds a row in the transaction.
func insertReturning(ctx context.Context, value string) (number int64, err error) {
	err = postgres.Tx(ctx).QueryRow(ctx, `INSERT INTO business (value) VALUES ($1) RETURNING number`, value).Scan(&number)
	return number, err
}

// insertOutside adds a row as another system would, which knows nothing of transactions or leases.
func (tell *teller) insertOutside(_ context.Context, value string) (number int64, err error) {
	err = tell.pool.QueryRow(context.Background(),
		`INSERT INTO business (value) VALUES ($1) RETURNING number`, value).Scan(&number)
	return number, err
}

// pay is a handler as the documentation wants it: it asks for its lease before the effect.
func (tell *teller) pay(take effect) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		op := onceward.FromContext(r.Context())
		tell.hold(r, "before")
		if err := op.CheckLease(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		number, err := take(r.Context(), op.Key())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		tell.hold(r, "after")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d, taken by process %d", number, os.Getpid())
	}
}

func (tell *teller) hold(r *http.Request, when string) {
	if r.Header.Get(holdHeader) == when {
		fmt.Println("holding", when)
		<-tell.lines
	}
}

// tellerProcess is a teller as the test sees it.
type tellerProcess struct {
	*proctest.Process
	url string
}

// startTeller starts a teller whose routes have this lease.
func startTeller(t testing.TB, s *site, lease time.Duration) *tellerProcess {
	t.Helper()
	cmd := proc.Self(tellerVariable, s.url)
	cmd.Env = append(cmd.Env, leaseVariable+"="+lease.String())
	p := proctest.Start(t, cmd)
	return &tellerProcess{Process: p, url: p.Hear("http://")}
}

// starts sends a payment whose handler holds, and waits until it does.
func (p *tellerProcess) starts(t testing.TB, path, key, hold string) <-chan httpReply {
	t.Helper()
	done := p.sends(t, path, key, hold)
	p.Hear("holding " + hold)
	return done
}

// sends sends a payment whose handler is to hold, beside the test.
func (p *tellerProcess) sends(t testing.TB, path, key, hold string) <-chan httpReply {
	t.Helper()
	done := make(chan httpReply, 1)
	go func() {
		r, err := send(t.Context(), oneShot, p.url+path, key, holdHeader, hold)
		if err != nil {
			r.body = err.Error()
		}
		done <- r
	}()
	return done
}

// startHolding starts a teller, and sends it a payment whose handler holds. Its lease is short, so that a process that is
// stopped soon loses it. A busy machine may not bring a handler to where it holds within the first lease; then the next
// teller has more time, and another key.
func startHolding(t testing.TB, s *site, path, hold string) (owner *tellerProcess, key string, done <-chan httpReply) {
	t.Helper()
	for _, lease := range []time.Duration{time.Second, 4 * time.Second, 16 * time.Second} {
		owner, key = startTeller(t, s, lease), "key-"+lease.String()
		done = owner.sends(t, path, key, hold)
		holds := false
		await.That(t, "the handler holds, or has ended", func() bool {
			_, err := owner.Expect("holding "+hold, 10*time.Millisecond)
			holds = err == nil
			return holds || len(done) > 0
		})
		if holds {
			return owner, key, done
		}
	}
	t.Fatal("no handler came to where it holds")
	return nil, "", nil
}
