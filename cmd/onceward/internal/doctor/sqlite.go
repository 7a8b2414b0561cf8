package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	sqlitestore "github.com/onceward/onceward/store/sqlite"
)

var sqliteTrials = []trial[*sqlite]{
	{Check{
		"sqlite/file-system", "The file is on a local file system, not in memory.",
		"Locks and shared memory of network file systems do not exclude other machines. Memory does not survive a " +
			"restart.", "S1, E7, I1 [16]",
	}, tryFileSystem},
	{Check{
		"sqlite/links", "The file has one name.",
		"Under a second name it has another log and other locks: two processes damage it.", "S1, I5 [16]",
	}, tryLinks},
	{Check{
		"sqlite/permissions",
		"Only the owner can read and write the file, its log and its directory; all have one owner.",
		"Others could read answers to payments. Another user's log keeps the service from opening the file.",
		"I9, L2 [16]",
	}, tryPermissions},
	{Check{
		"sqlite/directory", "Files can be created, written and removed beside the database.",
		"Without its log beside it, the file cannot be written.", "L2 [16]",
	}, tryDirectory},
	{Check{
		"sqlite/space", "The disk has room for the log and new records.",
		"On a full disk nothing is executed: requests get 503.", "L2 [16]",
	}, trySpace},
	{Check{
		"sqlite/locks", "Locks exclude: a second writer is refused, and no two open files hold one lock.",
		"Two writers are two executions of one key, and a damaged file.", "S1, E1, I1 [48]",
	}, trySQLiteLocks},
	{Check{
		"sqlite/fsync", "Making a page durable takes time.",
		"A write that costs nothing reached no disk.", "E7, I2 [11]",
	}, tryFsync},
	{Check{
		"sqlite/journal", "The file has the store's journal mode, a write-ahead log of reasonable size.",
		"Another program set another mode: readers and the writer wait for each other, and group commits are slow. " +
			"A log grows while a reader never lets go of it.", "E1, L2 [16]",
	}, tryJournal},
	{Check{
		"sqlite/integrity", "The file is free of damage (`quick_check`).",
		"Records on a damaged page are unreadable or missing.", "I1, I12, S8 [16]",
	}, tryIntegrity},
	{Check{
		"sqlite/busy", "The file can be locked for writing within five seconds.",
		"Another program keeps it locked: every request waits, and gets 503.", "L2 [16]",
	}, tryBusy},
	{Check{
		"sqlite/schema", "This program knows the tables' version.",
		"Otherwise the program refuses the tables.", "S8 [32]",
	}, trySQLiteSchema},
	{Check{
		"sqlite/indexes", "A fresh migration's tables and indexes, without triggers.",
		"The unique index of records is the last line of defence against a second execution. Without the others, " +
			"each look scans the table.", "S1, I7, B1, B2",
	}, trySQLiteIndexes},
	{Check{
		"sqlite/tokens", "The greatest attempt token of removed records is kept, and no known token is larger.",
		"After a restore without it, and with a clock set back, tokens are reused: a fenced owner may write again.",
		"S6, S7, I6",
	}, trySQLiteTokens},
	{Check{
		"sqlite/pages", "The page size is usual.",
		"Answers of a few hundred bytes spill over smaller pages, each read separately.", "L2",
	}, tryPages},
}

// sqlite is the file to examine.
type sqlite struct {
	path string
	dir  string
	// scratch is the doctor's own file in the same directory, so that nothing is written to the store's file.
	scratch string
	// parameters are the parameters of connections to the scratch file.
	parameters string
	db         *sql.DB
}

func examineSQLite(ctx context.Context, path string, c Config) ([]Result, error) {
	p, err := newSQLite(ctx, path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	return examine(ctx, c.Timeout, p, sqliteTrials), nil
}

func newSQLite(ctx context.Context, path string) (*sqlite, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, unavailable(fmt.Errorf("there is no file %s: open the store once, or migrate, and ask again", path))
	case err != nil:
		return nil, unavailable(err)
	case !info.Mode().IsRegular():
		return nil, unavailable(fmt.Errorf("%s is not a file", path))
	}
	dir := filepath.Dir(path)
	removeLeftovers(dir)
	p := &sqlite{path: path, dir: dir, scratch: filepath.Join(dir, ".onceward-doctor-"+strings.ToLower(rand.Text())+".db")}
	if p.db, err = driver.Open(fileURI(path, "mode=rw"), patience(5*time.Second)); err != nil {
		return nil, unavailable(err)
	}
	p.db.SetMaxOpenConns(2)
	return p, nil
}

