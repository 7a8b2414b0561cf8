package callers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// journal is a journal under test, with the way to its transactions.
type journal struct {
	client.Journal
	update func(ctx context.Context, f func(tx *sql.Tx) error) error
	// again opens it as another process would.
	again func(t *testing.T) journal
	// exec changes its table behind its back, for what takes a day otherwise.
	exec func(t *testing.T, statement string)
}

// onJournals runs a test on each kind of journal.
func onJournals(t *testing.T, test func(t *testing.T, j journal)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) journal{
		"sqlite": openFile, "sqlite store": openInStore, "postgres": openPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func openFile(t *testing.T) journal { return openFileAt(t, filepath.Join(t.TempDir(), "caller.db")) }

func openFileAt(t *testing.T, path string) journal {
	j, err := sqlite.OpenJournal(t.Context(), path)
	must(t, err)
	t.Cleanup(func() { must(t, j.Close()) })
	return journal{
		Journal: j, update: j.Update, again: func(t *testing.T) journal { return openFileAt(t, path) },
		exec: execWith(j.Update),
	}
}

func openInStore(t *testing.T) journal {
	path := filepath.Join(t.TempDir(), "service.db")
	s, err := sqlite.Open(t.Context(), path)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	j, err := s.Journal(t.Context())
	must(t, err)
	past := func(ctx context.Context, f func(tx *sql.Tx) error) error {
		side, err := sqlite.OpenJournal(ctx, path) // the store lets its own tables be changed by itself alone
		if err != nil {
			return err
		}
		return errors.Join(side.Update(ctx, f), side.Close())
	}
	opened := journal{Journal: j, update: s.Update, exec: execWith(past)}
	opened.again = func(*testing.T) journal { return opened }
	return opened
}

func openPostgres(t *testing.T) journal { return openPostgresAt(t, servers.Postgres(t).SchemaURL(t)) }

func openPostgresAt(t *testing.T, url string) journal {
	j, err := postgres.OpenJournal(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { must(t, j.Close()) })
	db, err := sql.Open("pgx", url)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	update := func(ctx context.Context, f func(tx *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	return journal{
		Journal: j, update: update, again: func(t *testing.T) journal { return openPostgresAt(t, url) },
		exec: execWith(update),
	}
}

func execWith(update func(context.Context, func(tx *sql.Tx) error) error) func(*testing.T, string) {
	return func(t *testing.T, statement string) {
		t.Helper()
		must(t, update(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), statement)
			return err
		}))
	}
}

// request is one with a key, or without one if that is empty.
func request(t testing.TB, key, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

// enqueue enqueues requests, each in a transaction of its own.
func (j journal) enqueue(t testing.TB, requests ...*http.Request) (keys []string) {
	t.Helper()
	for _, r := range requests {
		must(t, j.update(t.Context(), func(tx *sql.Tx) error {
			key, err := client.Enqueue(t.Context(), j, tx, r)
			keys = append(keys, key)
			return err
		}))
	}
	return keys
}

// claim claims all that is due of the host that tests use.
func (j journal) claim(t testing.TB, limit int, lease time.Duration) []client.Claimed {
	t.Helper()
	claimed, err := j.Claim(t.Context(), "pay.example", limit, lease)
	must(t, err)
	return claimed
}

const payURL = "https://pay.example/payments?q=1"

func TestOperationIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		r := request(t, `"order \"17\""`, payURL, "{\"amount\":\x00\xff}")
		r.Header["X-Many"] = []string{"one", "zw\xf6lf", ""}
		key := j.enqueue(t, r)[0]
		if key != `order "17"` {
			t.Errorf("the key is %q", key)
		}
		o, err := j.Get(t.Context(), key)
		must(t, err)
		want := http.Header{"Content-Type": {"application/json"}, "X-Many": {"one", "zw\xf6lf", ""}}
		if o.Method != http.MethodPost || o.URL != payURL || string(o.Body) != "{\"amount\":\x00\xff}" ||
			!reflect.DeepEqual(o.Header, want) {
			t.Errorf("the request became %+v", o)
		}
		if o.State != client.StatePending || o.Attempts != 0 || !o.FirstSent.IsZero() || !o.SettledAt.IsZero() || o.Told ||
			time.Since(o.CreatedAt).Abs() > time.Hour {
			t.Errorf("the operation begins as %+v", o)
		}
		if _, err := j.Get(t.Context(), "another"); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("an operation that is not there: %v", err)
		}
	})
}

