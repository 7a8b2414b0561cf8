package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward/store"
)

// The statements of the program that knew two migrations.
const (
	oldInsert = `INSERT INTO onceward_record (id, state, due, record) VALUES (?1, ?2, ?3, ?4)`
	oldSelect = `SELECT record, rowid FROM onceward_record WHERE id = ?1`
	oldUpdate = `UPDATE onceward_record SET state = ?2, due = ?3, record = ?4 WHERE rowid = ?1`
)

func oldID(i int) store.ID { return store.ID{Scope: "acme", Key: fmt.Sprint("old-", i)} }

// oldRecord is one of those that the old program has made.
func oldRecord(i int) store.Record {
	at := time.UnixMicro(1_800_000_000_000_000).UTC()
	return store.Record{
		ID: oldID(i), Version: 1, State: store.StateCompleted, Operation: "POST /payments", Attempt: int64(i + 1),
		Retention: time.Hour, CreatedAt: at, SettledAt: at, ExpiresAt: at.Add(time.Hour),
		ProviderID: fmt.Sprint("ch_", i), Response: store.Response{Status: 201, Body: []byte("done")},
	}
}

// openOld makes a file with the tables of the old program, and records, and leaves its connection open.
func openOld(t *testing.T, path string, records int) *sqlite3.Conn {
	t.Helper()
	conn, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(conn.BusyTimeout(time.Minute))
	must(conn.Exec(writerPragmas + createSchema))
	for i, file := range []string{"0001_records.sql", "0002_outbox.sql"} {
		must(applyMigration(conn, file, i+1))
	}
	for i := range records {
		rec := oldRecord(i)
		must(query(conn, oldInsert, []any{
			rec.ID.AppendBinary(nil), stateColumn(&rec), micros(rec.Due()), rec.AppendBinary(nil),
		}, nil))
	}
	return conn
}

// TestOldRecordsGetTheirNames: what a program of before has made is found by hash and by provider's id, and replays.
func TestOldRecordsGetTheirNames(t *testing.T) {
	t.Parallel()
	path := insidePath(t)
	old := openOld(t, path, 3)
	if err := old.Exec(`UPDATE onceward_record SET record = x'ff' WHERE rowid = 3`); err != nil {
		t.Fatal(err)
	}
	s := openInside(t, path)
	for i := range 2 {
		want := oldRecord(i)
		rec, err := s.Get(t.Context(), want.ID)
		if err != nil || rec.ProviderID != want.ProviderID || rec.Attempt != want.Attempt {
			t.Errorf("it has become %+v, %v", rec, err)
		}
		if rec, err := s.FindHash(t.Context(), want.Hash()); err != nil || rec.ID != want.ID {
			t.Errorf("by its hash %+v is found, %v", rec, err)
		}
		if found, err := s.FindProviderID(t.Context(), want.ProviderID); err != nil || len(found) != 1 || found[0].ID != want.ID {
			t.Errorf("by its provider's id %+v is found, %v", found, err)
		}
	}
	if _, err := s.Get(t.Context(), oldID(2)); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("one that could not be read before gives the error %v", err)
	}
	if rec, err := s.FindHash(t.Context(), oldID(2).Hash()); err != nil || rec.ID != oldID(2) || rec.Version != 0 {
		t.Errorf("one that cannot be read is found as %+v, %v", rec, err)
	}
}

// TestOldProgramBesideNew: a program that has the file open while a newer one brings its tables up to date makes no record
// under the old name (I1). It still ends what it began.
func TestOldProgramBesideNew(t *testing.T) {
	t.Parallel()
	path := insidePath(t)
	old := openOld(t, path, 1)
	insert, _, err := old.Prepare(oldInsert)
	if err != nil {
		t.Fatal(err)
	}
	s := openInside(t, path)
	rec := oldRecord(7)
	err = step(insert, []any{rec.ID.AppendBinary(nil), 10, 1, rec.AppendBinary(nil)}, nil)
	if resetErr := insert.Reset(); err == nil && resetErr == nil {
		t.Error("the old program made a record that the new one does not see")
	}
	if _, err := s.Get(t.Context(), rec.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the record of the old program: %v", err)
	}
	changed := oldRecord(0)
	changed.Operation = "ended by the old program"
	row := int64(0)
	err = query(old, oldSelect, []any{changed.ID.AppendBinary(nil)}, func(stmt *sqlite3.Stmt) error {
		row = stmt.ColumnInt64(1)
		return nil
	})
	if err != nil || row == 0 {
		t.Fatalf("the old program does not find its record: row %d, %v", row, err)
	}
	if err := query(old, oldUpdate, []any{row, 20, micros(changed.Due()), changed.AppendBinary(nil)}, nil); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.FindHash(t.Context(), changed.Hash()); err != nil || rec.Operation != changed.Operation {
		t.Errorf("what the old program has ended is %+v, %v", rec, err)
	}
}

// TestHashTaken: a key whose hash is that of another one is an error, and no answer of the other's (I9).
func TestHashTaken(t *testing.T) {
	t.Parallel()
	path := insidePath(t)
	openOld(t, path, 2)
	s := openInside(t, path)
	err := s.writer.do(t.Context(), newFunction(func(r *records, _ time.Time) error {
		return r.conn.Exec(`UPDATE onceward_record SET id = (SELECT id FROM onceward_record WHERE rowid = 2) WHERE rowid = 1`)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Get(t.Context(), oldID(0)); !errors.Is(err, store.ErrUnreadable) || rec.State != store.StateNone {
		t.Errorf("the record of another key is given out: %+v, %v", rec, err)
	}
}