var scratchName = regexp.MustCompile(`^\.onceward-doctor-[a-z2-7]{26}\.db(-wal|-shm|-journal)?$`)

// removeLeftovers removes the files of a doctor that was killed. The files of a running doctor are younger.
func removeLeftovers(dir string) {
	entries, _ := os.ReadDir(dir) // a directory that cannot be read is found by the checks
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && info.Mode().IsRegular() && scratchName.MatchString(entry.Name()) &&
			time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, entry.Name())) // the next doctor tries again
		}
	}
}

// fileURI returns the URI of a file with parameters. A missing file is not created, unless the parameters ask for it.
func fileURI(path, parameters string) string {
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: parameters}).String()
}

// patience returns a function that sets how long a connection waits for a lock.
func patience(d time.Duration) func(*sqlite3.Conn) error {
	return func(conn *sqlite3.Conn) error { return conn.BusyTimeout(d) }
}

// close removes the doctor's files, even after an interrupt.
func (p *sqlite) close() {
	_ = p.db.Close() // nothing was written
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		_ = os.Remove(p.scratch + suffix) // it may not exist
	}
}

func trySQLiteLocks(ctx context.Context, p *sqlite, r *Result) error {
	const do = "put the file on a local file system whose locks work, or use PostgreSQL"
	var conns []*sql.Conn
	for range 2 {
		db, err := driver.Open(fileURI(p.scratch, "mode=rwc"+p.parameters), patience(0))
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }() // the file is removed
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		conns = append(conns, conn)
	}
	for _, mode := range []string{"DELETE", "WAL"} {
		prepare := `PRAGMA journal_mode = ` + mode + `; CREATE TABLE IF NOT EXISTS probe (n INTEGER)`
		if _, err := conns[0].ExecContext(ctx, prepare); err != nil {
			return err
		}
		if _, err := conns[0].ExecContext(ctx, `BEGIN IMMEDIATE; INSERT INTO probe VALUES (1)`); err != nil {
			return err
		}
		_, err := conns[1].ExecContext(ctx, `BEGIN IMMEDIATE`)
		switch {
		case err == nil:
			r.find(Broken, do, "two connections wrote at once (journal mode %s): the locks of this file system do nothing", mode)
		case !errors.Is(err, sqlite3.BUSY):
			return err
		}
		_, err = conns[0].ExecContext(ctx, `ROLLBACK`)
		if err == nil && len(r.Findings) == 0 {
			_, err = conns[1].ExecContext(ctx, `BEGIN IMMEDIATE; ROLLBACK`)
		}
		if err != nil || len(r.Findings) > 0 {
			return err
		}
	}
	if err := tryFileLock(p, r, do); err != nil {
		return err
	}
	r.saw("the second writer was refused, in both journal modes")
	return nil
}

// pages is the number of pages that are flushed to measure the time.
const pages = 15

func tryFsync(_ context.Context, p *sqlite, r *Result) error {
	f, err := os.OpenFile(p.scratch+"-journal", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it is removed
	var all []time.Duration
	page := make([]byte, 4096)
	for range pages {
		begun := time.Now()
		if _, err := f.Write(page); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			r.find(Broken, "put the file on a disk", "the file system refuses to make a page durable (fsync): %v", err)
			return nil
		}
		all = append(all, time.Since(begun))
	}
	r.saw("%s, in the middle of %d", round(median(all)), pages)
	if median(all) < plausibleFlush {
		r.find(Note, "see that the file is on a disk that keeps it over a power loss, and not in memory",
			"making a page durable takes %s: less than any disk takes", median(all))
	}
	return nil
}

// largeLog is the size of a log that was not checkpointed for long: the store checkpoints it at 16 MiB.
const largeLog = 1 << 30

