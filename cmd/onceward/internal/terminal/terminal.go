// Package terminal tells whether a person looks at what a command says, and how much room there is for it.
package terminal

import (
	"io"
	"os"
	"strconv"
)

// usualWidth is how wide a terminal is that does not say it.
const usualWidth = 80

// Is reports whether an input or an output is a terminal. The null device counts as one: nothing is read from it, and
// what is written to it is not seen.
func Is(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Moves reports whether an output is a terminal that can move its cursor.
func Moves(out io.Writer) bool { return Is(out) && os.Getenv("TERM") != "dumb" }

// Width asks the terminal, then the environment, in which some shells keep it.
func Width(out io.Writer) int {
	if file, ok := out.(*os.File); ok {
		if columns := columnsOf(file); columns > 0 {
			return columns
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return usualWidth
}
