package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// crashed opens a copy of the file and its log as they are now: what a crash at this moment would leave.
func crashed(t testing.TB, path string) *Store {
	t.Helper()
	to := filepath.Join(t.TempDir(), "crashed.db")
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return openInside(t, to)
}

// wantWhole checks that a row is there if and only if its record is.
func wantWhole(t testing.TB, s *Store, key string) (executed bool) {
	t.Helper()
	rows, state := rowsOf(t, s, key), stateOf(t, s, key)
	if rows > 1 || rows == 1 != (state == store.StateCompleted) {
		t.Errorf("E1: %q has %d rows and a record that is %s", key, rows, state)
	}
	return rows == 1
}

var diskFaults = map[string]struct {
	counter func(d *disk) *atomic.Int64
	code    sqlite3.ExtendedErrorCode
	text    string
}{
	"flush": {
		func(d *disk) *atomic.Int64 { return &d.flushes }, sqlite3.IOERR_FSYNC,
		"the disk failed to read or write",
	},
	"write": {
		func(d *disk) *atomic.Int64 { return &d.writes }, sqlite3.IOERR_WRITE,
		"the disk failed to read or write",
	},
	"full disk": {
		func(d *disk) *atomic.Int64 { return &d.writes }, sqlite3.ExtendedErrorCode(sqlite3.FULL),
		"the disk is full",
	},
}

// TestCommitFailsOnce: the commit fails, and the disk recovers. The caller is told that nothing was executed, and that
// is true, now and after a crash: the pages of the failed commit, which may be on the disk in full, have been written
// over.
func TestCommitFailsOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range diskFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d, path := openOnDisk(t)
			for round := range 5 {
				key := fmt.Sprint("key-", round)
				d.fail(fault.counter(d), 1, fault.code)
				_, err := s.Transact(t.Context(), insideReservation(key), insertAndCommit(key))
				if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) ||
					!strings.Contains(err.Error(), fault.text) {
					t.Fatalf("E7: a commit that failed once got %v, want ErrUnavailable with %q", err, fault.text)
				}
				if wantWhole(t, s, key) || wantWhole(t, crashed(t, path), key) {
					t.Fatal("I4: the caller was told that nothing was executed, but it was")
				}
				if v, err := s.Transact(t.Context(), insideReservation(key), insertAndCommit(key)); err != nil ||
					v.Decision != store.DecisionExecute {
					t.Fatalf("E1: the retry got (%s, %v)", v.Decision, err)
				}
				if !wantWhole(t, s, key) || !wantWhole(t, crashed(t, path), key) {
					t.Fatal("I2: what was acknowledged is not there after a crash")
				}
			}
		})
	}
}

// TestCommitFailsForGood: the disk does not recover. Then it is not known what a crash would bring back, and the caller
// is told so: the commit may even be on the disk in full. A retry executes what is not there and nothing else.
func TestCommitFailsForGood(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"flush", "write", "full disk", "flush, then all"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d, path := openOnDisk(t)
			fault, dies := diskFaults[name], name == "flush, then all"
			if dies {
				fault = diskFaults["flush"]
				d.dies.Store(true)
			}
			grant, err := s.Reserve(t.Context(), insideReservation("owned"))
			if err != nil {
				t.Fatal(err)
			}
			claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
			d.fail(fault.counter(d), always, fault.code)
			if _, err = s.Transact(t.Context(), insideReservation("key"), insertAndCommit("key")); !errors.Is(err,
				store.ErrOutcomeUnknown) {
				t.Errorf("E7: transact got %v, want ErrOutcomeUnknown", err)
			}
			after := crashed(t, path)
			err = s.Update(t.Context(), func(tx *sql.Tx) error {
				_, err := tx.Exec(`INSERT INTO business VALUES ('update')`)
				return err
			})
			if !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("update got %v, want ErrOutcomeUnknown", err)
			}
			done := insideAnswer("owned")
			_, completeErr := s.Complete(t.Context(), claim, &done)
			_, reserveErr := s.Reserve(t.Context(), insideReservation("new"))
			for _, err := range []error{completeErr, reserveErr, s.Extend(t.Context(), claim, time.Minute)} {
				if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
					t.Errorf("scenario 16: got %v, want ErrUnavailable", err)
				}
			}
			if wantWhole(t, s, "key") {
				t.Error("a commit that failed is visible")
			}
			survived := wantWhole(t, after, "key")
			if survived != dies {
				t.Errorf("after a crash the commit is there: %t; want it only where nothing could be written over it",
					survived)
			}
			wantOnceMore(t, after, survived)

			d.heal()
			wantOnceMore(t, s, false)
			if expires, err := s.Complete(t.Context(), claim, &done); err != nil || expires.IsZero() {
				t.Errorf("E7: a completion is repeated until it is stored, but got %v", err)
			}
			wantOnceMore(t, crashed(t, path), true)
		})
	}
}

