package sqlite_test

import (
	"crypto/rand"
	"errors"
	"os"
	"testing"

	_ "github.com/ncruces/go-sqlite3/vfs/memdb"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// TestVFS: a store by a VFS of the program's choice works, leaves no file behind, and is as durable as that is: one in
// memory is gone when it is closed.
func TestVFS(t *testing.T) {
	t.Parallel()
	name := "/" + rand.Text()
	id := store.ID{Scope: "vfs", Key: "key"}
	open := func() *sqlite.Store {
		t.Helper()
		s, err := sqlite.Open(t.Context(), name, sqlite.WithVFS("memdb"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, second := open(), open()
	exec(t, s, `CREATE TABLE business (value TEXT NOT NULL)`)
	exec(t, s, `INSERT INTO business VALUES ('ours')`)
	var value string
	if err := second.DB().QueryRow(`SELECT value FROM business`).Scan(&value); err != nil || value != "ours" {
		t.Errorf("a second store reads %q (%v)", value, err)
	}
	for _, one := range []*sqlite.Store{s, second} {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file %s (%v)", name, err)
	}
	s = open()
	defer func() { _ = s.Close() }()
	if err := s.DB().QueryRow(`SELECT value FROM business`).Scan(&value); err == nil {
		t.Error("what was in memory is still there")
	}
	if _, err := s.Get(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get from an empty store: %v", err)
	}
}

func TestVFSRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]sqlite.Option{
		"read-only": sqlite.WithReadOnly(), "manual": sqlite.WithManualMigration(), "unknown": sqlite.WithVFS("nowhere"),
	} {
		s, err := sqlite.Open(t.Context(), "/"+rand.Text(), sqlite.WithVFS("memdb"), option)
		if err == nil {
			t.Errorf("%s: it was opened", name)
			_ = s.Close()
		}
	}
}
