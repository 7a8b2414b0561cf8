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

	"github.com/onceward/onceward"
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
	"flush":     {func(d *disk) *atomic.Int64 { return &d.flushes }, sqlite3.IOERR_FSYNC, "the disk failed to read or write"},
	"write":     {func(d *disk) *atomic.Int64 { return &d.writes }, sqlite3.IOERR_WRITE, "the disk failed to read or write"},
	"full disk": {func(d *disk) *atomic.Int64 { return &d.writes }, sqlite3.ExtendedErrorCode(sqlite3.FULL), "the disk is full"},
}

// TestCommitFailsOnce: the commit fails, and the disk recovers. The caller is told that nothing was executed, and that is
// true, now and after a crash: the pages of the failed commit, which may be on the disk in full, have been written over.
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
				if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) || !strings.Contains(err.Error(), fault.text) {
					t.Fatalf("E7: a commit that failed once got %v, want ErrUnavailable with %q", err, fault.text)
				}
				if wantWhole(t, s, key) || wantWhole(t, crashed(t, path), key) {
					t.Fatal("I4: the caller was told that nothing was executed, but it was")
				}
				if v, err := s.Transact(t.Context(), insideReservation(key), insertAndCommit(key)); err != nil || v.Decision != store.DecisionExecute {
					t.Fatalf("E1: the retry got (%s, %v)", v.Decision, err)
				}
				if !wantWhole(t, s, key) || !wantWhole(t, crashed(t, path), key) {
					t.Fatal("I2: what was acknowledged is not there after a crash")
				}
			}
		})
	}
}

// TestCommitFailsForGood: the disk does not recover. Then nobody knows what a crash would bring back, and the caller is told
// so: the commit may even be on the disk in full. A retry executes what is not there and nothing else.
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
			if _, err = s.Transact(t.Context(), insideReservation("key"), insertAndCommit("key")); !errors.Is(err, store.ErrOutcomeUnknown) {
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
				t.Errorf("after a crash the commit is there: %t; want it only where nothing could be written over it", survived)
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
	if v, err := s.Transact(t.Context(), insideReservation("key"), insertAndCommit("key")); err != nil || v.Decision != want {
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
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := onceward.Tx(r.Context()).Exec(`INSERT INTO business VALUES ('payment')`); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Transactional())
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