// wantOnceMore retries, and checks that the work is done once in the end.
func wantOnceMore(t testing.TB, s *Store, done bool) {
	t.Helper()
	want := store.DecisionExecute
	if done {
		want = store.DecisionReplay
	}
	if v, err := s.Transact(t.Context(), insideReservation("key"), insertAndCommit("key")); err != nil ||
		v.Decision != want {
		t.Errorf("I1: the retry got (%s, %v), want %s", v.Decision, err, want)
	}
	if n := rowsOf(t, s, "key"); n != 1 {
		t.Errorf("I1: %d rows after the retry", n)
	}
}

// TestCommitFailsForAGroup: what a neighbour wrote counts for nothing if the commit fails, not even for a refusal.
func TestCommitFailsForAGroup(t *testing.T) {
	t.Parallel()
	s, d, _ := openOnDisk(t)
	grant, err := s.Reserve(t.Context(), insideReservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
	letGo := holdWriter(t, s)
	first, second := insideAnswer("first"), insideAnswer("second")
	errs := make([]error, 4)
	var group sync.WaitGroup
	for i, call := range []func() error{
		func() error { _, err := s.Complete(context.Background(), claim, &first); return err },
		func() error { _, err := s.Complete(context.Background(), claim, &second); return err },
		func() error { return s.Abandon(context.Background(), claim, "") },
		func() error {
			_, err := s.Transact(context.Background(), insideReservation("key"), insertAndCommit("key"))
			return err
		},
	} {
		group.Go(func() { errs[i] = call() })
		awaitQueue(t, s, i+1)
	}
	// The commit of the one that holds the writer is for nothing: it wrote nothing.
	d.fail(&d.flushes, 1, sqlite3.IOERR_FSYNC)
	letGo()
	group.Wait()
	for i, err := range errs {
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFenced) {
			t.Errorf("E7: call %d got %v, want ErrUnavailable", i, err)
		}
	}
	if state := stateOf(t, s, "owned"); state != store.StateInProgress {
		t.Errorf("the record is %s after a commit that failed", state)
	}
	wantWhole(t, s, "key")
	if _, err := s.Complete(t.Context(), claim, &second); err != nil {
		t.Errorf("S6: the owner still owns, but its completion got %v", err)
	}
}

// TestCommitFailsUnderGuard: what the client sees.
func TestCommitFailsUnderGuard(t *testing.T) {
	t.Parallel()
	s, d, _ := openOnDisk(t)
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"),
		Logger: slog.New(slog.DiscardHandler), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := onceward.Tx(r.Context()).Exec(`INSERT INTO business VALUES ('payment')`); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Transactional(), onceward.OperationName("pay"))
	send := func(want int, code string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "key")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || !strings.Contains(w.Body.String(), code) {
			t.Errorf("got %d %s, want %d %s", w.Code, w.Body, want, code)
		}
	}
	d.fail(&d.flushes, 1, sqlite3.IOERR_FSYNC)
	send(http.StatusServiceUnavailable, "store-unavailable")
	d.fail(&d.flushes, always, sqlite3.IOERR_FSYNC)
	send(http.StatusInternalServerError, "outcome-unknown")
	d.heal()
	send(http.StatusCreated, "")
	send(http.StatusCreated, "")
	if n := rowsOf(t, s, "payment"); n != 1 {
		t.Errorf("I1: %d payments", n)
	}
}

// disk is a file system whose log can fail.
type disk struct {
	vfs.VFSFilename
	// How often the next flushes and writes of the log fail, and with what.
	flushes, writes atomic.Int64
	code            atomic.Uint32
	dies            atomic.Bool // after a failed flush no write succeeds
}

// OpenFilename implements [vfs.VFSFilename].
func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, flags, err := d.VFSFilename.OpenFilename(name, flags)
	if err != nil {
		return nil, flags, err
	}
	return &diskFile{File: file, disk: d, log: flags&vfs.OPEN_WAL != 0}, flags, nil
}

type diskFile struct {
	vfs.File
	disk *disk
	log  bool
}

// SharedMemory implements [vfs.FileSharedMemory].
func (f *diskFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

// Sync implements [vfs.File].
func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if f.log && f.disk.flushes.Add(-1) >= 0 {
		if f.disk.dies.Load() {
			f.disk.writes.Store(always)
		}
		return sqlite3.ExtendedErrorCode(f.disk.code.Load())
	}
	return f.File.Sync(flags)
}

// WriteAt implements [vfs.File].
func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if f.log && f.disk.writes.Add(-1) >= 0 {
		return 0, sqlite3.ExtendedErrorCode(f.disk.code.Load())
	}
	return f.File.WriteAt(p, off)
}

const always = 1 << 40

// fail makes the next n flushes or writes fail.
func (d *disk) fail(counter *atomic.Int64, n int64, code sqlite3.ExtendedErrorCode) {
	d.code.Store(uint32(code))
	counter.Store(n)
}

// heal ends all faults.
func (d *disk) heal() {
	d.dies.Store(false)
	d.flushes.Store(0)
	d.writes.Store(0)
}