func tryJournal(ctx context.Context, p *sqlite, r *Result) error {
	var mode string
	if err := p.db.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return err
	}
	r.saw("%s", mode)
	if mode != "wal" {
		r.find(Weak, "open the store once more, and find out which program changes it; PRAGMA journal_mode = WAL",
			"the journal mode of the file is %s", mode)
	}
	if info, err := os.Stat(p.path + "-wal"); err == nil {
		r.saw("the log has %d KB", info.Size()>>10)
		if info.Size() > largeLog {
			r.find(Weak, "find the process with a read transaction that stays open, and end it", "the log has grown to %d MB",
				info.Size()>>20)
		}
	}
	return nil
}

func tryIntegrity(ctx context.Context, p *sqlite, r *Result) error {
	const do = "stop the service, copy the file and its -wal, restore a backup or use sqlite3's .recover, and compare " +
		"with the provider's ledger"
	found, err := texts(ctx, p.db, `PRAGMA quick_check(5)`)
	if errors.Is(err, sqlite3.CORRUPT) || errors.Is(err, sqlite3.NOTADB) {
		r.find(Broken, do, "the file is damaged: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.Equal(found, []string{"ok"}) {
		r.find(Broken, do, "the file is damaged: %s", strings.Join(found, "; "))
		return nil
	}
	r.saw("quick_check is ok")
	return nil
}

// tryBusy takes the writer's lock, and releases it without a write.
func tryBusy(ctx context.Context, p *sqlite, r *Result) error {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	begun := time.Now()
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		if errors.Is(err, sqlite3.BUSY) {
			r.find(Weak, "find the process that keeps a write transaction open (fuser), and end it",
				"the file has been locked for writing for %s", round(time.Since(begun)))
			return nil
		}
		return err
	}
	r.saw("after %s", round(time.Since(begun)))
	_, err = conn.ExecContext(ctx, `ROLLBACK`)
	return err
}

func trySQLiteSchema(ctx context.Context, p *sqlite, r *Result) error {
	version, err := sqliteVersion(ctx, p.db)
	if err != nil {
		return err
	}
	fresh, done, err := freshSQLite(ctx)
	if err != nil {
		return err
	}
	defer done()
	known, err := sqliteVersion(ctx, fresh)
	if err != nil {
		return err
	}
	r.saw("version %d, this program knows %d", version, known)
	switch {
	case version == 0:
		return errNoTables
	case version < known:
		r.find(Broken, "open the store once with this program, or onceward migrate up",
			"the tables are of version %d, and this program needs %d",
			version, known)
	case version > known:
		r.find(Broken, "use a newer program", "the tables are of version %d, and this program knows version %d", version, known)
	}
	return nil
}

