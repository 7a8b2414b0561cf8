package sqlite

import (
	"io/fs"
	osexec "os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// There is one migration so far. This test holds the mechanism to what it does with a second one, which is invented.

const secondMigration = "0002_invented.sql"

// twoMigrations returns the migration that there is, and the invented one.
func twoMigrations(t *testing.T) migrations {
	t.Helper()
	own := ownMigrations()
	first, err := fs.ReadFile(migrationFiles, "migrations/"+own.Names[0])
	if err != nil {
		t.Fatal(err)
	}
	return migrations{sqltx.NewMigrations(fstest.MapFS{
		own.Names[0]:    {Data: first},
		secondMigration: {Data: []byte("ALTER TABLE onceward_record ADD COLUMN of_a_later_version TEXT;\n")},
	})}
}

// TestSecondMigration: tables of version 1 are brought to version 2, by the program or in the shell, while a program of
// version 1 has the file open, which continues (scenario 32). A program of version 1 that starts afterwards is refused.
func TestSecondMigration(t *testing.T) {
	t.Parallel()
	later := twoMigrations(t)
	for name, migrate := range map[string]func(t *testing.T, path string, conn *sqlite3.Conn) error{
		"program": func(_ *testing.T, _ string, conn *sqlite3.Conn) error { return later.migrate(conn) },
		"shell": func(t *testing.T, path string, _ *sqlite3.Conn) error {
			script, err := later.plain(1)
			if err != nil {
				return err
			}
			c := osexec.CommandContext(t.Context(), "sqlite3", path)
			c.Stdin = strings.NewReader(script)
			return c.Run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := insidePath(t)
			running := openInside(t, path)
			conn, err := sqlite3.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			status, err := later.status(conn, path)
			if err != nil || status.Version != 1 || status.Wanted != 2 || !slices.Equal(status.Pending, []string{secondMigration}) {
				t.Errorf("before, the status is %+v (%v)", status, err)
			}
			if err := migrate(t, path, conn); err != nil {
				t.Fatal(err)
			}
			status, err = later.status(conn, path)
			if err != nil || status.Version != 2 || status.Err() != nil {
				t.Errorf("afterwards the status is %+v (%v)", status, err)
			}
			v, err := running.Reserve(t.Context(), insideReservation("key"))
			if err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("scenario 32: the running program gets %s (%v)", v.Decision, err)
			}
			for _, option := range []Option{WithManualMigration(), WithReadOnly(), func(*Store) {}} {
				_, err := Open(t.Context(), path, option)
				if err == nil || !strings.Contains(err.Error(), "are of version 2, and this program knows version 1") {
					t.Errorf("tables of a newer program were opened: %v", err)
				}
			}
		})
	}
}
