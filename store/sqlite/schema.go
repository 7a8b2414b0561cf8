package sqlite

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	createSchema = `CREATE TABLE IF NOT EXISTS onceward_schema (
		version    INTEGER PRIMARY KEY,
		applied_at TEXT NOT NULL
	) STRICT`
	selectVersion = `SELECT coalesce(max(version), 0), coalesce(max(%s), 0) FROM onceward_schema`
	// hasCompatible finds the column that says which older programs may use the tables. Without it, none may.
	hasCompatible = `SELECT 1 FROM pragma_table_info('onceward_schema') WHERE name = 'compatible'`
	selectSchema  = `SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onceward_schema'`
)

// migrationNames are the files of the migrations, in their order.
func migrationNames() []string {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is right
	}
	for i := range files {
		files[i] = path.Base(files[i])
	}
	return files
}

// Migrate creates the file and its tables, or brings them up to date. [Open] does the same unless it is told not to.
func Migrate(ctx context.Context, path string) error {
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	return s.Close()
}

// Status returns how the tables of a file stand against what this program needs. It writes nothing: of a file that does
// not exist it says so.
func Status(ctx context.Context, path string) (store.SchemaStatus, error) {
	status := store.SchemaStatus{Place: path, Wanted: len(migrationNames()), Pending: migrationNames()}
	file, err := filePath(path)
	if err != nil {
		return status, err
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		status.Absent = true
		return status, ctx.Err()
	}
	address, err := readOnlyAddress(path)
	if err != nil {
		return status, err
	}
	conn, err := sqlite3.OpenContext(ctx, address)
	if err != nil {
		return status, unavailable(err)
	}
	if err = conn.BusyTimeout(defaultBusyTimeout); err == nil {
		status, err = readStatus(conn, path)
	}
	return status, errors.Join(err, conn.Close())
}

// readStatus reads the version of the tables, and the oldest one of a program that may use them.
func readStatus(conn *sqlite3.Conn, place string) (store.SchemaStatus, error) {
	files := migrationNames()
	status := store.SchemaStatus{Place: place, Wanted: len(files)}
	there, err := exists(conn, selectSchema)
	if err == nil && there {
		err = readVersion(conn, &status)
	}
	status.Pending = files[min(status.Version, len(files)):]
	return status, unavailable(err)
}

func readVersion(conn *sqlite3.Conn, status *store.SchemaStatus) error {
	told, err := exists(conn, hasCompatible)
	if err != nil {
		return err
	}
	compatible := "version"
	if told {
		compatible = "coalesce(compatible, version)"
	}
	return query(conn, fmt.Sprintf(selectVersion, compatible), nil, func(stmt *sqlite3.Stmt) error {
		status.Version, status.Compatible = stmt.ColumnInt(0), stmt.ColumnInt(1)
		return nil
	})
}

// exists reports whether a query finds anything.
func exists(conn *sqlite3.Conn, text string) (found bool, err error) {
	err = query(conn, text, nil, func(*sqlite3.Stmt) error {
		found = true
		return nil
	})
	return found, err
}

// migrate brings the tables up to date, all in one transaction. The version is kept in a table of its own, because
// user_version belongs to the program that shares the file. Where there is nothing to do it does not write: a file that
// other processes keep busy can be opened all the same.
func migrate(conn *sqlite3.Conn) (err error) {
	status, err := readStatus(conn, "this file")
	if err != nil {
		return err
	}
	if len(status.Pending) == 0 {
		return status.Err()
	}
	if err := createFunctions(conn); err != nil {
		return unavailable(err)
	}
	if err := conn.Exec(`BEGIN IMMEDIATE`); err != nil {
		return unavailable(err)
	}
	defer func() {
		if err != nil && !conn.GetAutocommit() {
			err = fmt.Errorf("%w%s", err, rollbackNote(conn))
		}
	}()
	if err := conn.Exec(createSchema); err != nil {
		return unavailable(err)
	}
	if status, err = readStatus(conn, "this file"); err != nil {
		return err
	}
	for i, file := range status.Pending {
		if err := applyMigration(conn, file, status.Version+i+1); err != nil {
			return err
		}
	}
	return unavailable(conn.Exec(`COMMIT`))
}

