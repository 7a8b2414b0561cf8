package doctor_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/driver"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/store/sqlite"
)

// newFile makes a store in a file on a disk.
func newFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(diskDir(t), "store.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// diskDir is a temporary directory that is not in memory, as that of some systems is.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if !doctor.InMemory(dir) {
		return dir
	}
	dir, err := os.MkdirTemp(".", "disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// change runs statements on a file, without the store.
func change(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := driver.Open("file:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func TestHealthySQLite(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantHealthy(t, examine(t, "sqlite:"+path, doctor.Config{}))
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	s, err := sqlite.Open(t.Context(), path) // in use, with its log beside it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	wantHealthy(t, examine(t, path, doctor.Config{}))
}

// TestMissingTables: what the doctor says to make is a statement that makes it.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	change(t, path, `DROP TABLE onceward_execution`)
	for _, found := range examine(t, path, doctor.Config{}).Findings() {
		statement, says := strings.CutPrefix(found.Do, "make it: ")
		if !says {
			t.Errorf("found besides: %+v", found)
			continue
		}
		change(t, path, statement)
	}
	if report := examine(t, path, doctor.Config{}); len(report.Findings()) > 0 {
		t.Errorf("after what it says was done:\n%s", text(report))
	}
}

// TestLiesOfSQLite plants what breaks promises, one at a time.
func TestLiesOfSQLite(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant func(t *testing.T, path string)
		want  lie
	}{
		"another journal mode": {
			func(t *testing.T, path string) { change(t, path, `PRAGMA journal_mode = DELETE`) },
			lie{"sqlite/journal", doctor.Weak, "is delete", nil},
		},
		"readable by all": {
			func(t *testing.T, path string) {
				if err := os.Chmod(path, 0o644); err != nil {
					t.Fatal(err)
				}
			},
			lie{"sqlite/permissions", doctor.Weak, "-rw-r--r--", nil},
		},
		"a directory of everyone's": {
			func(t *testing.T, path string) {
				if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
			},
			lie{"sqlite/permissions", doctor.Weak, "everyone can remove files", nil},
		},
		"a second name": {
			func(t *testing.T, path string) {
				if err := os.Link(path, path+"-too"); err != nil {
					t.Fatal(err)
				}
			},
			lie{"sqlite/links", doctor.Broken, "2 names", nil},
		},
		"a missing index": {
			func(t *testing.T, path string) { change(t, path, `DROP INDEX onceward_record_due`) },
			lie{"sqlite/indexes", doctor.Weak, "index onceward_record_due is missing", nil},
		},
		"an index that is not what its name says": {
			func(t *testing.T, path string) {
				change(t, path, `DROP INDEX onceward_record_due`, `CREATE INDEX onceward_record_due ON onceward_record (due)`)
			},
			lie{"sqlite/indexes", doctor.Weak, "is not as this program knows it", nil},
		},
		"records that are not unique": {
			func(t *testing.T, path string) {
				change(t, path, `DROP TABLE onceward_record`, `CREATE TABLE onceward_record (id BLOB, state INTEGER, due INTEGER,
					record BLOB)`,
					`CREATE INDEX onceward_record_due ON onceward_record (state, due)`)
			},
			lie{"sqlite/indexes", doctor.Broken, "has lost its unique index", nil},
		},
		"a trigger": {
			func(t *testing.T, path string) {
				change(t, path, `CREATE TRIGGER slow AFTER INSERT ON onceward_record BEGIN SELECT 1; END`)
			},
			lie{"sqlite/indexes", doctor.Weak, "the trigger slow", nil},
		},
		"a token of a removed record that is forgotten": {
			func(t *testing.T, path string) {
				change(t, path, `INSERT INTO onceward_audit (id, attempt, actor, action, reason, outcome, at)
					VALUES (x'00', 1790000000000000, x'', x'', x'', x'', 0)`)
			},
			lie{"sqlite/tokens", doctor.Broken, "and one of them had 1790000000000000", nil},
		},
		"tokens of removed records that are not kept": {
			func(t *testing.T, path string) { change(t, path, `DELETE FROM onceward_meta`) },
			lie{"sqlite/tokens", doctor.Broken, "is not kept", nil},
		},
		"a damaged page": {damage, lie{"sqlite/integrity", doctor.Broken, "damaged", nil}},
		"tables of a newer version": {
			func(t *testing.T, path string) {
				change(t, path, `INSERT INTO onceward_schema (version, applied_at) VALUES (99, '')`)
			},
			lie{"sqlite/schema", doctor.Broken, "version 99", nil},
		},
		"a writer that never ends": {
			func(t *testing.T, path string) {
				db, err := sql.Open("sqlite3", "file:"+path)
				if err != nil {
					t.Fatal(err)
				}
				conn, err := db.Conn(t.Context())
				if err == nil {
					_, err = conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _, _ = conn.Close(), db.Close() })
			},
			lie{"sqlite/busy", doctor.Weak, "locked for writing", []string{"sqlite/permissions"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			test.plant(t, path)
			wantFound(t, examine(t, path, doctor.Config{}), test.want)
		})
	}
}

// damage overwrites a page of an index, so that all that opens the file still works.
func damage(t *testing.T, path string) {
	t.Helper()
	db, err := driver.Open("file:" + path)
	if err != nil {
		t.Fatal(err)
	}
	var page, size int64
	err = db.QueryRowContext(t.Context(), `SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema
		WHERE name = 'onceward_record_due'`).Scan(&page, &size)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(make([]byte, 512), (page-1)*size); err != nil {
		t.Fatal(err)
	}
}

// TestLocksThatDoNothing: as those of some file systems, whose files are opened without locks here.
func TestLocksThatDoNothing(t *testing.T) {
	t.Parallel()
	report, err := doctor.ExamineUnlocked(t.Context(), newFile(t))
	if err != nil {
		t.Fatal(err)
	}
	wantFound(t, report, lie{"sqlite/locks", doctor.Broken, "two connections wrote at once", nil})
}

// TestNoFile: the doctor makes no store.
func TestNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none.db")
	if _, err := doctor.Examine(t.Context(), path, doctor.Config{}); err == nil {
		t.Error("a file that is not there was examined")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it was made")
	}
}

// TestLeftovers: what a doctor that was killed has left is removed by the next one; what is not the doctor's stays.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	dir := filepath.Dir(path)
	old := time.Now().Add(-2 * time.Hour)
	for name, age := range map[string]time.Time{
		".onceward-doctor-" + strings.Repeat("a", 26) + ".db":     old,
		".onceward-doctor-" + strings.Repeat("a", 26) + ".db-wal": old,
		".onceward-doctor-" + strings.Repeat("b", 26) + ".db":     time.Now(), // of one that is at work
		".onceward-doctor-of-zoe.db":                              old,
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, age, age)); err != nil {
			t.Fatal(err)
		}
	}
	wantHealthy(t, examine(t, path, doctor.Config{}))
	left, err := filepath.Glob(filepath.Join(dir, ".onceward-doctor-*"))
	if err != nil || len(left) != 2 || !strings.Contains(left[0], "bbb") || !strings.Contains(left[1], "zoe") {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
