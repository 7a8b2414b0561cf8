package postgres

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// OneLane lets one batch at a time be on the wire.
func OneLane() Option { return WithLanes(1) }

// Listening makes a call that waits rely on notifications: it does not look again for an hour.
func Listening() Option { return func(o *options) { o.calmLook = time.Hour } }

// LockTimeout is how long the store's own connections wait for the lock of a record.
func LockTimeout(text string) Option { return func(o *options) { o.lockTimeout = text } }

// Looking is how long what is read on the side may take.
func Looking(d time.Duration) Option { return func(o *options) { o.lookTimeout = d } }

// Closing is how long Close waits for what is under way, and then for what was cut off.
func Closing(bearable, hard time.Duration) Option {
	return func(o *options) { o.closeTimeout, o.hardTimeout = bearable, hard }
}

// TestGateIsNotSeizedBehindTheConnection: a handler that took the connection itself in the last call before its time
// was over may be at it now, and may have ended the transaction.
func TestGateIsNotSeizedBehindTheConnection(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*gate){
		"the connection itself": func(g *gate) { g.raw.Store(true) },
		"large objects":         func(g *gate) { g.objects.Store(true) },
	} {
		g := &gate{}
		if _, err := g.enter(); err != nil {
			t.Fatal(err)
		}
		g.Lock()
		take(g)
		g.Leave()
		if g.Seize(slog.Default(), g.within) {
			t.Errorf("E8: the gate was seized from a handler that has %s", name)
		}
	}
}

// TestErrorThatEndsTheSession: servers send the severity of an error in their own language, and once more in English.
func TestErrorThatEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		severity, unlocalized string
		want                  bool
	}{
		{"FATAL", "FATAL", true},
		{"PANIK", "PANIC", true},
		{"致命错误", "FATAL", true},
		{"FEHLER", "ERROR", false},
		{"FATAL", "", true}, // a pooler may send the one field alone
		{"ERROR", "", false},
	} {
		err := &pgconn.PgError{Severity: test.severity, SeverityUnlocalized: test.unlocalized}
		if got := lost(err); got != test.want {
			t.Errorf("an error of severity %q (%q) ends the session: %t, want %t",
				test.severity, test.unlocalized, got, test.want)
		}
	}
}

func TestStatementsThatMayEndATransaction(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]bool{
		"COMMIT": true, " commit\n": true, "END": true, "/* why */ -- and how\nCommit/**/": true, "SELECT 1; END TRANSACTION": true,
		"PREPARE TRANSACTION 'x'": true, "COMMIT AND CHAIN": true, "": false, ";": false, "/* commit": false, "--": false,
		"CREATE TEMP TABLE t () ON COMMIT DROP": false, "SELECT CASE WHEN true THEN 1 END": false,
		"INSERT INTO commitment VALUES ('commit')": false, "ROLLBACK TO SAVEPOINT a": false,
	} {
		if got := mayEnd(statement); got != want {
			t.Errorf("%q may end a transaction: %t, want %t", statement, got, want)
		}
	}
}

// TestRefusedBesideAnAnswer is about the moment between a refused commit and the look at the record: who has stored an
// answer by then has executed, and a client must not be told that its request was refused.
func TestRefusedBesideAnAnswer(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23514", TableName: "payment"}
	settled := store.Record{State: store.StateCompleted, Fingerprint: store.Fingerprint{Secret: 1}}
	x := &handlerPlan{transaction: transaction{store: new(Store)}, settled: settled}
	if err := x.learned(new(store.Record), fateUndone, cause); !errors.Is(err, store.ErrWorkRefused) {
		t.Errorf("nothing is stored: %v, want ErrWorkRefused", err)
	}
	others := &store.Record{State: store.StateCompleted, Attempt: 7}
	if err := x.learned(others, fateUndone, cause); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("another one has stored its answer: %v, want ErrUnavailable, so that a retry gets it", err)
	}
}