// createFunctions gives a connection the functions by which the third migration names the records that are there.
func createFunctions(conn *sqlite3.Conn) error {
	err := conn.CreateFunction("onceward_id_hash", 1, sqlite3.DETERMINISTIC,
		func(ctx sqlite3.Context, args ...sqlite3.Value) {
			sum := sha256.Sum256(args[0].RawBlob())
			ctx.ResultBlob(sum[:hashSize])
		})
	if err != nil {
		return err
	}
	return conn.CreateFunction("onceward_provider_id", 1, sqlite3.DETERMINISTIC,
		func(ctx sqlite3.Context, args ...sqlite3.Value) {
			// One that cannot be read says why when it is looked at.
			if rec, err := store.DecodeRecord(store.ID{}, args[0].RawBlob()); err == nil && rec.ProviderID != "" {
				ctx.ResultBlob([]byte(rec.ProviderID))
			}
		})
}

// rollbackNote undoes a failed migration and says so if even that fails.
func rollbackNote(conn *sqlite3.Conn) string {
	if err := conn.Exec(`ROLLBACK`); err != nil {
		return " (and the rollback failed: " + err.Error() + ")"
	}
	return ""
}

func applyMigration(conn *sqlite3.Conn, file string, version int) error {
	text, err := migrationText(file, version)
	if err != nil {
		return err
	}
	if err := conn.Exec(text); err != nil {
		return fmt.Errorf("%s: %w", file, unavailable(err))
	}
	return nil
}

// migrationText is a migration together with the note of its version.
func migrationText(file string, version int) (string, error) {
	text, err := migrations.ReadFile("migrations/" + file)
	return fmt.Sprintf("%s\nINSERT INTO onceward_schema (version, applied_at) VALUES (%d, datetime('now'));\n",
		text, version), err
}

// plainHead begins what PlainSQL returns. The shell of SQLite goes on after an error unless it is told not to, and has
// no other way to raise one than a constraint.
const plainHead = `-- Brings the tables of Onceward from version %[1]d to version %[2]d, in one transaction.
-- sqlite3 FILE < THIS_FILE
.bail on

BEGIN IMMEDIATE;

%[3]s;
CREATE TEMP TABLE onceward_found (
	version INTEGER,
	CONSTRAINT "the tables are not of version %[1]d: print this script again, for the version that is there" CHECK (version = %[1]d)
);
INSERT INTO onceward_found SELECT coalesce(max(version), 0) FROM onceward_schema;
DROP TABLE onceward_found;

`

// byProgram is what a migration does to records that are there by functions of the program, which the shell lacks.
var byProgram = regexp.MustCompile(`(?s)-- \+program\n.*-- -program\n`)

// PlainSQL returns the migrations after a version, zero for all of them, as one transaction for the shell of SQLite:
// for those who apply changes of their databases by hand. It refuses tables of another version than that. A file that
// the shell creates has the permissions of its caller's umask. The third migration names the records that are there by
// a hash that the shell cannot compute: from versions 1 and 2 on, only [Migrate] and [Open] can do it.
func PlainSQL(from int) (string, error) {
	files := migrationNames()
	if from < 0 || from >= len(files) {
		return "", fmt.Errorf("sqlite: there are no migrations after version %d: the versions are 0 to %d", from, len(files))
	}
	var script strings.Builder
	fmt.Fprintf(&script, plainHead, from, len(files), createSchema)
	for version := from + 1; version <= len(files); version++ {
		text, err := migrationText(files[version-1], version)
		if err != nil {
			return "", err
		}
		if from > 0 && byProgram.MatchString(text) {
			return "", fmt.Errorf("sqlite: %s names the records by a hash that the shell of SQLite cannot compute: "+
				"use \"onceward migrate up\", or sqlite.Migrate", files[version-1])
		}
		fmt.Fprintf(&script, "-- %s\n%s\n", files[version-1], byProgram.ReplaceAllString(text, ""))
	}
	script.WriteString("COMMIT;\n")
	return script.String(), nil
}