// sqliteVersion returns the version of the tables; zero if there are none.
func sqliteVersion(ctx context.Context, db *sql.DB) (version int, err error) {
	columns, err := texts(ctx, db, `SELECT name FROM pragma_table_info('onceward_schema')`)
	if err != nil || len(columns) == 0 {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM onceward_schema`).Scan(&version)
	return version, err
}

// freshSQLite creates the tables again in a temporary directory, for
// comparison: the program needs the tables that it was built with.
func freshSQLite(ctx context.Context) (db *sql.DB, done func(), err error) {
	dir, err := os.MkdirTemp("", "onceward-doctor-")
	if err != nil {
		return nil, nil, err
	}
	s, err := sqlitestore.Open(ctx, filepath.Join(dir, "fresh.db"))
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s.DB(), func() { _, _ = s.Close(), os.RemoveAll(dir) }, nil // it is a temporary directory
}

// thing is a table, an index or a trigger.
type thing struct{ kind, name, table, sql string }

func things(ctx context.Context, db *sql.DB) (all []thing, err error) {
	found, err := db.QueryContext(ctx, `SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema
		WHERE tbl_name LIKE 'onceward\_%' ESCAPE '\' AND type IN ('table', 'index', 'trigger') ORDER BY name`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }() // Err returns its error
	for found.Next() {
		var t thing
		if err := found.Scan(&t.kind, &t.name, &t.table, &t.sql); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, found.Err()
}

func trySQLiteIndexes(ctx context.Context, p *sqlite, r *Result) error {
	have, err := things(ctx, p.db)
	if err != nil {
		return err
	}
	if len(have) == 0 {
		return errNoTables
	}
	fresh, done, err := freshSQLite(ctx)
	if err != nil {
		return err
	}
	defer done()
	want, err := things(ctx, fresh)
	if err != nil {
		return err
	}
	for _, w := range want {
		judgeThing(r, w, have)
	}
	for _, h := range have {
		if h.kind == "trigger" && !slices.ContainsFunc(want, func(w thing) bool { return w.name == h.name }) {
			r.find(Weak, "drop it", "the trigger %s on %s runs inside of each claim", h.name, h.table)
		}
	}
	r.saw("%d tables, indexes and triggers of %d", len(have), len(want))
	return nil
}

func judgeThing(r *Result, want thing, have []thing) {
	i := slices.IndexFunc(have, func(h thing) bool { return h.kind == want.kind && h.name == want.name })
	severity := Weak
	if want.kind == "table" || want.sql == "" || strings.Contains(want.sql, "UNIQUE") {
		severity = Broken
	}
	made := oneLine(want.sql)
	switch {
	case i < 0 && want.sql == "":
		r.find(severity, "make the table again, and copy its rows", "%s has lost its unique index %s", want.table, want.name)
	case i < 0:
		r.find(severity, "make it: "+made, "the %s %s is missing", want.kind, want.name)
	case oneLine(have[i].sql) != made:
		r.find(severity, "make it again as: "+made, "the %s %s is not as this program knows it: %s", want.kind, want.name,
			oneLine(have[i].sql))
	}
}

// oneLine returns a statement in one line, without its comments, which would extend to the end of the line.
func oneLine(sql string) string {
	return strings.Join(strings.Fields(lineNote.ReplaceAllString(sql, "")), " ")
}

// trySQLiteTokens compares what the store keeps about removed records with their audit entries and late completions.
func trySQLiteTokens(ctx context.Context, p *sqlite, r *Result) error {
	if version, err := sqliteVersion(ctx, p.db); err != nil || version == 0 {
		return cmp.Or[error](err, errNoTables)
	}
	var kept sql.NullInt64
	var known int64
	err := p.db.QueryRowContext(ctx, `WITH
			kept (value) AS (SELECT max(value) FROM onceward_meta WHERE name = 'max_removed_attempt'),
			larger (id, attempt) AS (
				SELECT id, attempt FROM onceward_audit, kept WHERE attempt > coalesce(value, 0) UNION ALL
				SELECT id, attempt FROM onceward_late_completion, kept WHERE attempt > coalesce(value, 0))
		SELECT (SELECT value FROM kept),
			(SELECT coalesce(max(attempt), 0) FROM larger WHERE id NOT IN (SELECT id FROM onceward_record))`).Scan(&kept, &known)
	if err != nil {
		return err
	}
	r.saw("%d", kept.Int64)
	do := fmt.Sprintf("stop the service, and INSERT OR REPLACE INTO onceward_meta (name, value) VALUES "+
		"('max_removed_attempt', %d)", max(known, time.Now().UnixMicro()))
	switch {
	case !kept.Valid:
		r.find(Broken, do, "the greatest token of removed records is not kept (onceward_meta, max_removed_attempt)")
	case known > 0:
		r.find(Broken, do, "the greatest token of removed records is kept as %d, and one of them had %d", kept.Int64, known)
	}
	return nil
}

func tryPages(ctx context.Context, p *sqlite, r *Result) error {
	var size, count, free int64
	err := p.db.QueryRowContext(ctx, `SELECT page_size, page_count, freelist_count
		FROM pragma_page_size, pragma_page_count, pragma_freelist_count`).Scan(&size, &count, &free)
	if err != nil {
		return err
	}
	r.saw("%d pages of %d bytes, %d of them free", count, size, free)
	if size < 4096 {
		r.find(Note, "PRAGMA page_size = 4096; VACUUM, with the service stopped and the journal mode DELETE for that time",
			"pages have %d bytes", size)
	}
	return nil
}

// texts returns a column of texts.
func texts(ctx context.Context, db *sql.DB, query string) (all []string, err error) {
	found, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }() // Err returns its error
	for found.Next() {
		var text string
		if err := found.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, found.Err()
}