// TestUnknownIsNotRetried: work is run again if its own transaction was undone, and only then. An error that it
// returned may say as much of a transaction inside of it, or that it is not known what became of that one.
func TestUnknownIsNotRetried(t *testing.T) {
	t.Parallel()
	inner := new(Store).retry(t.Context(), false, func(context.Context) error { return &sqltx.UndoneError{} })
	for name, test := range map[string]struct {
		err  error
		runs int
	}{
		"undone":                 {&sqltx.UndoneError{}, sqltx.MaxTries},
		"undone with an error":   {&sqltx.UndoneError{Cause: inner}, sqltx.MaxTries},
		"undone inside":          {inner, 1},
		"unknown":                {errors.Join(store.ErrOutcomeUnknown, inner), 1},
		"undone, unknown inside": {&sqltx.UndoneError{Cause: errors.Join(store.ErrOutcomeUnknown, inner)}, 1},
	} {
		runs := 0
		err := new(Store).retry(t.Context(), false, func(context.Context) error { runs++; return test.err })
		if runs != test.runs || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("I1: %s: %d runs and %v, want %d", name, runs, err, test.runs)
		}
	}
}

// TestDurabilityRisks: each setting that can lose an acknowledged commit is named, and no other.
func TestDurabilityRisks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fsync, pages, synchronous, names string
		replicas                         int
		want                             []string
	}{
		{"on", "on", "on", "", 0, nil},
		{"on", "on", "remote_apply", "FIRST 1 (a, b)", 2, nil},
		{"on", "on", "remote_write", "a", 1, nil},
		{"on", "on", "local", "", 0, nil},
		{"off", "on", "on", "", 0, []string{"fsync"}},
		{"on", "off", "on", "", 0, []string{"full_page_writes"}},
		{"on", "on", "off", "", 0, []string{"synchronous_commit is off"}},
		{"on", "on", "on", "", 1, []string{"none is waited for"}},
		{"on", "on", "local", "a", 1, []string{"none is waited for"}},
		{"on", "on", "off", "a", 1, []string{"synchronous_commit is off", "none is waited for"}},
		{"off", "off", "off", "", 3, []string{"fsync", "full_page_writes", "synchronous_commit is off", "there are 3 standbys"}},
	} {
		risks := durabilityRisks(c.fsync, c.pages, c.synchronous, c.names, c.replicas)
		if len(risks) != len(c.want) {
			t.Errorf("%+v: the risks are %q", c, risks)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(risks[i], want) {
				t.Errorf("%+v: risk %d is %q, want it to say %q", c, i, risks[i], want)
			}
		}
	}
}

// TestStatementNames: programs whose statements differ in their texts do not share names, or one of them would run the
// statement of the other on a connection of a pooler.
func TestStatementNames(t *testing.T) {
	t.Parallel()
	one, other := names{schema: "one", prefix: "onceward_"}, names{schema: "other", prefix: "onceward_"}
	first, second := prepareStatements(one, "onceward_1"), prepareStatements(other, "onceward_1")
	if name := first.insertAnswer.name; name == second.insertAnswer.name {
		t.Errorf("%q and %q have the same name %q", first.insertAnswer.text, second.insertAnswer.text, name)
	}
}

// TestExpectIsCheap: an announcement does not look at all records that are waited for, and forgets them in the end.
func TestExpectIsCheap(t *testing.T) {
	t.Parallel()
	w := &watcher{awaited: make(map[[16]byte]time.Time)}
	now, looks := time.Now(), 0
	for i := range 50_000 {
		before := w.swept
		w.expect([16]byte{byte(i), byte(i >> 8)}, now.Add(time.Duration(i)*awaitedFor/50_000))
		if w.swept != before {
			looks++
		}
	}
	if looks != 1 {
		t.Errorf("50,000 announcements within %s looked at all records %d times, want once", awaitedFor, looks)
	}
	w.expect([16]byte{}, now.Add(2*awaitedFor+1))
	if len(w.awaited) != 1 {
		t.Errorf("%d records are awaited, want 1", len(w.awaited))
	}
}
