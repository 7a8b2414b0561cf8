package postgres_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestToldByAnotherProcess: a process that waits for what another one does is told when it is over, however it ends.
func TestToldByAnotherProcess(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	for what, end := range map[string]func(store.Claim) error{
		"completed": func(o store.Claim) error { _, err := c.owner.Complete(t.Context(), o, answer("done")); return err },
		"released":  func(o store.Claim) error { return c.owner.Release(t.Context(), o, "no stock") },
		"abandoned": func(o store.Claim) error { return c.owner.Abandon(t.Context(), o, "lost") },
		"busted":    func(o store.Claim) error { return c.owner.Bust(t.Context(), o.ID, true) },
		"swept": func(o store.Claim) error {
			if err := c.owner.Extend(t.Context(), o, time.Microsecond); err != nil {
				return err
			}
			_, err := c.owner.Sweep(t.Context(), 10)
			return err
		},
	} {
		c.wantTold(what, c.owned(end))
	}
	for what, ending := range map[string]store.TxAction{
		"committed": store.TxCommit, "rolled back": store.TxRollback, "answered": store.TxCommitAnswer,
	} {
		c.wantTold(what, c.inFlight(ending))
	}
}

// TestToldHoweverOpened: a store hears notifications whatever handle it was given, and whatever that does with its own.
func TestToldHoweverOpened(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB, string, ...postgres.Option) *postgres.Store{
		"database/sql": func(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
			config, err := pgx.ParseConfig(url)
			must(t, err)
			return openDB(t, stdlib.OpenDB(*config), options...)
		},
		"database/sql over a pool": func(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
			return openDB(t, stdlib.OpenDBFromPool(openAdmin(t, url)), options...)
		},
		"a pool that handles notifications": func(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
			return openConfigured(t, url, func(config *pgxpool.Config) {
				config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
			}, options...)
		},
		"a pool that learns late how to connect": func(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
			return openConfigured(t, url, func(config *pgxpool.Config) {
				name := config.ConnConfig.RuntimeParams["application_name"] // by which the couple knows it
				delete(config.ConnConfig.RuntimeParams, "application_name")
				config.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error {
					config.RuntimeParams["application_name"] = name
					return nil
				}
			}, options...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			book, logging := newLogbook()
			c := newCoupleBy(t, open, logging)
			c.wantTold("completed", c.completed())
			c.wantTold("committed", c.inFlight(store.TxCommit))
			if lines := book.find("cannot listen"); len(lines) > 0 {
				t.Errorf("it said %q", lines)
			}
		})
	}
}

// openDB opens a store on a handle that is closed with the test.
func openDB(t testing.TB, db *sql.DB, options ...postgres.Option) *postgres.Store {
	t.Helper()
	store, err := postgres.NewSQL(t.Context(), db, append([]postgres.Option{patient}, options...)...)
	must(t, err)
	t.Cleanup(func() {
		must(t, store.Close())
		must(t, db.Close())
	})
	return store
}

// TestConnectionDies: the end of a transaction whose connection is gone is noticed, although no process tells.
func TestConnectionDies(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	// Here it is the other way round: the one behind the proxy owns, because its connections can be cut.
	r := reservation("key")
	working, finish, over := make(chan struct{}), make(chan struct{}), make(chan ended, 1)
	go func() {
		v, err := c.waiter.Transact(context.Background(), r, func(context.Context, store.Verdict) store.Settlement {
			close(working)
			<-finish
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		})
		over <- ended{v, err}
	}()
	await.Value(t, "the transaction", working)
	waited := make(chan error, 1)
	crowd(t.Context(), 1, func(ctx context.Context, _ int) { waited <- c.owner.Wait(ctx, r.ID, 0) })
	c.proxy.DropAll()
	if err := await.Value(t, "the end of the wait, while the handler still runs", waited); err != nil {
		t.Errorf("the wait ended with %v", err)
	}
	transacted(t, c.owner, "key", nothing)
	close(finish)
	cut := await.Value(t, "the end of the transaction", over)
	if v := cut.verdict; cut.err != nil || v.Decision != store.DecisionReplay || string(v.Record.Response.Body) != "key" {
		t.Errorf("I1: the transaction whose connection was cut got %s with %q, %v; want the other one's answer",
			v.Decision, v.Record.Response.Body, cut.err)
	}
	wantReplay(t, c.owner, "key", "key", "I3")
}

