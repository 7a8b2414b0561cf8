package sqlite

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// The statements of the hot path. Each is a look-up by the primary key.
const (
	selectRecord = `SELECT record, rowid, id FROM onceward_record WHERE hash = ?1`
	insertRecord = `INSERT INTO onceward_record (hash, id, state, due, provider_id, record)
		VALUES (?1, ?5, ?2, ?3, ?6, ?4)`
	// insertAbsent inserts a record that did not exist a moment ago, without a look-up.
	insertAbsent = insertRecord + ` ON CONFLICT (hash) DO NOTHING`
	updateRecord = `UPDATE onceward_record SET state = ?2, due = ?3, record = ?4 WHERE rowid = ?1`
	// updateProvider updates the few records whose provider's ID changes.
	updateProvider = `UPDATE onceward_record SET provider_id = ?2 WHERE rowid = ?1`
	deleteRecord   = `DELETE FROM onceward_record WHERE hash = ?1`
	selectFloor    = `SELECT value FROM onceward_meta WHERE name = 'max_removed_attempt'`
	raiseFloor     = `UPDATE onceward_meta SET value = max(value, ?1) WHERE name = 'max_removed_attempt'`
)

// key identifies a record in the columns: the hash of its ID, and then the ID.
type key []byte

// hashSize is how many bytes of a key are the hash.
const hashSize = 16

// keyOf returns the key of an ID, in the memory of another key.
func keyOf(k key, id store.ID) key {
	k = id.AppendBinary(append(k[:0], make([]byte, hashSize)...))
	sum := sha256.Sum256(k[hashSize:])
	copy(k, sum[:hashSize])
	return k
}

func (k key) hash() []byte { return k[:hashSize] }
func (k key) id() []byte   { return k[hashSize:] }

// loadRecord runs a prepared look-up. It returns the record and its row, which is zero if there is no record.
func loadRecord(get *sqlite3.Stmt, id store.ID, k key) (rec store.Record, row int64, err error) {
	if err := get.BindBlob(1, k.hash()); err != nil {
		return rec, 0, err
	}
	if get.Step() {
		rec, err = store.DecodeRecord(id, get.ColumnRawBlob(0))
		row = get.ColumnInt64(1)
		if !bytes.Equal(get.ColumnRawBlob(2), k.id()) {
			rec, err = store.Record{}, errCollision
		}
	}
	if resetErr := get.Reset(); resetErr != nil {
		return store.Record{}, 0, resetErr
	}
	return rec, row, err
}

// errCollision is the error for an ID that has the same hash as another ID.
var errCollision = &store.UnreadableError{
	Version: store.RecordVersion, Reason: "its place is taken by another key, whose hash is the same",
}

// records holds the prepared statements of the hot path, on the writer's connection. It is used inside a transaction.
type records struct {
	conn                                              *sqlite3.Conn
	get, insert, add, change, remove, floor, setFloor *sqlite3.Stmt
	key                                               key
	sought, value                                     []byte
	kept                                              map[string]*sqlite3.Stmt // by their texts

	// removed is the largest token of the removed records. It is
	// read once in each transaction, and negative until then.
	removed int64
}

func prepareRecords(conn *sqlite3.Conn) (*records, error) {
	r := &records{conn: conn, kept: make(map[string]*sqlite3.Stmt), removed: -1}
	return r, prepare(
		conn,
		prepared{&r.get, selectRecord},
		prepared{&r.insert, insertRecord},
		prepared{&r.add, insertAbsent},
		prepared{&r.change, updateRecord},
		prepared{&r.remove, deleteRecord},
		prepared{&r.floor, selectFloor},
		prepared{&r.setFloor, raiseFloor},
	)
}

// load reads a record as the transaction sees it.
func (r *records) load(id store.ID) (rec store.Record, row int64, err error) {
	return loadRecord(r.get, id, r.keyOf(id))
}

// keyOf returns the key of an ID, and keeps it, because most IDs are looked up several times in a row. It compares IDs
// in memory of its own: the strings of an ID may be views of memory that the caller reuses.
func (r *records) keyOf(id store.ID) key {
	r.sought = id.AppendBinary(r.sought[:0])
	if r.key == nil || !bytes.Equal(r.sought, r.key.id()) {
		r.key = keyOf(r.key, id)
	}
	return r.key
}

