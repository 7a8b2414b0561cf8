package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// newestVersion is that of the tables.
const newestVersion = 1

// shell runs a script in the shell of SQLite.
func shell(t testing.TB, path, script string) (out string, err error) {
	t.Helper()
	c := osexec.CommandContext(t.Context(), "sqlite3", path)
	c.Stdin = strings.NewReader(script)
	said, err := c.CombinedOutput()
	return string(said), err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPlainSQL: what is printed for people makes the same tables as the store, and refuses those that are there without a
// change.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	const objects = `SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_master ORDER BY type, name;`
	ours := newFile(t)
	must(t, sqlite.Migrate(t.Context(), ours))
	want, err := shell(t, ours, objects)
	must(t, err)
	path := newFile(t)
	text, err := sqlite.PlainSQL(0)
	must(t, err)
	if out, err := shell(t, path, text); err != nil {
		t.Fatalf("sqlite3: %v\n%s", err, out)
	}
	if made, err := shell(t, path, objects); err != nil || made != want {
		t.Errorf("it makes (%v)\n%s\nthe store makes\n%s", err, made, want)
	}
	if out, err := shell(t, path, text); err == nil || !strings.Contains(out, "the tables are not of version 0") {
		t.Errorf("run again it says %q (%v)", out, err)
	}
	if made, err := shell(t, path, objects); err != nil || made != want {
		t.Errorf("run again it makes %s (%v)", made, err)
	}
	s, err := sqlite.Open(t.Context(), path, sqlite.WithManualMigration())
	must(t, err)
	if v, err := s.Reserve(t.Context(), reservation("key")); err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("reserve: %v (%v)", v.Decision, err)
	}
	must(t, s.Close())
	for _, from := range []int{-1, newestVersion} {
		if _, err := sqlite.PlainSQL(from); err == nil {
			t.Errorf("there are migrations after version %d", from)
		}
	}
}

// TestManualMigration: a store that does not make its tables refuses to open on wrong ones, says which, and changes nothing.
func TestManualMigration(t *testing.T) {
	t.Parallel()
	const file = "0001_tables.sql"
	path := newFile(t)
	status, err := sqlite.Status(t.Context(), path)
	want := store.SchemaStatus{Place: path, Absent: true, Wanted: newestVersion, Pending: []string{file}}
	if must(t, err); !reflect.DeepEqual(status, want) || !errors.Is(status.Err(), store.ErrSchemaMissing) {
		t.Errorf("the status is %+v (%v), want %+v", status, status.Err(), want)
	}
	for _, option := range []sqlite.Option{sqlite.WithManualMigration(), sqlite.WithReadOnly()} {
		_, err := sqlite.Open(t.Context(), path, option)
		if !errors.Is(err, store.ErrSchemaMissing) || !strings.Contains(err.Error(), "needs version 1: apply "+file) {
			t.Errorf("without tables: %v", err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made (%v)", err)
	}
	must(t, sqlite.Migrate(t.Context(), path))
	if status, err = sqlite.Status(t.Context(), path); err != nil || status.Err() != nil || len(status.Pending) != 0 {
		t.Errorf("after Migrate the status is %+v (%v)", status, err)
	}
	s, err := sqlite.Open(t.Context(), path, sqlite.WithManualMigration())
	must(t, err)
	must(t, s.Close())
}

// lookAt is what a process does that may only read: it shows a record, and fails to write.
func lookAt(path string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path, sqlite.WithReadOnly())
	if err != nil {
		return err
	}
	rec, err := s.Get(ctx, idOf("key"))
	if err != nil {
		return err
	}
	fmt.Println(rec.State)
	_, reserved := s.Reserve(ctx, reservation("new"))
	_, swept := s.Sweep(ctx, 1)
	_, claimed := s.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "topic", Limit: 1}}, 1)
	for what, err := range map[string]error{
		"Reserve": reserved, "Sweep": swept, "AddAudit": s.AddAudit(ctx, store.AuditEntry{ID: rec.ID}), "Bust": s.Bust(ctx, rec.ID, true),
		"Update": s.Update(ctx, func(*sql.Tx) error { return errors.New("it was run") }),
	} {
		if !errors.Is(err, store.ErrReadOnly) {
			return fmt.Errorf("%s of a store that was opened for looking only: %w", what, err)
		}
	}
	return errors.Join(claimed, s.Close())
}

// TestReadOnly: a file is looked at while another process has it open, when none does, and by a user who may only read it.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "onceward-readonly") // not below a directory that others cannot enter
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "with space?.db")
	s, err := sqlite.Open(t.Context(), path)
	must(t, err)
	v, err := s.Reserve(t.Context(), reservation("key"))
	must(t, err)
	must(t, lookAt(path))
	must(t, s.Abandon(t.Context(), store.Claim{ID: idOf("key"), Attempt: v.Record.Attempt}, "no reply"))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		must(t, os.Chmod(path+suffix, 0o644))
	}
	stranger(t, dir, path) // while it is open, and the record is in the log alone
	must(t, lookAt(path))
	must(t, s.Close())
	stranger(t, dir, path)
	must(t, lookAt(path))
	if _, err := sqlite.Open(t.Context(), filepath.Join(dir, "none.db"), sqlite.WithReadOnly()); !errors.Is(err, store.ErrSchemaMissing) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// stranger looks at a file as a user who owns nothing.
func stranger(t *testing.T, dir, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log("only root can become another user: the file is not looked at by one")
		return
	}
	program := filepath.Join(dir, "look")
	// By another process: a file that this one has open for writing, and with it a process that another test starts at
	// this moment, could not be run.
	must(t, osexec.CommandContext(t.Context(), "cp", os.Args[0], program).Run())
	must(t, os.Chmod(program, 0o755))
	c := osexec.CommandContext(t.Context(), program, path)
	c.Env = append(os.Environ(), helperVariable+"=look")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "unknown") {
		t.Errorf("a user who may only read sees %q (%v)", out, err)
	}
}
