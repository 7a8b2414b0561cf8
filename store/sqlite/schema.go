package sqlite

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"

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
	selectSchema = `SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onceward_schema'`
)

// migrate brings the tables up to date, all in one transaction. The version is kept in a table of its own, because
// user_version belongs to the program that shares the file. Where there is nothing to do it does not write: a file that
// other processes keep busy can be opened all the same.
func migrate(conn *sqlite3.Conn) (err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	if version, err := schemaVersion(conn); err != nil || version == len(files) {
		return err
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
	version, err := schemaVersion(conn)
	if err != nil {
		return err
	}
	if version > len(files) {
		return fmt.Errorf("its tables are of version %d, and this program knows versions up to %d: "+
			"use a newer program", version, len(files))
	}
	for i, file := range files[version:] {
		if err := applyMigration(conn, file, version+i+1); err != nil {
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

// schemaVersion reads which version the tables are of, zero if there are none.
func schemaVersion(conn *sqlite3.Conn) (version int, err error) {
	there := false
	err = query(conn, selectSchema, nil, func(*sqlite3.Stmt) error {
		there = true
		return nil
	})
	if err != nil || !there {
		return 0, unavailable(err)
	}
	err = query(conn, `SELECT coalesce(max(version), 0) FROM onceward_schema`, nil, func(stmt *sqlite3.Stmt) error {
		version = stmt.ColumnInt(0)
		return nil
	})
	return version, unavailable(err)
}

// rollbackNote undoes a failed migration and says so if even that fails.
func rollbackNote(conn *sqlite3.Conn) string {
	if err := conn.Exec(`ROLLBACK`); err != nil {
		return " (and the rollback failed: " + err.Error() + ")"
	}
	return ""
}

func applyMigration(conn *sqlite3.Conn, file string, version int) error {
	text, err := migrations.ReadFile(file)
	if err != nil {
		return err
	}
	if err := conn.Exec(string(text)); err != nil {
		return fmt.Errorf("%s: %w", file, unavailable(err))
	}
	mark := fmt.Sprintf(`INSERT INTO onceward_schema (version, applied_at) VALUES (%d, datetime('now'))`, version)
	return unavailable(conn.Exec(mark))
}
