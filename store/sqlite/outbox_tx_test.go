package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// TestAddInHandler: a message of a transactional handler is there if and only if its answer is, and knows where it is
// from.
func TestAddInHandler(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	box := newBox(t, store)
	guard := newGuard(t, store)
	broken := errors.New("broken")
	for _, failure := range []error{broken, nil, nil} {
		call := onceward.Call{Scope: "alice", Key: "key", Operation: "pay", Payload: []byte("payload")}
		_, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			_, err := box.Add(ctx, onceward.Tx(ctx), about("a"))
			return nil, errors.Join(err, failure)
		}, onceward.Transactional())
		if (err == nil) != (failure == nil) {
			t.Fatal(err)
		}
	}
	found, err := store.Messages(t.Context(), outbox.Filter{Origin: idOf("key")})
	if err != nil || len(found) != 1 {
		t.Fatalf("O1: %d messages (%v) of an operation that was undone, executed and replayed, want 1", len(found), err)
	}
	e := found[0]
	if e.OriginAttempt == 0 || e.DownstreamKey == "" || e.Source != "https://shop.example" || e.Subject != "a" || e.CreatedAt.IsZero() {
		t.Errorf("O3: the message is %+v", e)
	}
	for name, f := range map[string]outbox.Filter{
		"the downstream key":    {DownstreamKey: e.DownstreamKey},
		"another operation":     {Origin: idOf("other")},
		"another key":           {DownstreamKey: "other"},
		"another one's message": {ID: e.ID, Origin: idOf("other")},
	} {
		found, err := store.Messages(t.Context(), f)
		if want := f.DownstreamKey == e.DownstreamKey; err != nil || (len(found) == 1) != want {
			t.Errorf("by %s found %d (%v)", name, len(found), err)
		}
	}
}

// TestNoTransaction: a message that is written past the transaction would be delivered although that is undone.
func TestNoTransaction(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	_, eventErr := store.RememberEvent(t.Context(), nil, "consumer", "event")
	_, upsertErr := store.UpsertRow(t.Context(), nil, natural.Upsert{Table: "business", Key: []natural.Column{{Name: "value", Value: "x"}}})
	for call, err := range map[string]error{
		"AddMessage":    store.AddMessage(t.Context(), nil, &outbox.Entry{ID: "id"}),
		"RememberEvent": eventErr, "UpsertRow": upsertErr, "LockName": store.LockName(t.Context(), nil, "name"),
	} {
		if err == nil || !strings.Contains(err.Error(), "there is no transaction: pass the *sql.Tx of onceward.Tx(ctx)") {
			t.Errorf("O1: %s without a transaction got %v", call, err)
		}
	}
	if found, err := store.Messages(t.Context(), outbox.Filter{}); err != nil || len(found) > 0 {
		t.Errorf("O1: %d messages (%v) without a transaction", len(found), err)
	}
}

// TestTxIsOver: a transaction that has ended takes no more messages.
func TestTxIsOver(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	var kept *sql.Tx
	inTx(t, s, func(ctx context.Context) error {
		kept = onceward.Tx(ctx)
		return nil
	})
	err := s.AddMessage(t.Context(), kept, &outbox.Entry{ID: "id", Message: about("a")})
	if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("O1: a transaction that is over got %v", err)
	}
}

// TestInTx commits what returns nil, undoes what does not, and takes its transaction from its context.
func TestInTx(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	inTx(t, store, func(ctx context.Context) error { return insert(ctx, "kept") })
	broken := errors.New("broken")
	if err := store.InTx(t.Context(), func(ctx context.Context) error { return errors.Join(insert(ctx, "undone"), broken) }); !errors.Is(err, broken) {
		t.Errorf("the error of the work is lost: %v", err)
	}
	wantRows(t, store, "kept", 1, "I10")
	wantRows(t, store, "undone", 0, "I10")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := store.InTx(ctx, func(context.Context) error {
		t.Error("work ran for a caller that had left")
		return nil
	})
	wantUnavailable(t, err, "the caller stopped waiting", "I10")
	exec(t, store, `CREATE TABLE parent (number INTEGER PRIMARY KEY)`)
	exec(t, store, `CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	err = store.InTx(t.Context(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO child VALUES (1)`)
		return errors.Join(err, insert(ctx, "orphan"))
	})
	wantWorkRefused(t, err, "deferred foreign key", "I10: a consumer is to count it")
	wantRows(t, store, "orphan", 0, "I10")
}

