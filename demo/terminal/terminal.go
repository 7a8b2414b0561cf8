// Package terminal reports whether a program's output is a terminal, and how wide it is.
package terminal

import (
	"io"
	"os"
	"strconv"
	"sync"
)

// usualWidth is the assumed width of a terminal whose width is not known.
const usualWidth = 80

// Is reports whether an input or an output is a terminal. The null device counts
// as a terminal: nothing is read from it, and nobody sees what is written to it.
func Is(stream any) bool {
	file, ok := fileOf(stream)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// fileOf returns the file of a stream, which may be wrapped by a [Checked].
func fileOf(stream any) (*os.File, bool) {
	if checked, ok := stream.(*Checked); ok {
		stream = checked.out
	}
	file, ok := stream.(*os.File)
	return file, ok
}

// Checked is an output that remembers the first error, for callers that
// write often and check at the end. It is safe for concurrent use.
type Checked struct {
	out io.Writer
	mu  sync.Mutex
	err error
}

// Check returns a [Checked] that writes to out.
func Check(out io.Writer) *Checked { return &Checked{out: out} }

// Write implements [io.Writer].
func (c *Checked) Write(p []byte) (int, error) {
	n, err := c.out.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	return n, err
}

// Err returns the first error of writing.
func (c *Checked) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Moves reports whether an output is a terminal that can move its cursor.
func Moves(out io.Writer) bool { return Is(out) && os.Getenv("TERM") != "dumb" }

// Width returns the width of the terminal, or else the width in the environment, in which some shells keep it.
func Width(out io.Writer) int {
	if file, ok := fileOf(out); ok {
		if columns := columnsOf(file); columns > 0 {
			return columns
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return usualWidth
}