// TestWaitingIsQuiet: those who wait do not ask all the time, and many who wait for one key ask as often as one.
func TestWaitingIsQuiet(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	c.wantTold("before", c.completed()) // connections are opened and statements prepared for it
	before := c.proxy.RoundTrips()
	const waiters = 200
	ended := crowd(t.Context(), waiters, func(ctx context.Context, _ int) {
		if err := c.waiter.Wait(ctx, claim.ID, claim.Attempt); err != nil {
			t.Errorf("a wait ended with %v", err)
		}
	})
	await.That(t, "the owner knows of the waits", func() bool { return c.owner.Awaited(claim.ID) })
	time.Sleep(time.Second) // in which a store that asks all the time would ask often
	complete(t, c.owner, claim, "done")
	ended()
	// One statement says that a process waits, a few look.
	if trips := c.proxy.RoundTrips() - before; trips > 10 {
		t.Errorf("%d waits for one key took %d round trips", waiters, trips)
	}
}

// TestAllWaitersAreTold: one word wakes all.
func TestAllWaitersAreTold(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	ended := crowd(t.Context(), 200, func(ctx context.Context, _ int) {
		if err := c.waiter.Wait(ctx, claim.ID, claim.Attempt); err != nil {
			t.Errorf("a wait ended with %v", err)
		}
	})
	await.That(t, "the owner knows of the waits", func() bool { return c.owner.Awaited(claim.ID) })
	complete(t, c.owner, claim, "done")
	ended()
}

// TestNobodyWaitsNobodyTells: where no process waits there is no notification, because each makes commits wait for
// each other.
func TestNobodyWaitsNobodyTells(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	ears := c.overhear()
	for _, key := range keys("key", 5) {
		complete(t, c.owner, own(t, c.owner, reservation(key)), "done")
		transacted(t, c.owner, key+" in a transaction", nothing)
		must(t, c.owner.Release(t.Context(), own(t, c.owner, reservation(key+" released")), ""))
		_, _, end := c.inFlight(store.TxRollback)()
		end()
	}
	channel := c.channel()
	must(t, c.owner.Close()) // which waits for what it has begun to say
	exec(t, c.admin, `SELECT pg_notify($1, 'the end')`, channel)
	var heard []string
	for {
		said, err := ears.WaitForNotification(t.Context())
		must(t, err)
		if said.Payload == "the end" {
			break
		}
		if !strings.HasPrefix(said.Payload, "h") { // a listener that has just begun talks to itself
			heard = append(heard, said.Payload)
		}
	}
	if len(heard) > 0 {
		t.Errorf("no process waits, and there were %d notifications: %q", len(heard), heard)
	}
}

// logbook keeps what a store logs.
type logbook struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

// newLogbook returns a logbook and the option that makes a store write into it.
func newLogbook() (*logbook, postgres.Option) {
	book := &logbook{Handler: slog.DiscardHandler}
	return book, postgres.WithLogger(slog.New(book))
}

// Enabled says that everything is kept.
func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }

// Handle keeps a line.
func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	line.WriteString(r.Level.String() + " " + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		line.WriteString(" " + a.String())
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line.String())
	return nil
}

