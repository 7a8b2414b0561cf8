package sqlite

import (
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// prepared is a statement of the hot path, with the variable that holds it.
type prepared struct {
	stmt **sqlite3.Stmt
	text string
}

// prepare prepares statements, which are closed with the connection.
func prepare(conn *sqlite3.Conn, all ...prepared) (err error) {
	for _, p := range all {
		if *p.stmt, _, err = conn.Prepare(p.text); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// run runs a statement that stays prepared for the next time, and calls
// each for its rows. If the statement has no rows, each may be nil.
func (r *records) run(text string, args []any, each func(*sqlite3.Stmt) error) error {
	stmt, err := r.keep(text)
	if err != nil {
		return err
	}
	err = step(stmt, args, each)
	if resetErr := stmt.Reset(); err == nil {
		err = resetErr
	}
	return err
}

// query runs a statement that is not on the hot path, on any connection, and calls each for its rows.
func query(conn *sqlite3.Conn, text string, args []any, each func(*sqlite3.Stmt) error) error {
	stmt, _, err := conn.Prepare(text)
	if err != nil {
		return err
	}
	err = step(stmt, args, each)
	if closeErr := stmt.Close(); err == nil {
		err = closeErr
	}
	return err
}

// step binds the parameters of a statement and calls each for its rows.
func step(stmt *sqlite3.Stmt, args []any, each func(*sqlite3.Stmt) error) error {
	err := bindAll(stmt, args)
	for err == nil && stmt.Step() {
		if each == nil {
			return fmt.Errorf("a row where none was expected")
		}
		err = each(stmt)
	}
	return err
}

// changes runs a statement like run, and reports whether it changed anything.
func (r *records) changes(text string, args ...any) (bool, error) {
	err := r.run(text, args, nil)
	return err == nil && r.conn.Changes() > 0, err
}

// keep returns a prepared statement, and prepares it on the first use. The statement is closed with the connection.
func (r *records) keep(text string) (*sqlite3.Stmt, error) {
	if stmt := r.kept[text]; stmt != nil {
		return stmt, nil
	}
	stmt, _, err := r.conn.Prepare(text)
	if err != nil {
		return nil, err
	}
	r.kept[text] = stmt
	return stmt, nil
}

// bindAll binds the parameters of a statement in their order.
func bindAll(stmt *sqlite3.Stmt, args []any) error {
	for i, arg := range args {
		if err := bindOne(stmt, i+1, arg); err != nil {
			return err
		}
	}
	return nil
}

func bindOne(stmt *sqlite3.Stmt, param int, arg any) error {
	switch value := arg.(type) {
	case bool:
		return stmt.BindBool(param, value)
	case int:
		return stmt.BindInt(param, value)
	case int64:
		return stmt.BindInt64(param, value)
	case string:
		return stmt.BindText(param, value)
	case []byte:
		return stmt.BindBlob(param, value)
	case nil:
		return stmt.BindNull(param)
	default:
		return fmt.Errorf("a parameter of type %T", arg)
	}
}

// micros returns a time as the columns hold it.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// timeOf returns a time that was stored as micros returned it.
func timeOf(stmt *sqlite3.Stmt, column int) time.Time {
	us := stmt.ColumnInt64(column)
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
