package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// openRaw opens a connection of another program, such as the sqlite3 shell.
func openRaw(t testing.TB, path string) *sqlite3.Conn {
	t.Helper()
	conn, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.BusyTimeout(await.Limit); err != nil {
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
		if n := number(t, raw, `SELECT count(*) FROM onceward_schema`); n != number(t, raw,
			`SELECT max(version) FROM onceward_schema`) {
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

// TestOpenBesideBusinessTables: a file that the program has used before gets the store's tables, and keeps its own
// version.
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
	if err := raw.Exec(`INSERT INTO onceward_schema (version, applied_at) VALUES (1000, 'tomorrow'); PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, path, "are of version 1000, and this program knows version 1: use a newer program")
}

// TestTablesMissing: a failed Open leaves no connection behind that would hold the file.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	if err := openStore(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	raw := openRaw(t, path)
	if err := raw.Exec(`DROP TABLE onceward_meta; PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, path, "no such table: onceward_meta")
	if err := raw.Exec(`PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE; COMMIT`); err != nil {
		t.Errorf("after an Open that failed the file is still held: %v", err)
	}
}

// TestNewerRecord: a record of a version that is not known here is neither replaced, nor replayed, nor executed again,
// nor removed, and does not hold up the work on others (S8).
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
				store, err := sqlite.Open(t.Context(), path, patient)
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
		if stats, err := openStore(t, path).Stats(t.Context()); err != nil ||
			stats.Records[store.StateInProgress] != 8 {
			t.Errorf("got %v (%v), want a record of each store", stats, err)
		}
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has the permissions %o, want %o", filepath.Base(path), got, want)
	}
}

// TestPermissions lets the process forbid nothing by itself. It is not parallel: the umask belongs to the whole
// process.
func TestPermissions(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "made", "for", "it.db")
	s := openStore(t, path)
	transacted(t, s, reservation("key"), func(context.Context, store.Verdict) store.Settlement {
		return settled(store.TxCommit, "secret")
	}, store.DecisionExecute, "E1")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		wantMode(t, path+suffix, 0o600)
	}
	wantMode(t, filepath.Dir(path), 0o700)
	wantMode(t, filepath.Dir(filepath.Dir(path)), 0o700)
}

// TestLookingLeavesNothingOpen: what a look leaves beside the file is for the file's owner, and for nobody else, also if
// it was root who looked.
func TestLookingLeavesNothingOpen(t *testing.T) {
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "store.db")
	if err := openStore(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	if os.Geteuid() == 0 {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sqlite.Status(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	database := statOf(t, path)
	for _, suffix := range []string{"-wal", "-shm"} {
		wantMode(t, path+suffix, 0o600)
		if got, want := statOf(t, path+suffix).Uid, database.Uid; got != want {
			t.Errorf("%s belongs to user %d, and the database to %d", suffix, got, want)
		}
	}
}

func statOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t)
}

// TestExistingPermissions leaves what an administrator chose, and gives it to the files beside.
func TestExistingPermissions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shared")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "existing.db")
	if err := os.WriteFile(path, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	openStore(t, path)
	wantMode(t, dir, 0o750)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		wantMode(t, path+suffix, 0o640)
	}
}

// wantRefused opens a file that cannot be opened, and checks that the error says why and that nothing was changed.
func wantRefused(t *testing.T, path, text string) {
	t.Helper()
	before, _ := os.ReadFile(path)
	for range 2 {
		store, err := sqlite.Open(t.Context(), path)
		if err == nil {
			_ = store.Close()
			t.Fatalf("%s was opened, want an error with %q", path, text)
		}
		if !strings.HasPrefix(err.Error(), "sqlite: ") || !strings.Contains(err.Error(), text) {
			t.Errorf("got %q, want an error with %q", err, text)
		}
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Errorf("%s was changed by an Open that failed", path)
	}
}