// openOnDisk opens a store on a disk that can fail.
func openOnDisk(t testing.TB) (s *Store, d *disk, path string) {
	t.Helper()
	path = insidePath(t)
	d = &disk{VFSFilename: vfs.Find("").(vfs.VFSFilename)}
	name := "disk-of-" + strings.ReplaceAll(t.Name(), "/", "-")
	vfs.Register(name, d)
	t.Cleanup(func() { vfs.Unregister(name) })
	if _, err := createFile(path); err != nil {
		t.Fatal(err)
	}
	s = &Store{now: time.Now, busy: defaultBusyTimeout}
	if err := s.open(t.Context(), "file:"+path+"?vfs="+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.heal()
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	createBusiness(t, s)
	return s, d, path
}

// limitPages lets the file grow by so many pages and no more; negative lifts the limit.
func limitPages(t testing.TB, s *Store, more int) {
	t.Helper()
	inWriter(t, s, func(w *writer) error {
		pages := 0
		err := query(w.raw, `PRAGMA page_count`, nil, func(stmt *sqlite3.Stmt) error {
			pages = stmt.ColumnInt(0)
			return nil
		})
		if more < 0 {
			pages, more = 1<<30, 0
		}
		return errors.Join(err, w.raw.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+more)))
	})
}

var large = strings.Repeat("x", 100_000)

func wantFull(t testing.TB, err error, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) ||
		!strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("scenario 16: %s got %v, want ErrUnavailable that says that the disk is full", rule, err)
	}
}

// TestFullForTheStore: there is no room for the store's own row.
func TestFullForTheStore(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	grant, err := s.Reserve(t.Context(), insideReservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
	done := insideAnswer(large)
	limitPages(t, s, 0)
	for range 2 {
		_, err = s.Complete(t.Context(), claim, &done)
		wantFull(t, err, "complete")
		if state := stateOf(t, s, "owned"); state != store.StateInProgress {
			t.Errorf("the record is %s, want it as it was", state)
		}
		_, err = s.Transact(t.Context(), insideReservation("key"),
			func(ctx context.Context, v store.Verdict) store.Settlement {
				settlement := insertAndCommit("key")(ctx, v)
				settlement.Completion = insideAnswer(large)
				return settlement
			})
		wantFull(t, err, "transact")
		if wantWhole(t, s, "key") {
			t.Error("the work is there without room for its answer")
		}
	}
	if err := s.Extend(t.Context(), claim, grant.Record.Retention); err != nil {
		t.Errorf("S5: a heartbeat needs no new page, but got %v", err)
	}
	limitPages(t, s, -1)
	if _, err = s.Complete(t.Context(), claim, &done); err != nil {
		t.Errorf("with room again complete got %v", err)
	}
	wantOnceMore(t, s, false)
}

// TestFullForTheHandler: the handler's own insert finds no room. SQLite may undo the whole transaction for that; what
// the handler does afterwards must not be kept either.
func TestFullForTheHandler(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for _, end := range []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer} {
		limitPages(t, s, 3)
		var first, second error
		_, err := s.Transact(t.Context(), insideReservation("key"),
			func(ctx context.Context, _ store.Verdict) store.Settlement {
				tx := onceward.Tx(ctx)
				if _, err := tx.Exec(`INSERT INTO business VALUES ('key')`); err != nil {
					t.Error(err)
				}
				_, first = tx.Exec(`INSERT INTO business VALUES (?)`, large)
				_, second = tx.Exec(`INSERT INTO business VALUES ('late')`)
				return store.Settlement{Action: end, Completion: insideAnswer("done")}
			})
		if !errors.Is(first, sqlite3.FULL) {
			t.Errorf("the handler got %v, want that the disk is full", first)
		}
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("scenario 16: got %v, want ErrUnavailable", err)
		}
		if second == nil || rowsOf(t, s, "late") != 0 {
			t.Errorf("I4: after the transaction was lost the handler wrote on (%v), and %d rows stayed", second,
				rowsOf(t, s, "late"))
		}
		if wantWhole(t, s, "key") {
			t.Error("I4: the caller was told that nothing was executed, but it was")
		}
		limitPages(t, s, -1)
	}
	wantOnceMore(t, s, false)
}

// TestFullForOneOfAGroup: one handler finds no room, its neighbours do.
func TestFullForOneOfAGroup(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	limitPages(t, s, 8)
	letGo := holdWriter(t, s)
	runs := runGroup(t, s, []string{"before", "hungry", "after"},
		func(ctx context.Context, key string) store.Settlement {
			value := key
			if key == "hungry" {
				value = large
			}
			return insertAndCommit(value)(ctx, store.Verdict{})
		}, letGo)
	for _, run := range runs {
		switch {
		case run.key == "hungry":
			if run.err == nil || rowsOf(t, s, large) != 0 {
				t.Errorf("the one that found no room got %v", run.err)
			}
		case run.err != nil || !wantWhole(t, s, run.key):
			t.Errorf("a neighbour got %v", run.err)
		}
	}
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO business VALUES (?)`, large)
		return err
	})
	if err == nil {
		t.Error("an update found room where there is none")
	}
}
