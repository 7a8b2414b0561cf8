package sqlite

import (
	"database/sql/driver"
	"errors"
)

// maxStatements is how many statements of handlers stay prepared at
// most, and maxStatementText is how long their texts are at most.
const (
	maxStatements    = 64
	maxStatementText = 4 << 10
)

// statements holds the statements of handlers, by their texts, that stay prepared for the next
// turn: most handlers run the same statements each time. They belong to the connection, and only
// the holder of the turn takes and returns them. The rules were checked when they were prepared.
// If a table has changed since, SQLite prepares them again when they run, and checks the rules
// again. A statement that returns rows would name the old columns until then, so it is not kept.
type statements map[string]driver.Stmt

// take returns a prepared statement and removes it, or returns nil.
func (s statements) take(text string) driver.Stmt {
	stmt := s[text]
	delete(s, text)
	return stmt
}

// put keeps a statement that is no longer used, or closes it. It clears the parameters of the statement.
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