// wantNothingBeside checks that no log was left beside a file.
func wantNothingBeside(t *testing.T, path string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(path + suffix); err == nil {
			t.Errorf("%s%s was left beside a file that is not the store's", filepath.Base(path), suffix)
		}
	}
}

func TestPathsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ":memory:", "file:x.db", "file::memory:?cache=shared"} {
		wantRefused(t, path, "not the path of a file")
	}
	dir := t.TempDir()
	wantRefused(t, dir, "is a directory")
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, filepath.Join(text, "x.db"), "not a directory")
	wantRefused(t, filepath.Join(text, "sub", "x.db"), "not a directory")
}

// TestFilesThatAreNoDatabase: what is there belongs to another program, and is not overwritten.
func TestFilesThatAreNoDatabase(t *testing.T) {
	t.Parallel()
	valid := closedFile(t, nil)
	for name, content := range map[string][]byte{
		"a text":              []byte("Dear diary, this stays as it is.\n"),
		"a long text":         []byte(strings.Repeat("Dear diary, this stays as it is.\n", 1000)),
		"one byte":            {0},
		"random pages":        bytes.Repeat([]byte{0xa5, 0x5a, 0x42}, 4096),
		"a header destroyed":  append([]byte("SQLite format 4\x00"), valid[16:]...),
		"a page size of nine": append(append(bytes.Clone(valid[:16]), 0, 9), valid[18:]...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			wantRefused(t, path, "not an SQLite database")
			if status, err := sqlite.Status(t.Context(), path); err == nil {
				t.Errorf("looking at %s found %+v", name, status)
			}
			wantNothingBeside(t, path)
		})
	}
}

// TestLookingAtDatabasesOfOthers leaves nothing beside them.
func TestLookingAtDatabasesOfOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"WAL", "DELETE"} {
		path := newFile(t)
		other := openRaw(t, path)
		err := other.Exec(`PRAGMA journal_mode = ` + mode + `; CREATE TABLE diary (day TEXT)`)
		if err = errors.Join(err, other.Close()); err != nil {
			t.Fatal(err)
		}
		status, err := sqlite.Status(t.Context(), path)
		if err != nil || status.Version != 0 || len(status.Pending) == 0 {
			t.Errorf("looking at a database of others found %+v, %v", status, err)
		}
		if s, err := sqlite.Open(t.Context(), path, sqlite.WithReadOnly()); err == nil {
			t.Errorf("a database of others was opened: %v", s.Close())
		}
		wantNothingBeside(t, path)
	}
}

// TestTruncatedFiles: a file that lost pages at its end is damaged.
func TestTruncatedFiles(t *testing.T) {
	t.Parallel()
	valid := closedFile(t, nil)
	for _, size := range []int{
		len(valid) - pageSize, len(valid) - pageSize - 1, len(valid) / 2, pageSize,
		pageSize - 1,
	} {
		path := newFile(t)
		if err := os.WriteFile(path, valid[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := sqlite.Open(t.Context(), path)
		if err == nil {
			t.Errorf("a file of %d bytes cut to %d was opened", len(valid), size)
			_ = store.Close()
		} else if !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a file of %d bytes cut to %d: %v, want an error that says damaged", len(valid), size, err)
		}
	}
}

// TestPathWithSpecialCharacters: what means something in a URI means nothing in a path.
func TestPathWithSpecialCharacters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a?mode=memory", "per%20cent", "ha#sh", "sp ace 'quote' \"double\"", "ünï-文"} {
		path := filepath.Join(dir, name)
		store := openBusiness(t, path)
		exec(t, store, `INSERT INTO business VALUES ('row')`)
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			t.Errorf("%q did not become a file: %v", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 15 {
		t.Errorf("%d files for five stores, want a database, a log and its index for each", len(entries))
	}
}

// TestLinks: the file is the one that the path named when it was opened.
func TestLinks(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	direct := openBusiness(t, path)
	linked := openStore(t, link)
	exec(t, linked, `INSERT INTO business VALUES ('row')`)
	wantRows(t, direct, "row", 1, "section 11: a link is the same file")
}
