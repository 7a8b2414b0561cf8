package outboxcrash

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
)

// world is a database with accounts, whose changes are sent out as messages, and with a table of what consumers have
// applied.
type world struct {
	testing.TB
	url   string
	store everything
	box   *outbox.Outbox
	inbox *inbox.Inbox
}

// onStores runs a test in a world on each durable store.
func onStores(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, kind))
		})
	}
}

func newWorld(t testing.TB, kind string) *world {
	t.Helper()
	url, serial := filepath.Join(t.TempDir(), "outboxcrash.db"), "INTEGER PRIMARY KEY"
	if kind == "postgres" {
		url, serial = servers.Postgres(t).SchemaURL(t), "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
	}
	store, err := openStore(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	box, err := outbox.New(store, outbox.Config{Source: "outboxcrash"})
	must(t, err)
	w := &world{TB: t, url: url, store: store, box: box, inbox: inbox.New(store)}
	w.inTx(func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE account (name TEXT PRIMARY KEY, changes INTEGER NOT NULL)`)
		if err != nil {
			return err
		}
		_, err = onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE applied (place `+serial+`, account TEXT NOT NULL, change INTEGER NOT NULL, undone INTEGER NOT NULL)`)
		return err
	})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) inTx(work func(ctx context.Context) error) {
	w.Helper()
	must(w, w.store.InTx(w.Context(), work))
}

// change is what a message says: the how many-th change of its account it is, and whether its transaction was rolled
// back.
type change struct {
	Account string
	Number  int
	Undone  bool
}

// errUndone rolls a transaction back.
var errUndone = errors.New("undone")

// adds changes an account and sends a message about it, in one transaction, which is rolled back if undone is true.
func (w *world) adds(ctx context.Context, topic, account string, undone bool) error {
	err := w.store.InTx(ctx, func(ctx context.Context) error {
		tx := onceward.Tx(ctx)
		c := change{Account: account, Undone: undone}
		err := tx.QueryRowContext(ctx, `INSERT INTO account (name, changes) VALUES ($1, 1)
			ON CONFLICT (name) DO UPDATE SET changes = account.changes + 1 RETURNING changes`, account).Scan(&c.Number)
		if err != nil {
			return err
		}
		payload, err := json.Marshal(c)
		if err != nil {
			return err
		}
		_, err = w.box.Add(ctx, tx, outbox.Message{
			Topic: topic, AggregateType: "account", AggregateID: account, Type: "account.changed", Payload: payload,
		})
		if err == nil && undone {
			err = errUndone
		}
		return err
	})
	if errors.Is(err, errUndone) {
		return nil
	}
	return err
}

// apply writes down that a consumer has applied a message, in the transaction of the inbox.
func apply(ctx context.Context, payload []byte) error {
	var c change
	if err := json.Unmarshal(payload, &c); err != nil {
		return err
	}
	undone := 0
	if c.Undone {
		undone = 1
	}
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO applied (account, change, undone) VALUES ($1, $2, $3)`, c.Account, c.Number, undone)
	return err
}

// number is what a query finds.
func (w *world) number(query string) (n int) {
	w.Helper()
	w.inTx(func(ctx context.Context) error { return onceward.Tx(ctx).QueryRowContext(ctx, query).Scan(&n) })
	return n
}

// changes returns how many changes each account had, and what was applied to it, in order.
func (w *world) changes() (committed map[string]int, applied map[string][]int) {
	w.Helper()
	w.inTx(func(ctx context.Context) error {
		committed, applied = make(map[string]int), make(map[string][]int)
		err := eachRow(ctx, `SELECT name, changes FROM account`, func(name string, n int) { committed[name] = n })
		if err != nil {
			return err
		}
		return eachRow(ctx, `SELECT account, change FROM applied ORDER BY place`, func(name string, n int) { applied[name] = append(applied[name], n) })
	})
	return committed, applied
}

func eachRow(ctx context.Context, query string, use func(name string, n int)) error {
	rows, err := onceward.Tx(ctx).QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return err
		}
		use(name, n)
	}
	return rows.Err()
}

// awaitsAll waits until nothing is left of what other processes do, however much that is.
func (w *world) awaitsAll(next string, left func() int) {
	w.Helper()
	for n := left(); n > 0; {
		before := n
		await.That(w, next, func() bool { n = left(); return n < before })
	}
}

// starts starts a worker process, and returns when it works. It is killed at the end of the test at the latest.
func (w *world) starts(settings workerSettings) (*proc.Process, error) {
	settings.Store = w.url
	settings.Lease = cmp.Or(settings.Lease, shortLease)
	encoded, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	p, err := proc.Start(proc.Self(workerVariable, string(encoded)))
	if err != nil {
		return nil, err
	}
	w.Cleanup(func() {
		must(w, p.Kill())
		if said := p.Stderr(); w.Failed() && said != "" {
			w.Logf("a worker wrote to its standard error:\n%s", said)
		}
	})
	_, err = p.Expect("working", await.Limit)
	return p, err
}