// TestHints: watchers are told after the commit, as often as there is room.
func TestHints(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	box := newBox(t, store)
	first, stopFirst := store.WatchMessages()
	second, stopSecond := store.WatchMessages()
	defer stopSecond()
	told := func(hints <-chan struct{}) bool {
		select {
		case <-hints:
			return true
		default:
			return false
		}
	}
	for range 2 { // the second time the first hint was not read
		inTx(t, store, func(ctx context.Context) error {
			_, err := box.Add(ctx, onceward.Tx(ctx), about("a"))
			if told(first) {
				t.Error("O2: a hint before the commit")
			}
			return err
		})
		if !told(first) {
			t.Error("O2: no hint after the commit")
		}
	}
	if !told(second) || told(second) {
		t.Error("O2: of several hints one is kept")
	}
	run := claim(t, store, 1)
	wantClaimed(t, store, 1, "O2: behind the first")
	if told(first) {
		t.Error("O2: a hint without a message")
	}
	stopFirst()
	stopFirst()
	done(t, store, run...)
	if told(first) || !told(second) {
		t.Error("O2: a message that is behind nothing any more is told to those who still watch")
	}
	if store.HearsMessages() {
		t.Error("O2: other processes cannot be heard")
	}
}

// addAndHang is a process that adds a message, and never gets to the commit.
func addAndHang(path string) error {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return err
	}
	return store.InTx(ctx, func(ctx context.Context) error {
		if _, err := box.Add(ctx, onceward.Tx(ctx), about("a")); err != nil {
			return err
		}
		if _, err := store.RememberEvent(ctx, onceward.Tx(ctx), "consumer", "event"); err != nil {
			return err
		}
		fmt.Println("ready")
		bufio.NewScanner(os.Stdin).Scan()
		return errors.New("it was not killed")
	})
}

// TestKilledBeforeCommit: what was added in a transaction that never ended is not there (I10).
func TestKilledBeforeCommit(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openBusiness(t, path)
	before := add(t, store, about("a"))
	p := startProcess(t, "adder", path)
	if found, err := store.Messages(t.Context(), outbox.Filter{}); err != nil || len(found) != 1 {
		t.Errorf("I10: %d messages (%v) before the commit of another process, want 1", len(found), err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	after := add(t, store, about("a"))
	wantClaimed(t, store, 10, "I10", before[0], after[0])
	if consumed, err := store.ConsumedEvents(t.Context(), "event"); err != nil || len(consumed) > 0 {
		t.Errorf("I10: the event is remembered: %v (%v)", consumed, err)
	}
}

// TestTwoStores: the messages of one process are delivered by another, which has not heard of them.
func TestTwoStores(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	one, other := openStore(t, path), openStore(t, path)
	var ids []string
	for i := range 4 {
		ids = append(ids, add(t, []*sqlite.Store{one, other}[i%2], about("a"))...)
	}
	run := wantClaimed(t, other, 3, "O2: the order of commits is that of all processes", ids[:3]...)
	wantClaimed(t, one, 3, "O2: what another process has leased")
	if fenced, err := one.FinishMessages(t.Context(), []outbox.Outcome{to(outbox.StateDone, run[0]), to(outbox.StateDone, run[1]), to(outbox.StateDone, run[2])}); err != nil || len(fenced) > 0 {
		t.Fatalf("a lease is one of the file, not of the process: %v (%v)", fenced, err)
	}
	wantClaimed(t, other, 3, "O2", ids[3])
}

// TestAddAfterSchemaChange: SQLite prepares the store's statement again where another process has made a table, and the
// gate lets it through again.
func TestAddAfterSchemaChange(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openBusiness(t, path)
	raw := openRaw(t, path)
	for i := range 3 {
		if err := raw.Exec(fmt.Sprintf(`CREATE TABLE made_%d (value TEXT)`, i)); err != nil {
			t.Fatal(err)
		}
		add(t, store, about("a"))
		if err := raw.Exec(fmt.Sprintf(`CREATE INDEX made_index_%d ON made_%d (value)`, i, i)); err != nil {
			t.Fatal(err)
		}
		inTx(t, store, func(ctx context.Context) error {
			_, err := store.RememberEvent(ctx, onceward.Tx(ctx), "consumer", fmt.Sprint("event-", i))
			return err
		})
	}
	if claimed := claim(t, store, 10); len(claimed) != 3 || time.Since(claimed[0].CreatedAt) > time.Hour {
		t.Errorf("O1: %d messages, want 3", len(claimed))
	}
}