func TestOperationIsThereIfCommitted(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		undone := errors.New("undone")
		err := j.update(t.Context(), func(tx *sql.Tx) error {
			_, err := client.Enqueue(t.Context(), j, tx, request(t, "undone", payURL, ""))
			return errors.Join(err, undone)
		})
		if !errors.Is(err, undone) {
			t.Fatal(err)
		}
		if claimed := j.claim(t, 10, time.Hour); len(claimed) != 0 {
			t.Errorf("%d operations were rolled back and can be claimed", len(claimed))
		}
	})
}

// TestSecondOperationOfAKey: the transaction goes on, and the first request stays.
func TestSecondOperationOfAKey(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		j.enqueue(t, request(t, "a", payURL, "first"))
		must(t, j.update(t.Context(), func(tx *sql.Tx) error {
			if _, err := client.Enqueue(t.Context(), j, tx, request(t, "a", payURL, "second")); !errors.Is(err, client.ErrExists) {
				t.Errorf("the second Enqueue: %v", err)
			}
			_, err := client.Enqueue(t.Context(), j, tx, request(t, "b", payURL, "other"))
			return err
		}))
		o, err := j.Get(t.Context(), "a")
		must(t, err)
		if string(o.Body) != "first" {
			t.Errorf("the body is %q", o.Body)
		}
		_, err = j.Get(t.Context(), "b")
		must(t, err)
	})
}

func TestClaimIsALease(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		j.enqueue(t, request(t, "a", payURL, "1"), request(t, "b", payURL, "2"), request(t, "c", "https://other.example", ""))
		first := j.claim(t, 1, time.Hour)
		second := j.again(t).claim(t, 10, time.Millisecond)
		if len(first) != 1 || len(second) != 1 || first[0].Key != "a" || second[0].Key != "b" {
			t.Fatalf("claimed %+v and %+v", first, second)
		}
		if c := first[0]; c.Attempts != 1 || c.FirstSent.IsZero() || c.FirstSent.After(c.Now) || string(c.Body) != "1" {
			t.Errorf("the claim is %+v", c)
		}
		await.That(t, "the lease has ended", func() bool {
			again := j.claim(t, 10, time.Hour)
			return len(again) == 1 && again[0].Key == "b" && again[0].Attempts == 2 && again[0].FirstSent.Equal(second[0].FirstSent)
		})
		err := j.Settle(t.Context(), second[0].Lease(), client.Settlement{State: client.StateAnswered, Told: true})
		if !errors.Is(err, client.ErrFenced) {
			t.Errorf("who has lost the lease settles: %v", err)
		}
		hosts, err := j.DueHosts(t.Context())
		must(t, err)
		if !slices.Equal(hosts, []string{"other.example"}) {
			t.Errorf("due are %q", hosts)
		}
	})
}

func TestSettle(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		j.enqueue(t, request(t, "a", payURL, ""))
		c := j.claim(t, 1, time.Hour)[0]
		must(t, j.Settle(t.Context(), c.Lease(), client.Settlement{State: client.StatePending, Error: "a \x00 reset \xff"}))
		c = j.claim(t, 1, time.Hour)[0]
		if c.LastError != "a   reset ?" {
			t.Errorf("the last error is %q", c.LastError)
		}
		answer := client.Answer{Status: 201, Header: http.Header{"Location": {"/1"}}, Body: []byte("\x00paid"), Truncated: true}
		told := client.Settlement{State: client.StateAnswered, Answer: answer}
		for range 2 { // its reply may have been lost
			must(t, j.Settle(t.Context(), c.Lease(), told))
		}
		// To tell of it does not change what was answered, and an answer is not taken back.
		must(t, j.Settle(t.Context(), c.Lease(), client.Settlement{State: client.StateAnswered, Told: true}))
		for _, state := range []client.State{client.StatePending, client.StateUnknown} {
			if err := j.Settle(t.Context(), c.Lease(), client.Settlement{State: state}); !errors.Is(err, client.ErrFenced) {
				t.Errorf("an answered operation becomes %s: %v", state, err)
			}
		}
		o, err := j.Get(t.Context(), "a")
		must(t, err)
		if o.State != client.StateAnswered || !o.Told || !reflect.DeepEqual(o.Answer, answer) || o.SettledAt.IsZero() {
			t.Errorf("the operation is %+v", o)
		}
		if left := j.claim(t, 1, time.Hour); len(left) != 0 {
			t.Errorf("what was told is claimed: %+v", left)
		}
	})
}

