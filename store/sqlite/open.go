package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/vfs"
)

// The permissions of what the store creates: answers to payments must be readable by their owner alone.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// filePath returns the absolute path of a file.
func filePath(path string) (string, error) {
	if path == "" || strings.HasPrefix(path, ":") || strings.HasPrefix(path, "file:") {
		return "", fmt.Errorf("sqlite: %q is not the path of a file; for a store in memory use package store/memory",
			path)
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	return file, nil
}

// vfsAddress returns the address that opens a path by a VFS of the program's choice.
func vfsAddress(path, name string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?vfs=" + url.QueryEscape(name)
}

// readOnlyAddress returns the address that opens a file for reading only. If the directory
// cannot be written, the log of the file needs a process that has the file open. Without
// such a process and without a log, the file is read as a file that does not change. A file
// without the store's tables is read in the same way, so that no log is left beside it.
func readOnlyAddress(path string) (string, error) {
	file, err := filePath(path)
	if err != nil {
		return "", err
	}
	address, unchanging := readerAddresses(file)
	found, err := look(file)
	if found == otherTables {
		return unchanging, nil
	}
	if found != noDatabase {
		lendLog(file)
		_, err = tryRead(address)
	}
	if log, statErr := os.Stat(file + "-wal"); err != nil && (statErr != nil || log.Size() == 0) {
		if _, err := tryRead(unchanging); err == nil {
			return unchanging, nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("sqlite: open %s for looking only: %w", path, unavailable(err))
	}
	return address, nil
}

// readerAddresses returns the addresses that open a file for reading only: as a file that others change, and as a file
// that does not change, which needs no log.
func readerAddresses(file string) (changing, unchanging string) {
	registerReader()
	changing = "file:" + (&url.URL{Path: file}).EscapedPath() + "?mode=ro&vfs=" + readerVFS
	return changing, changing + "&immutable=1"
}

// content is the kind of a file's content.
type content uint8

const (
	unclear     content = iota // the store's own file, or a file that is in use
	noDatabase                 // the error holds the reason
	otherTables                // a database without the tables of the store
)

// look finds out what a file is without leaving anything beside it. It reads nothing if there is a log: then the file
// is open, or was not closed, and its content is in the log.
func look(file string) (content, error) {
	inUse := func() bool {
		_, err := os.Stat(file + "-wal")
		return err == nil
	}
	if inUse() {
		return unclear, nil
	}
	_, unchanging := readerAddresses(file)
	own, err := tryRead(unchanging)
	switch {
	case inUse(): // since then, so the read may have seen an unfinished write
		return unclear, nil
	case err != nil:
		return noDatabase, err
	case !own:
		return otherTables, nil
	default:
		return unclear, nil
	}
}

// readerVFS is the name of the VFS that opens files for reading only.
const readerVFS = "onceward-readonly"

// registerReader registers the VFS with the driver, once.
var registerReader = sync.OnceFunc(func() {
	vfs.Register(readerVFS, readOnlyFiles{vfs.Find("os").(vfs.VFSFilename)})
})

// readOnlyFiles opens the log for reading if it cannot be written, as SQLite's own VFS does. The driver opens the log
// only for writing, even if the database is opened for reading only.
type readOnlyFiles struct{ vfs.VFSFilename }

// OpenFilename implements [vfs.VFSFilename].
func (v readOnlyFiles) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, opened, err := v.VFSFilename.OpenFilename(name, flags)
	if flags&vfs.OPEN_WAL != 0 && errors.Is(err, fs.ErrPermission) {
		flags = flags&^(vfs.OPEN_READWRITE|vfs.OPEN_CREATE) | vfs.OPEN_READONLY
		return v.VFSFilename.OpenFilename(name, flags)
	}
	return file, opened, err
}

// lendLog creates the files that SQLite needs beside a database, if they do not exist, with the permissions and the
// owner of the database. The driver would not give them these. A log of another user, such as root, would keep the
// service from opening its own file. Files that cannot be created in this way are not created.
func lendLog(file string) {
	info, err := os.Stat(file)
	if err != nil || info.Size() == 0 {
		return // opening it returns the reason
	}
	for _, name := range []string{file + "-wal", file + "-shm"} {
		beside, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
		if err != nil {
			continue
		}
		err = errors.Join(beside.Chmod(info.Mode().Perm()), own(beside, info))
		if errors.Join(err, beside.Close()) != nil {
			_ = os.Remove(name) // SQLite creates its own file
		}
	}
}

// tryRead reads whether a file holds the tables of the store. It waits for a process that is just opening or closing
// the file, and locks the file while it reads.
func tryRead(address string) (own bool, err error) {
	conn, err := sqlite3.Open(address)
	if err != nil {
		return false, err
	}
	err = conn.BusyTimeout(defaultBusyTimeout)
	if err == nil {
		own, err = exists(conn, selectSchema)
	}
	return own, errors.Join(err, conn.Close())
}

// createFile ensures that the file exists, creates it with tight
// permissions if it does not, and returns its absolute path.
func createFile(path string) (string, error) {
	file, err := filePath(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(file), dirMode); err != nil {
		return "", fmt.Errorf("sqlite: create the directory of %s: %w", path, err)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return "", fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	err = f.Close()
	if found, _ := look(file); found != noDatabase {
		lendLog(file)
	}
	return file, err
}

// tighten sets the permissions of the files beside the database to the permissions
// of the database, before anything is written to them, because the driver does not.
// It also ensures that all of them are still in their directory after a power loss.
func tighten(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	for _, name := range []string{file + "-wal", file + "-shm"} {
		beside, err := os.Stat(name)
		if err != nil || beside.Mode().Perm() == info.Mode().Perm() {
			continue // a database without a log has no such files
		}
		if err := os.Chmod(name, info.Mode().Perm()); err != nil {
			return err
		}
	}
	syncDir(filepath.Dir(file))
	return nil
}

// syncDir flushes a directory if the system supports that. SQLite itself does no more.
func syncDir(path string) {
	dir, err := os.Open(path)
	if err != nil {
		return
	}
	_ = dir.Sync()  // not every system supports it
	_ = dir.Close() // nothing was written
}

// writerPragmas make each commit durable before it is acknowledged. The log may grow
// to 16 MiB before it is copied into the file, because a page that many commits
// change is then written once. The cache holds the pages that are used often.
const writerPragmas = `
	PRAGMA journal_mode = WAL;
	PRAGMA synchronous = FULL;
	PRAGMA foreign_keys = ON;
	PRAGMA wal_autocheckpoint = 4000;
	PRAGMA cache_size = -32768;
`

// requireLog returns an error if there is no write-ahead log: without one, readers and the writer would wait for each
// other. SQLite silently continues without a log if the file system cannot share memory.
func requireLog(conn *sqlite3.Conn) error {
	mode := ""
	err := query(conn, `PRAGMA journal_mode`, nil, func(stmt *sqlite3.Stmt) error {
		mode = stmt.ColumnText(0)
		return nil
	})
	if err == nil && mode != "wal" {
		err = fmt.Errorf("SQLite uses journal mode %q instead of a write-ahead log: "+
			"put the file on a local file system", mode)
	}
	return unavailable(err)
}

// readerPragmas keep a reader from writing.
const readerPragmas = `
	PRAGMA query_only = ON;
`

// openReadOnly opens the pool for business reads. The connections are set to read-only before the driver reads that
// setting: otherwise the end of a read-only transaction would make them writable.
func openReadOnly(file string, busy time.Duration) (*sql.DB, error) {
	return sqlitedriver.Open(file, func(conn *sqlite3.Conn) error { return configure(conn, busy, readerPragmas) })
}

// openConn opens the connection that writes.
func openConn(ctx context.Context, file string) (sqlitedriver.Conn, error) {
	connector, err := new(sqlitedriver.SQLite).OpenConnector(file)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	return conn.(sqlitedriver.Conn), nil
}

func configure(conn *sqlite3.Conn, busy time.Duration, pragmas string) error {
	if err := conn.BusyTimeout(busy); err != nil {
		return err
	}
	if err := conn.Exec(pragmas); err != nil {
		return unavailable(err)
	}
	return nil
}
