package sqlite

import (
	"database/sql/driver"
	"errors"
)

// maxStatements bounds how many statements of handlers stay prepared, and maxStatementText how long they are.
const (
	maxStatements    = 64
	maxStatementText = 4 << 10
)

// statements are those of handlers, by their texts, that stay prepared for the next turn: most handlers run the same ones
// each time. They belong to the connection, and only whoever has the turn takes and returns them. The rules were asked
// when they were prepared, and are asked again if a table has changed since, because SQLite then prepares them again.
// It does so when they run: a statement that returns rows would until then name the columns of before, and is not kept.
type statements map[string]driver.Stmt

// take returns a statement that is prepared, or nil.
func (s statements) take(text string) driver.Stmt {
	stmt := s[text]
	delete(s, text)
	return stmt
}

// put keeps a statement that is not used any more, or closes it. What it was used with is forgotten.
func (s statements) put(text string, stmt driver.Stmt) error {
	used, ok := stmt.(interface {
		ColumnCount() int
		Reset() error
		ClearBindings() error
	})
	if !ok || used.ColumnCount() > 0 || s[text] != nil || len(text) > maxStatementText ||
		errors.Join(used.Reset(), used.ClearBindings()) != nil {
		return stmt.Close()
	}
	var err error
	if len(s) >= maxStatements {
		for text, other := range s { // whichever comes first
			delete(s, text)
			err = other.Close()
			break
		}
	}
	s[text] = stmt
	return err
}
