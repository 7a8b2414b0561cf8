package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

var errMoment = errors.New("down for a moment")

// inboxBench is a store with an inbox, and a table of what was applied.
type inboxBench struct {
	*testing.T
	store *sqlite.Store
	box   *inbox.Inbox
}

func newInboxBench(t *testing.T) *inboxBench {
	t.Helper()
	t.Parallel()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "inbox.db"))
	b := &inboxBench{t, store, inbox.New(store)}
	b.must(err)
	t.Cleanup(func() { _ = store.Close() })
	b.must(store.InTx(t.Context(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE applied (line TEXT NOT NULL)`)
		return err
	}))
	return b
}

func (b *inboxBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// apply is what a consumer does with an event. Then it ends with the error.
func apply(line string, end error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO applied (line) VALUES (?)`, line)
		return errors.Join(err, end)
	}
}

// do delivers an event in a transaction of the test, as a consumer does that has its own.
func (b *inboxBench) do(consumer, event string, end error) (applied bool, err error) {
	err = b.store.InTx(b.Context(), func(ctx context.Context) error {
		applied, err = b.box.Do(ctx, onceward.Tx(ctx), consumer, event, apply(consumer+"/"+event, end))
		return err
	})
	return applied, err
}

// handle delivers an event in a transaction of the inbox.
func (b *inboxBench) handle(consumer, event string, end error) (applied bool, err error) {
	return b.box.Handle(b.Context(), consumer, event, apply(consumer+"/"+event, end))
}

func (b *inboxBench) wantApplied(rule, want string) {
	b.Helper()
	var got string
	b.must(b.store.DB().QueryRowContext(b.Context(), `SELECT coalesce(group_concat(line, ' ' ORDER BY rowid), '') FROM applied`).Scan(&got))
	if got != want {
		b.Errorf("%s: applied was %q, want %q", rule, got, want)
	}
}

// TestOnce: a consumer applies an event once, another consumer does so for itself, and one that was rolled back comes
// again.
func TestOnce(t *testing.T) {
	t.Parallel()
	for name, deliver := range map[string]func(b *inboxBench, consumer, event string, end error) (bool, error){
		"Do": (*inboxBench).do, "Handle": (*inboxBench).handle,
	} {
		t.Run(name, func(t *testing.T) {
			b := newInboxBench(t)
			want := func(rule, consumer, event string, applied bool, end error) {
				b.Helper()
				got, err := deliver(b, consumer, event, end)
				if !errors.Is(err, end) || end == nil && (got != applied || err != nil) {
					b.Errorf("%s: applied is %t, %v", rule, got, err)
				}
			}
			want("rolled back", "mailer", "e1", false, errMoment)
			b.wantApplied("rolled back", "")
			want("the first time", "mailer", "e1", true, nil)
			want("the second time", "mailer", "e1", false, nil)
			want("another consumer", "ledger", "e1", true, nil)
			want("another event", "mailer", "e2", true, nil)
			want("rolled back again", "ledger", "e2", false, errMoment)
			b.wantApplied("once", "mailer/e1 ledger/e1 mailer/e2")
			had, err := b.box.Consumed(t.Context(), "e1")
			if err != nil || len(had) != 2 || had[0].Consumer != "ledger" || had[1].Consumer != "mailer" || had[0].EventID != "e1" || had[0].At.IsZero() {
				t.Errorf("e1 was consumed by %+v, %v", had, err)
			}
		})
	}
}

// TestReportsARun: Do says that the function ran, also if that failed, and Handle that something was applied.
func TestReportsARun(t *testing.T) {
	b := newInboxBench(t)
	if applied, _ := b.do("mailer", "e1", errMoment); !applied {
		t.Error("Do says that the function did not run")
	}
	if applied, _ := b.handle("mailer", "e1", errMoment); applied {
		t.Error("Handle says that the event was applied")
	}
}

