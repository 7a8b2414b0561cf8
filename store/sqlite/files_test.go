package sqlite_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

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

// TestPermissions lets the process forbid nothing by itself. It is not parallel: the umask belongs to the whole process.
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

// TestFilesThatAreNoDatabase: what is there belongs to somebody else, and is not overwritten.
func TestFilesThatAreNoDatabase(t *testing.T) {
	t.Parallel()
	valid := closedFile(t, nil)
	for name, content := range map[string][]byte{
		"a text":              []byte("Dear diary, nobody overwrites this.\n"),
		"a long text":         []byte(strings.Repeat("Dear diary, nobody overwrites this.\n", 1000)),
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
		})
	}
}

// TestTruncatedFiles: a file that lost pages at its end is damaged.
func TestTruncatedFiles(t *testing.T) {
	t.Parallel()
	valid := closedFile(t, nil)
	for _, size := range []int{len(valid) - pageSize, len(valid) - pageSize - 1, len(valid) / 2, pageSize, pageSize - 1} {
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