// find returns the lines that hold a text.
func (b *logbook) find(text string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// completed ends a wait by a completion.
func (c *couple) completed() func() (store.ID, int64, func()) {
	return c.owned(func(o store.Claim) error {
		_, err := c.owner.Complete(c.Context(), o, answer("done"))
		return err
	})
}

// wantLooking checks that a store without notifications looks often: a store with notifications would not look for an hour.
func (c *couple) wantLooking(what string, begin func() (id store.ID, attempt int64, end func())) {
	c.Helper()
	if c.waiter.HearsMessages() {
		c.Errorf("%s: the store gets notifications", what)
	}
	c.wakes(begin)
}

// TestListenerLost: while the connection is gone on which it would be told, a store looks for itself; and then it is
// told again.
func TestListenerLost(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	c.wantTold("before", c.completed())
	first := c.listeners()
	c.proxy.Refuse(true)
	exec(t, c.admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY ($1)`, first)
	await.That(t, "no process listens, and the store has noticed", func() bool {
		return len(c.listeners()) == 0 && !c.waiter.HearsMessages()
	})
	c.wantLooking("without a listener", c.completed())
	if again := c.listeners(); len(again) != 0 {
		t.Fatalf("%v listens although it cannot connect", again)
	}
	c.proxy.Refuse(false)
	await.That(t, "a process listens again", func() bool { return len(c.listeners()) == 1 })
	c.wantTold("after it has come back", c.completed())
	c.wantTold("a transaction after it has come back", c.inFlight(store.TxRollback))
}

// databaseURL makes a database for a test that must not meet the transactions of others, and returns its URL.
func databaseURL(t testing.TB) string {
	t.Helper()
	server := servers.Postgres(t)
	database := server.Schema(t) // a name that is not taken
	must(t, server.Exec(t.Context(), `CREATE DATABASE `+database))
	t.Cleanup(func() {
		must(t, server.Exec(context.Background(), `DROP DATABASE `+database+` WITH (FORCE)`))
	})
	at, err := url.Parse(server.URL())
	must(t, err)
	at.Path = "/" + database
	return at.String()
}

// TestPoolerLosesNotifications: a connection on which nothing is ever heard, as through a pooler that shares them, is
// found out, and the store looks for itself. A database of its own stands for the pooler: notifications do not leave
// theirs.
func TestPoolerLosesNotifications(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it makes a database; TestListenRefused looks by itself too")
	book, logging := newLogbook()
	c := newCouple(t, postgres.WithListenURL(databaseURL(t)), logging, postgres.Looking(5*time.Second))
	c.wantLooking("before it is found out", c.completed())
	await.That(t, "the store has warned",
		func() bool { return len(book.find("cannot listen for notifications")) > 0 })
	if told := book.find("give WithListenURL an address past it"); len(told) == 0 {
		t.Errorf("it does not say what to do: %q", book.find("cannot listen"))
	}
	c.wantLooking("after it was found out", c.completed())
}

// TestNoListenThroughAPooler: one that keeps sessions would carry notifications, but resets a connection behind each
// of them, and a notification in that moment makes PgBouncer give a client the replies to another.
func TestNoListenThroughAPooler(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts poolers")
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			book, logging := newLogbook()
			pooler := servers.NewPgBouncer(t, databaseURL(t), "pool_mode="+mode)
			s, err := postgres.Open(t.Context(), pooler.URL(), logging)
			must(t, err)
			defer s.Close()
			await.That(t, "the store has logged why it does not listen",
				func() bool { return len(book.find("a pooler is in between, and a notification")) > 0 })
			if s.HearsMessages() {
				t.Error("it listens")
			}
		})
	}
}

// TestListenURL: listening past the pooler works as listening does.
func TestListenURL(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	book, logging := newLogbook()
	name := "listens " + rand.Text()
	c := newCouple(t, postgres.WithListenURL(server.URL()+"&application_name="+url.PathEscape(name)), logging)
	c.wantTold("a completion", c.completed())
	if lines := book.find("cannot listen"); len(lines) > 0 {
		t.Errorf("it said %q", lines)
	}
	if n := number(t, c.admin,
		`SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN %'`, name); n != 1 {
		t.Errorf("%d sessions listen where they were told to, want 1", n)
	}
	if listeners := c.listeners(); len(listeners) != 0 {
		t.Errorf("%v listens elsewhere", listeners)
	}
}

// TestClosingEndsWaits: a caller that waits when the store is closed is not left alone.
func TestClosingEndsWaits(t *testing.T) {
	t.Parallel()
	c := newCouple(t)
	claim := own(t, c.owner, reservation("key"))
	ended := c.waits(claim.ID, claim.Attempt)
	must(t, c.waiter.Close())
	if err := await.Value(t, "the end of the wait", ended); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a wait on a store that was closed got %v, want ErrUnavailable", err)
	}
}

// refusing is a server that takes connections and refuses every statement, as some refuse LISTEN. It returns its URL.
func refusing(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { refuse(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		serving.Wait()
	})
	return "postgres://postgres@" + listener.Addr().String() + "/postgres?sslmode=disable"
}

// refuse answers one client until that leaves.
func refuse(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		message, err := backend.Receive()
		if _, leaves := message.(*pgproto3.Terminate); leaves || err != nil {
			return
		}
		backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "LISTEN is not supported"})
	}
}

// TestListenRefused: a store that cannot listen says so and looks for itself (scenario 48), be it for an attempt, for a
// transaction, or for messages.
func TestListenRefused(t *testing.T) {
	t.Parallel()
	book, logging := newLogbook()
	c := newCouple(t, postgres.WithListenURL(refusing(t)), logging)
	await.That(t, "the store has warned",
		func() bool { return len(book.find("LISTEN is not supported")) > 0 })
	c.wantLooking("for an attempt", c.completed())
	for _, ending := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		c.wantLooking("for a transaction", c.inFlight(ending))
	}
	if c.waiter.HearsMessages() {
		t.Error("O2: a worker would wait to be told of messages")
	}
	if lines := book.find("cannot listen"); len(lines) > 20 {
		t.Errorf("it said so %d times: it tries too often", len(lines))
	}
}

// couple is two stores on the same tables, as two processes would have: one owns records, the other waits for them.
type couple struct {
	*testing.T
	owner, waiter *postgres.Store
	// proxy is in front of the one that waits.
	proxy *servers.Proxy
	admin *pgxpool.Pool
	// name is by which the server knows the sessions of the one that waits.
	name string
}

