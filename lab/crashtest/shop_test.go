package crashtest

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// shopVariable makes the test binary a shop, with the settings that it holds, instead of running tests.
const shopVariable = "ONCEWARD_CRASHTEST_SHOP"

func TestMain(m *testing.M) {
	if settings := os.Getenv(shopVariable); settings != "" {
		if err := runShop(settings); err != nil {
			fmt.Fprintln(os.Stderr, "shop:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(servers.Main(m))
}

// shopSettings say how a shop is to behave.
type shopSettings struct {
	// Store is the URL of a PostgreSQL schema, or the path of a SQLite file.
	Store    string
	Provider string
	// Resume and Poll switch the background workers on.
	Resume, Poll bool
	// Dedup says whether the provider recognises the downstream key, as the shop knows it.
	Dedup bool
	// Limit is the number of attempts of the poller; zero for the usual one.
	Limit int
	// Kill is the point at which the process kills itself, Hold the one at which it waits for a line of its input.
	Kill, Hold string
	// Lease is the lease of each operation. It is so long that only the test ends it, except where a database has to
	// notice by itself that a process has stopped.
	Lease time.Duration
	// Diary is the file in which the shop notes each point that it passes.
	Diary string
}

const (
	shopSecret = "the secret of the shop, long enough"
	hookSecret = "the secret of the webhooks"
)

// fullStore is what the shop needs of a store: both kinds have it all.
type fullStore interface {
	store.Store
	store.Transactor
	store.TxCheckpointer
	store.Waiter
	store.Sweeper
	store.Reconciler
	store.Buster
	store.Lister
	store.LateCompletionKeeper
	store.ExternalEventKeeper
	store.Auditor
	Close() error
}

// openStore opens a store with the tables of the shop.
func openStore(ctx context.Context, url string) (fullStore, *sql.DB, error) {
	if strings.HasPrefix(url, "postgres") {
		store, err := postgres.Open(ctx, url, postgres.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return nil, nil, err
		}
		db, err := sql.Open("pgx", url)
		return store, db, err
	}
	store, err := sqlite.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	db, err := sql.Open("sqlite3", "file:"+url)
	return store, db, err
}

// shop is a process that takes bookings, in three phases, and payments, by calling the provider inline, and sells
// seats, in one transaction.
type shop struct {
	shopSettings
	store  hookedStore
	db     *sql.DB
	guard  *onceward.Guard
	client *provider.Client
	booked *phase.Operation[booking]
	lines  chan struct{}
}

func runShop(settings string) error {
	s := &shop{lines: make(chan struct{})}
	if err := json.Unmarshal([]byte(settings), &s.shopSettings); err != nil {
		return err
	}
	ctx := context.Background()
	store, db, err := openStore(ctx, s.Store)
	if err != nil {
		return err
	}
	s.store, s.db = hookedStore{fullStore: store, pass: s.pass}, db
	s.client = &provider.Client{URL: s.Provider}
	quiet := slog.New(slog.DiscardHandler)
	if s.guard, err = newShopGuard(&s.store); err != nil {
		return err
	}
	mux := http.NewServeMux()
	s.booked = s.bookings()
	mux.Handle("POST /bookings", s.booked.Handler(s.guard, s.startBooking))
	mux.Handle("POST /seats", s.guard.HandlerFunc(s.sellSeat, onceward.Transactional()))
	if err := s.payments(mux); err != nil {
		return err
	}
	if s.Resume {
		resumer, err := phase.NewResumer(s.guard, &s.store, phase.ResumerConfig{
			Operations: []phase.Resumable{s.booked}, Interval: 50 * time.Millisecond, Logger: quiet,
		})
		if err != nil {
			return err
		}
		go func() { _ = resumer.Run(ctx) }() // it ends with the process
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, mux) }()
	fmt.Printf("http://%s\n", listener.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		s.lines <- struct{}{}
	}
	return nil
}

func newShopGuard(store store.Store) (*onceward.Guard, error) {
	return onceward.New(store, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte(shopSecret), Logger: slog.New(slog.DiscardHandler),
	})
}

// pass notes that a point was reached, and does there what the settings say.
func (s *shop) pass(point string) {
	if s.Diary != "" {
		diary, err := os.OpenFile(s.Diary, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, _ = diary.WriteString(point + "\n")
			_ = diary.Close()
		}
	}
	switch point {
	case s.Kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal has come
	case s.Hold:
		fmt.Println("holding", point)
		<-s.lines
	}
}

// hookedStore passes points at the writes of an owner.
type hookedStore struct {
	fullStore
	pass func(point string)
}

// Checkpoint implements [store.Store].
func (h *hookedStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	h.pass("before checkpoint " + p.Point)
	err := h.fullStore.Checkpoint(ctx, c, p)
	h.pass("after checkpoint " + p.Point)
	return err
}

// CheckpointTx implements [store.TxCheckpointer].
func (h *hookedStore) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error)) error {
	point := ""
	err := h.fullStore.CheckpointTx(ctx, c, lease, func(ctx context.Context) (store.Checkpoint, error) {
		p, err := work(ctx)
		point = p.Point
		return p, err
	})
	h.pass("after checkpoint " + point)
	return err
}

// Transact implements [store.Transactor].
func (h *hookedStore) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	v, err := h.fullStore.Transact(ctx, r, work)
	h.pass("after commit")
	return v, err
}

// ResolveStep implements [store.Reconciler].
func (h *hookedStore) ResolveStep(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	h.pass("before resolving " + p.Point)
	err := h.fullStore.ResolveStep(ctx, c, p)
	h.pass("after resolving " + p.Point)
	return err
}

// Complete implements [store.Store].
func (h *hookedStore) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	h.pass("before complete")
	expires, err := h.fullStore.Complete(ctx, c, done)
	h.pass("after complete")
	return expires, err
}