func TestUntoldIsClaimedAgain(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		j.enqueue(t, request(t, "a", payURL, ""))
		c := j.claim(t, 1, time.Hour)[0]
		must(t, j.Settle(t.Context(), c.Lease(), client.Settlement{State: client.StateUnknown, Error: "late"}))
		again := j.claim(t, 1, time.Hour)
		if len(again) != 1 || again[0].State != client.StateUnknown || again[0].Attempts != 1 || again[0].Token == c.Token {
			t.Fatalf("claimed to tell: %+v", again)
		}
		must(t, j.Settle(t.Context(), again[0].Lease(), client.Settlement{State: client.StateUnknown, Told: true}))
		must(t, j.Resolve(t.Context(), "a", client.Answer{Status: 200, Body: []byte("found")}))
		if err := j.Resolve(t.Context(), "a", client.Answer{Status: 500}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("resolved twice: %v", err)
		}
		last := j.claim(t, 1, time.Hour)
		if len(last) != 1 || last[0].State != client.StateAnswered || string(last[0].Answer.Body) != "found" {
			t.Fatalf("resolved, it is claimed to be told as %+v", last)
		}
	})
}

func TestListAndPurge(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		if stats, err := j.Stats(t.Context()); stats != (client.Stats{}) || err != nil {
			t.Errorf("an empty journal has %+v, %v", stats, err)
		}
		for i, state := range []client.State{client.StatePending, client.StateAnswered, client.StateUnknown} {
			j.enqueue(t, request(t, fmt.Sprint(i), payURL, ""))
			c := j.claim(t, 1, time.Hour)[0]
			must(t, j.Settle(t.Context(), c.Lease(),
				client.Settlement{State: state, Told: state != client.StatePending, After: time.Hour}))
		}
		for _, test := range []struct {
			filter client.Filter
			want   []string
		}{
			{client.Filter{}, []string{"0", "1", "2"}},
			{client.Filter{Open: true}, []string{"0", "2"}},
			{client.Filter{States: []client.State{client.StateUnknown}}, []string{"2"}},
			{client.Filter{After: "0", Limit: 1}, []string{"1"}},
		} {
			listed, err := j.List(t.Context(), test.filter)
			must(t, err)
			var keys []string
			for _, o := range listed {
				keys = append(keys, o.Key)
			}
			if !slices.Equal(keys, test.want) {
				t.Errorf("%+v lists %q, want %q", test.filter, keys, test.want)
			}
		}
		j.exec(t, `UPDATE onceward_journal SET created_at = created_at - 3600000000 WHERE key <> '0'`)
		oldest := j.get(t, "0").CreatedAt
		j.enqueue(t, request(t, "3", payURL, ""))
		stats, err := j.Stats(t.Context())
		must(t, err)
		if want := (client.Stats{Pending: 2, OldestPending: oldest, Unknown: 1}); stats != want {
			t.Errorf("open are %+v, want %+v", stats, want)
		}
		if purged, err := j.Purge(t.Context(), time.Hour, 10); purged != 0 || err != nil {
			t.Errorf("what is not old: %d, %v", purged, err)
		}
		if purged, err := j.Purge(t.Context(), 0, 10); purged != 1 || err != nil {
			t.Errorf("purged %d, %v", purged, err)
		}
	})
}

// TestEachIsClaimedOnce: many claim at once.
func TestEachIsClaimedOnce(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		const operations = 60
		for i := range operations {
			j.enqueue(t, request(t, fmt.Sprint(i), payURL, ""))
		}
		var mu sync.Mutex
		times := make(map[string]int)
		var all sync.WaitGroup
		for range 4 {
			one := j.again(t)
			all.Go(func() {
				for {
					claimed, err := one.Claim(t.Context(), "pay.example", 7, time.Hour)
					if err != nil {
						t.Error(err)
					}
					if len(claimed) == 0 {
						return
					}
					if len(claimed) > 7 {
						t.Errorf("%d were claimed at once", len(claimed))
					}
					mu.Lock()
					for _, c := range claimed {
						times[c.Key]++
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for key, n := range times {
			if n != 1 {
				t.Errorf("%s was claimed %d times", key, n)
			}
		}
		if len(times) < operations && j.claim(t, 1, time.Hour) != nil {
			t.Error("some cannot be claimed")
		}
	})
}

// TestTablesOfANewerVersion are left alone.
func TestTablesOfANewerVersion(t *testing.T) {
	t.Parallel()
	file, url := filepath.Join(t.TempDir(), "caller.db"), servers.Postgres(t).SchemaURL(t)
	openFileAt(t, file).exec(t, `INSERT INTO onceward_journal_schema (version) VALUES (99)`)
	openPostgresAt(t, url).exec(t, `INSERT INTO onceward_journal_schema (version) VALUES (99)`)
	_, inFile := sqlite.OpenJournal(t.Context(), file)
	_, inPostgres := postgres.OpenJournal(t.Context(), url)
	for _, err := range []error{inFile, inPostgres} {
		if err == nil || !strings.Contains(err.Error(), "version 99") {
			t.Errorf("opened with: %v", err)
		}
	}
}

// TestTablesByHand: who creates the tables by hand gets the same.
func TestTablesByHand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "caller.db")
	db, err := sql.Open("sqlite3", "file:"+file)
	must(t, err)
	_, err = db.ExecContext(t.Context(), sqlite.JournalSchema())
	must(t, errors.Join(err, db.Close()))
	openFileAt(t, file).enqueue(t, request(t, "a", payURL, ""))

	server := servers.Postgres(t)
	schema, err := postgres.JournalSchema(server.Schema(t), "")
	must(t, err)
	must(t, server.Exec(t.Context(), schema))
	if _, err := postgres.JournalSchema("app", "no good"); err == nil {
		t.Error("a prefix that cannot be one is taken")
	}
}

// TestEnqueueInPgx: a transaction of pgx does the same.
func TestEnqueueInPgx(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servers.Postgres(t).SchemaURL(t))
	must(t, err)
	t.Cleanup(pool.Close)
	j, err := postgres.NewJournal(t.Context(), pool)
	must(t, err)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	_, err = postgres.Enqueue(t.Context(), j, tx, request(t, "a", payURL, ""))
	must(t, err)
	if _, err := postgres.Enqueue(t.Context(), j, tx, request(t, "a", payURL, "")); !errors.Is(err, client.ErrExists) {
		t.Errorf("a second time: %v", err)
	}
	if _, err := j.Get(t.Context(), "a"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("before the commit: %v", err)
	}
	must(t, tx.Commit(t.Context()))
	_, err = j.Get(t.Context(), "a")
	must(t, err)
}