// step applies an event to the record of an ID, and stores the result.
func (r *records) step(id store.ID, event store.Event, now time.Time) (store.Record, store.Transition, error) {
	before, row, err := r.load(id)
	if err != nil {
		return before, store.Transition{}, err
	}
	if event.Kind.TakesToken() {
		if event.Token, err = r.token(now, &before); err != nil {
			return before, store.Transition{}, err
		}
	}
	after, outcome, err := store.Step(before, event, now)
	if err != nil {
		return after, outcome, refused{err}
	}
	return after, outcome, r.store(id, row, &before, &after, outcome.Effect)
}

// reserve creates the record of an ID that was absent a moment ago, and reports whether it was still absent.
func (r *records) reserve(id store.ID, event store.Event, now time.Time) (
	after store.Record, outcome store.Transition, absent bool, err error,
) {
	if event.Token, err = r.token(now, &after); err != nil {
		return after, outcome, false, err
	}
	after, outcome, err = store.Step(store.Record{}, event, now)
	if err != nil || outcome.Effect != store.EffectWrite {
		return after, outcome, false, nil // step decides it
	}
	if err := r.bindNew(r.add, id, &after); err != nil {
		return after, outcome, false, err
	}
	if err := r.bind(r.add, &after); err != nil {
		return after, outcome, false, err
	}
	err = r.add.Exec()
	return after, outcome, err == nil && r.conn.Changes() == 1, err
}

// store carries out the effect of an event.
func (r *records) store(id store.ID, row int64, before, after *store.Record, effect store.Effect) error {
	switch effect {
	case store.EffectWrite:
		return r.save(id, row, before, after)
	case store.EffectRemove:
		return r.delete(id, before.Attempt)
	default:
		return nil
	}
}

// save inserts a record, or updates the row that the previous record was loaded from.
func (r *records) save(id store.ID, row int64, before, rec *store.Record) error {
	put := r.change
	if row == 0 {
		put = r.insert
		if err := r.bindNew(put, id, rec); err != nil {
			return err
		}
	} else if err := put.BindInt64(1, row); err != nil {
		return err
	}
	if err := r.bind(put, rec); err != nil {
		return err
	}
	if err := put.Exec(); err != nil {
		return err
	}
	if n := r.conn.Changes(); n != 1 {
		return fmt.Errorf("settling wrote %d rows instead of one", n)
	}
	if row == 0 || before.ProviderID == rec.ProviderID {
		return nil
	}
	return r.run(updateProvider, []any{row, nullable(rec.ProviderID)}, nil)
}

// bindNew binds the columns that only an insert writes.
func (r *records) bindNew(insert *sqlite3.Stmt, id store.ID, rec *store.Record) error {
	k := r.keyOf(id)
	if err := insert.BindBlob(1, k.hash()); err != nil {
		return err
	}
	if err := insert.BindBlob(5, k.id()); err != nil {
		return err
	}
	return bindOne(insert, 6, nullable(rec.ProviderID))
}

// bind binds the columns that every write sets.
func (r *records) bind(put *sqlite3.Stmt, rec *store.Record) error {
	if err := put.BindInt64(2, int64(sqltx.StateCode(rec))); err != nil {
		return err
	}
	if err := put.BindInt64(3, micros(rec.Due())); err != nil {
		return err
	}
	r.value = rec.AppendBinary(r.value[:0])
	return put.BindBlob(4, r.value)
}

// nullable returns nil, which is stored as NULL, for an empty text, because most rows have none.
func nullable(text string) any {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// delete removes a record, and ensures in the same transaction that its token is not used again (S7).
func (r *records) delete(id store.ID, attempt int64) error {
	if err := r.remove.BindBlob(1, r.keyOf(id).hash()); err != nil {
		return err
	}
	if err := r.remove.Exec(); err != nil {
		return err
	}
	r.removed = -1
	if err := r.setFloor.BindInt64(1, attempt); err != nil {
		return err
	}
	return r.setFloor.Exec()
}

// token draws an attempt token above the token of the record and the tokens of all removed records.
func (r *records) token(now time.Time, before *store.Record) (int64, error) {
	if r.removed < 0 {
		if r.floor.Step() {
			r.removed = r.floor.ColumnInt64(0)
		}
		if err := r.floor.Reset(); err != nil {
			return 0, err
		}
	}
	return store.NewToken(now, max(r.removed, before.Attempt)), nil
}
