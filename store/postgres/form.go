package postgres

import (
	"fmt"

	"github.com/onceward/onceward/store"
)

// form is what new tables have and those of earlier versions do not, one bit for each. It is written by the first
// migration and never changes: two programs that saw it differently would name one key twice, and execute it twice, or
// could not read each other's rows.
type form int32

// formPlain is that of tables which an earlier version made.
const formPlain form = 0

const (
	// formOrdered says that keys which tell their time give it to the names of their records.
	formOrdered form = 1 << iota
	// formCoded says that the bodies of answers may be in the code of text.
	formCoded
	// knownForms are those of the tables that this program can use.
	knownForms = 1<<iota - 1
)

// check refuses what only a later program knows.
func (f form) check() error {
	if unknown := f &^ knownForms; unknown != 0 {
		return fmt.Errorf("the tables are of a form (%d) that this program does not know: %w: use a newer program",
			unknown, store.ErrSchemaNewer)
	}
	return nil
}

// has reports whether the tables have all of those.
func (f form) has(wanted form) bool { return f&wanted == wanted }