func newCouple(t *testing.T, options ...postgres.Option) *couple {
	t.Helper()
	return newCoupleBy(t, openUnasked, options...)
}

// newCoupleBy opens the one that waits in a way of its own.
func newCoupleBy(
	t *testing.T, open func(testing.TB, string, ...postgres.Option) *postgres.Store, options ...postgres.Option,
) *couple {
	t.Helper()
	address := servers.Postgres(t).SchemaURL(t)
	c := &couple{T: t, name: "waits " + rand.Text(), admin: openAdmin(t, address)}
	c.proxy = servers.NewProxy(t, address)
	c.owner = openStore(t, address+"&application_name=owns%20"+rand.Text())
	c.waiter = open(t, c.proxy.URL()+"&application_name="+url.PathEscape(c.name), append(options, postgres.Listening())...)
	return c
}

// listeners are the sessions on which the one that waits listens: how it can be told.
func (c *couple) listeners() (found []int32) {
	c.Helper()
	rows, err := c.admin.Query(context.Background(),
		`SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'LISTEN %'`, c.name)
	must(c, err)
	found, err = pgx.CollectRows(rows, pgx.RowTo[int32])
	must(c, err)
	return found
}

// channel is that on which the stores talk to each other.
func (c *couple) channel() (name string) {
	c.Helper()
	await.That(c, "the store listens", func() bool { return len(c.listeners()) == 1 })
	must(c, c.admin.QueryRow(c.Context(), `SELECT query FROM pg_stat_activity WHERE pid = $1`,
		c.listeners()[0]).Scan(&name))
	return strings.Trim(strings.TrimPrefix(name, "LISTEN "), `"`)
}

// overhear listens to what the stores say to each other.
func (c *couple) overhear() *pgx.Conn {
	c.Helper()
	conn, err := pgx.ConnectConfig(c.Context(), c.admin.Config().ConnConfig)
	must(c, err)
	c.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(c.Context(), `LISTEN `+pgx.Identifier{c.channel()}.Sanitize())
	must(c, err)
	return conn
}

// waits begins to wait, and returns where the end of the wait is told.
func (c *couple) waits(id store.ID, attempt int64) <-chan error {
	ended := make(chan error, 1)
	crowd(c.Context(), 1, func(ctx context.Context, _ int) { ended <- c.waiter.Wait(ctx, id, attempt) })
	return ended
}

// wakes waits for what begin makes, lets it end, and checks that the wait ends too.
func (c *couple) wakes(begin func() (id store.ID, attempt int64, end func())) {
	c.Helper()
	id, attempt, end := begin()
	ended := c.waits(id, attempt)
	if c.waiter.HearsMessages() {
		await.That(c, "the owner knows of the wait", func() bool { return c.owner.Awaited(id) })
	}
	select {
	case err := <-ended:
		c.Fatalf("a wait for what goes on ended with %v", err)
	case <-time.After(100 * time.Millisecond): // in which the looks at the beginning are over
	}
	end()
	if err := await.Value(c, "the end of the wait", ended); err != nil {
		c.Errorf("the wait ended with %v", err)
	}
}

// wantTold checks that a notification ends the wait: without one the store would not look for an hour. Both stores have
// to get notifications: the owner sends one only if it has got one of the wait.
func (c *couple) wantTold(what string, begin func() (id store.ID, attempt int64, end func())) {
	c.Helper()
	await.That(c, what+": both stores get notifications", func() bool {
		return c.waiter.HearsMessages() && c.owner.HearsMessages()
	})
	c.wakes(begin)
}

// owned begins with a reservation that ends as the function says.
func (c *couple) owned(end func(claim store.Claim) error) func() (store.ID, int64, func()) {
	return func() (store.ID, int64, func()) {
		claim := own(c, c.owner, reservation(rand.Text()))
		return claim.ID, claim.Attempt, func() { must(c, end(claim)) }
	}
}

// inFlight begins a transaction that ends in this way.
func (c *couple) inFlight(ending store.TxAction) func() (store.ID, int64, func()) {
	return func() (store.ID, int64, func()) {
		r := reservation(rand.Text())
		working, finish := make(chan struct{}), make(chan struct{})
		go func() {
			_, err := c.owner.Transact(context.Background(), r, func(context.Context, store.Verdict) store.Settlement {
				close(working)
				<-finish
				return store.Settlement{Action: ending, Completion: *answer("done")}
			})
			if err != nil {
				c.Errorf("the transaction that was waited for: %v", err)
			}
		}()
		await.Value(c, "the transaction", working)
		return r.ID, 0, func() { close(finish) }
	}
}
