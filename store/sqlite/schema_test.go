package sqlite_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// openRaw opens a connection of somebody else, such as the sqlite3 shell.
func openRaw(t testing.TB, path string) *sqlite3.Conn {
	t.Helper()
	conn, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.BusyTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	return conn
}

func number(t testing.TB, conn *sqlite3.Conn, query string) (n int) {
	t.Helper()
	stmt, _, err := conn.Prepare(query)
	if err != nil {
		t.Fatal(err)
	}
	if stmt.Step() {
		n = stmt.ColumnInt(0)
	}
	if err := stmt.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOpenAgain: what is up to date is not migrated again, and keeps what is in it.
func TestOpenAgain(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	for round := range 3 {
		s := openBusiness(t, path)
		transacted(t, s, reservation(fmt.Sprint("key-", round)), inserting("row"), store.DecisionExecute, "E1")
		for earlier := range round {
			transacted(t, s, reservation(fmt.Sprint("key-", earlier)), never(t, "I1"), store.DecisionReplay, "I3")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		raw := openRaw(t, path)
		if n := number(t, raw, `SELECT count(*) FROM onceward_schema`); n != number(t, raw, `SELECT max(version) FROM onceward_schema`) {
			t.Errorf("%d migrations are noted", n)
		}
		if mode := number(t, raw, `SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'`); mode != 1 {
			t.Error("the file does not use a write-ahead log")
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenBesideBusinessTables: a file that the program has used before gets the store's tables, and keeps its own version.
func TestOpenBesideBusinessTables(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	raw := openRaw(t, path)
	if err := raw.Exec(`CREATE TABLE business (value TEXT NOT NULL); INSERT INTO business VALUES ('old'); PRAGMA user_version = 42`); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, path)
	wantRows(t, store, "old", 1, "section 11")
	if v := number(t, raw, `PRAGMA user_version`); v != 42 {
		t.Errorf("user_version is %d, want the program's own 42", v)
	}
}

// TestNewerTables: an old program keeps its hands off what a newer one made.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	if err := openStore(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	raw := openRaw(t, path)
	if err := raw.Exec(`INSERT INTO onceward_schema VALUES (1000, 'tomorrow'); PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, path, "its tables are of version 1000, and this program knows versions up to 2: use a newer program")
}

// TestTablesMissing: a failed Open leaves no connection behind that would hold the file.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	if err := openStore(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	raw := openRaw(t, path)
	if err := raw.Exec(`DROP TABLE onceward_number; PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, path, "no such table: onceward_number")
	if err := raw.Exec(`PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE; COMMIT`); err != nil {
		t.Errorf("after an Open that failed the file is still held: %v", err)
	}
}

// TestNewerRecord: a record of a version that is not known here is neither replaced, nor replayed, nor executed again, nor
// removed, and does not hold up the work on others (S8).
func TestNewerRecord(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	var clock testClock
	s := openBusiness(t, path, sqlite.WithClock(clock.now))
	handler := paying()
	guard := newGuard(t, s)
	transactional := guard.Handler(handler, onceward.Transactional(), onceward.Retain(time.Hour))
	reserved := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown))
	for _, key := range []string{"newer", "older"} {
		post(transactional, key).want(t, http.StatusCreated, false, "E1")
	}
	raw := openRaw(t, path)
	newer := fmt.Sprintf(`UPDATE onceward_record SET record = CAST(x'%02x' || substr(record, 2) AS BLOB) WHERE rowid = 1`, store.RecordVersion+1)
	if err := raw.Exec(newer); err != nil {
		t.Fatal(err)
	}
	stored := number(t, raw, `SELECT length(record) FROM onceward_record WHERE rowid = 1`)
	for _, h := range []http.Handler{transactional, reserved} {
		post(h, "newer").wantProblem(t, http.StatusInternalServerError, "record-unreadable", "S8")
	}
	handler.wantRuns(t, 2, "S8: fail closed")
	calls := map[string]error{}
	claim := store.Claim{ID: idOf("newer"), Attempt: 1}
	calls["extend"] = s.Extend(t.Context(), claim, time.Minute)
	calls["release"] = s.Release(t.Context(), claim, "")
	calls["bust"] = s.Bust(t.Context(), claim.ID, true)
	_, calls["get"] = s.Get(t.Context(), claim.ID)
	clock.advance(2 * time.Hour)
	_, calls["reserve after its expiry"] = s.Reserve(t.Context(), reservation("newer"))
	reaped, err := s.Reap(t.Context(), 10, false)
	calls["reap"] = err
	for name, err := range calls {
		if !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("S8: %s got %v, want ErrUnreadable", name, err)
		}
	}
	page, err := s.List(t.Context(), store.Filter{})
	if err != nil || len(page) != 1 || page[0].ID != claim.ID || page[0].Version != 0 || page[0].LastError == "" {
		t.Errorf("S8: listed were %+v, %v, want the record with its ID and why it cannot be read", page, err)
	}
	if reaped != 1 {
		t.Errorf("B2: %d records were reaped, want the one that can be read", reaped)
	}
	wantState(t, s, "older", store.StateNone, "B2")
	if n := number(t, raw, `SELECT length(record) FROM onceward_record WHERE rowid = 1`); n != stored {
		t.Errorf("S8: the record has %d bytes, want %d as before", n, stored)
	}
}

// TestOpenAtOnce lets many open the same new file.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	for range 8 {
		path := newFile(t)
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				store, err := sqlite.Open(t.Context(), path)
				if err != nil {
					t.Errorf("one of several that open a new file: %v", err)
					return
				}
				if _, err := store.Reserve(t.Context(), reservation(fmt.Sprint("key-", i))); err != nil {
					t.Error(err)
				}
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if stats, err := openStore(t, path).Stats(t.Context()); err != nil || stats.Records[store.StateInProgress] != 8 {
			t.Errorf("got %v (%v), want a record of each store", stats, err)
		}
	}
}
