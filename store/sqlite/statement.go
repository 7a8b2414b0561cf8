package sqlite

import (
	"fmt"

	"github.com/ncruces/go-sqlite3"
)

// run runs a statement that stays prepared for the next time, and calls each for its rows. One that has no rows is given a
// nil for each.
func (r *records) run(text string, args []any, each func(*sqlite3.Stmt) error) (err error) {
	stmt, err := r.keep(text)
	if err != nil {
		return err
	}
	err = bindAll(stmt, args)
	for err == nil && stmt.Step() {
		if each == nil {
			err = fmt.Errorf("a row where none was expected")
			break
		}
		err = each(stmt)
	}
	if resetErr := stmt.Reset(); err == nil {
		err = resetErr
	}
	return err
}

// changes runs a statement like run, and reports whether it changed anything.
func (r *records) changes(text string, args ...any) (bool, error) {
	err := r.run(text, args, nil)
	return err == nil && r.conn.Changes() > 0, err
}

// keep prepares a statement when it is needed for the first time. It is closed with the connection.
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