// TestAtOnce: of many deliveries at the same time one applies the event.
func TestAtOnce(t *testing.T) {
	b := newInboxBench(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := b.handle("mailer", "e1", nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.wantApplied("once", "mailer/e1")
}

// TestNames: those that are missing or too long are refused, and those that just fit are not.
func TestNames(t *testing.T) {
	b := newInboxBench(t)
	fits := strings.Repeat("x", inbox.MaxName)
	for want, names := range map[string][2]string{
		"inbox: the name of the consumer is missing":                                     {"", "e"},
		"inbox: the ID of the event is missing":                                          {"c", ""},
		"inbox: the name of the consumer is 256 bytes long, and at most 255 are allowed": {fits + "x", "e"},
		"inbox: the ID of the event is 256 bytes long, and at most 255 are allowed":      {"c", fits + "x"},
	} {
		for _, deliver := range []func(consumer, event string, end error) (bool, error){b.do, b.handle} {
			if applied, err := deliver(names[0], names[1], nil); applied || err == nil || err.Error() != want {
				t.Errorf("applied is %t, %v, want %s", applied, err, want)
			}
		}
	}
	for _, deliver := range []func(consumer, event string, end error) (bool, error){b.do, b.handle} {
		if _, err := deliver(fits, fits, nil); err != nil {
			t.Errorf("names that fit: %v", err)
		}
	}
	b.wantApplied("once", fits+"/"+fits)
}

func TestDoNeedsATransaction(t *testing.T) {
	b := newInboxBench(t)
	runs := func(context.Context) error { t.Error("the function ran"); return nil }
	if _, err := b.box.Do(t.Context(), nil, "c", "e", runs); err == nil || err.Error() != "inbox: Do needs the transaction in which the event is applied" {
		t.Errorf("without a transaction: %v", err)
	}
}

// faultyInbox is a store that begins its work again, as one does after a rollback that work did not ask for, and that
// can be down.
type faultyInbox struct {
	inbox.Store
	reruns   int
	remember error
}

func (f *faultyInbox) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	undone := errors.New("undone")
	for range f.reruns {
		err := f.Store.InTx(ctx, func(ctx context.Context) error { return errors.Join(work(ctx), undone) })
		if !errors.Is(err, undone) {
			return err
		}
	}
	return f.Store.InTx(ctx, work)
}

func (f *faultyInbox) RememberEvent(ctx context.Context, tx *sql.Tx, consumer, event string) (bool, error) {
	if f.remember != nil {
		return false, f.remember
	}
	return f.Store.RememberEvent(ctx, tx, consumer, event)
}

// TestWorkThatIsRepeated: what counts is how the last run ended.
func TestWorkThatIsRepeated(t *testing.T) {
	b := newInboxBench(t)
	b.box = inbox.New(&faultyInbox{Store: b.store, reruns: 2})
	if applied, err := b.handle("mailer", "e1", nil); !applied || err != nil {
		t.Errorf("applied is %t, %v", applied, err)
	}
	b.wantApplied("once", "mailer/e1")
}

// TestStoreDown: what cannot be remembered is not applied.
func TestStoreDown(t *testing.T) {
	b := newInboxBench(t)
	b.box = inbox.New(&faultyInbox{Store: b.store, remember: errMoment})
	for _, deliver := range []func(consumer, event string, end error) (bool, error){b.do, b.handle} {
		if applied, err := deliver("mailer", "e1", nil); applied || !errors.Is(err, errMoment) {
			t.Errorf("applied is %t, %v", applied, err)
		}
	}
	b.wantApplied("down", "")
}

// TestPurgedEvents: what was forgotten is applied again, and what is young is kept.
func TestPurgedEvents(t *testing.T) {
	b := newInboxBench(t)
	for range 2 {
		if applied, err := b.handle("mailer", "e1", nil); !applied || err != nil {
			t.Errorf("applied is %t, %v", applied, err)
		}
		if purged, err := b.box.Purge(t.Context(), time.Hour); purged != 0 || err != nil {
			t.Errorf("purged were %d, %v", purged, err)
		}
		if purged, err := b.box.Purge(t.Context(), -time.Hour); purged != 1 || err != nil {
			t.Errorf("purged were %d, %v", purged, err)
		}
	}
}