// TestWhatIsLeftForLaterCostsNothing: a server that is down for long has thousands of operations that are not due. The
// index passes over them, by one comparison with the clock and not by one for each.
func TestWhatIsLeftForLaterCostsNothing(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servers.Postgres(t).SchemaURL(t)+"&pool_max_conns=1")
	must(t, err)
	t.Cleanup(pool.Close)
	j, err := postgres.NewJournal(t.Context(), pool)
	must(t, err)
	t.Cleanup(func() { must(t, j.Close()) })
	_, err = pool.Exec(t.Context(), `INSERT INTO onceward_journal (key, host, method, url, header, body, state, told,
			attempts, token, due, created_at, first_sent, settled_at, kept_until, last_error, status, answer_header,
			answer_body, truncated)
		SELECT 'k' || i, 'down.test', 'POST', 'http://down.test/', '', '', 0, 0, 1, 1, 9e15 + i, 1, 1, 0, 0, '', 0, '', '', 0
		FROM generate_series(1, 5000) AS i`)
	must(t, err)
	_, err = pool.Exec(t.Context(), `ANALYZE onceward_journal`)
	must(t, err)
	read := func() (rows int) {
		_, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`)
		must(t, err)
		must(t, pool.QueryRow(t.Context(), `SELECT sum(idx_tup_read) + (SELECT seq_tup_read FROM pg_stat_user_tables
			WHERE relid = to_regclass('onceward_journal')) FROM pg_stat_user_indexes
			WHERE relid = to_regclass('onceward_journal')`).Scan(&rows))
		return rows
	}
	before := read()
	if hosts, err := j.DueHosts(t.Context()); err != nil || len(hosts) != 0 {
		t.Fatal(hosts, err)
	}
	if claimed, err := j.Claim(t.Context(), "down.test", 8, time.Hour); err != nil || len(claimed) != 0 {
		t.Fatal(claimed, err)
	}
	if rows := read() - before; rows > 100 {
		t.Errorf("to find nothing due took %d rows", rows)
	}
}

// TestTablesAreCreatedOnce by nodes that start at the same time.
func TestTablesAreCreatedOnce(t *testing.T) {
	t.Parallel()
	onJournals(t, func(t *testing.T, j journal) {
		j.exec(t, `DROP TABLE onceward_journal`)
		j.exec(t, `DROP TABLE onceward_journal_schema`)
		var nodes sync.WaitGroup
		for range 8 {
			nodes.Go(func() { j.again(t) })
		}
		nodes.Wait()
	})
}

// TestWriterThatWaits for another, or by mistake for itself, heeds its context. SQLite has one writer at a time.
func TestWriterThatWaits(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) journal{"sqlite": openFile, "sqlite store": openInStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := open(t)
			must(t, j.update(t.Context(), func(*sql.Tx) error {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if n, err := j.Purge(ctx, 0, 1); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it was written beside another writer: %d, %v", n, err)
				}
				return nil
			}))
			_, err := j.Purge(t.Context(), 0, 1)
			must(t, err)
		})
	}
}
